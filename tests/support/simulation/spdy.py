"""The kubelet's side of an exec session: SPDY/3.1, as far as the API server uses it.

The API server opens the streams of a session in a fixed order and numbers them 1, 3, 5, 7: error, stdin, stdout, stderr. So their
headers are not read, which would need SPDY's dictionary.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from contextlib import suppress
from typing import Any, Final

ERROR, STDIN, STDOUT, STDERR = 1, 3, 5, 7
HEADER: Final = struct.Struct(">IBBH")  # stream or version and type; flags; length, in two parts
MAX_DATA_BYTES: Final = 1 << 15
LEAVING_SECONDS: Final = 5.0  # how long the API server may take to close the connection after the session has ended
_CONTROL, _VERSION = 0x8000_0000, 3 << 16
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN = 1


class ExecStreams:
    """The streams of one exec session. count: number of streams that the API server opens; opened: set when it has opened them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
        self._reader, self._writer, self._count = reader, writer, count
        self._headers = zlib.compressobj()
        self._streams: list[int] = []
        self.opened = asyncio.Event()
        self.stdin = asyncio.StreamReader()

    async def pump(self) -> None:
        """Read the connection until it ends, and feed stdin."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, flags, high, low = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                body = await self._reader.readexactly((high << 16) + low)
                if first & _CONTROL:
                    self._control(first & 0xFFFF, body)
                elif first == STDIN:
                    self.stdin.feed_data(body)
                if flags & _FIN and (first == STDIN or (first & _CONTROL and _number(body) == STDIN)):
                    self.stdin.feed_eof()
        self.stdin.feed_eof()

    def write(self, data: bytes, stream: int = STDOUT) -> None:
        for start in range(0, len(data), MAX_DATA_BYTES):
            self._frame(stream, data[start : start + MAX_DATA_BYTES])

    async def drain(self) -> None:
        await self._writer.drain()

    def exit(self, code: int) -> None:
        """Report the command's exit code, and end the session."""
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            message = f"command terminated with exit code {code}"
            status |= {"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": causes}}
        self.write(json.dumps(status).encode(), ERROR)
        for stream in self._streams:
            if stream != STDIN:
                self._frame(stream, b"", _FIN)

    def _control(self, kind: int, body: bytes) -> None:
        if kind == _SYN_STREAM:
            stream = _number(body)
            self._streams.append(stream)
            headers = self._headers.compress(struct.pack(">I", 0)) + self._headers.flush(zlib.Z_SYNC_FLUSH)
            self._frame(_CONTROL | _VERSION | _SYN_REPLY, struct.pack(">I", stream) + headers)
            if len(self._streams) == self._count:
                self.opened.set()
        elif kind == _PING:
            self._frame(_CONTROL | _VERSION | _PING, body)
        elif kind == _RST_STREAM and _number(body) == STDIN:
            self.stdin.feed_eof()

    def _frame(self, first: int, body: bytes, flags: int = 0) -> None:
        self._writer.write(HEADER.pack(first, flags, len(body) >> 16, len(body) & 0xFFFF) + body)


def _number(body: bytes) -> int:
    return int(struct.unpack(">I", body[:4])[0]) & 0x7FFF_FFFF
