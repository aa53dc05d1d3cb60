"""Reads and writes frames of the runner protocol (docs/internals/runner-protocol.md). A frame is a type, a length and a payload."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

JSON, DATA, END = b"J", b"D", b"E"
BODY_FRAME_BYTES = 256 << 10
_MAX_BYTES = {JSON: 8 << 20, DATA: 1 << 20, END: 8 << 20}
_HEADER = struct.Struct(">cI")
_CLOSED = "the environment's runner closed the connection"


class GuestError(RuntimeError):
    """The environment's runner cannot be reached, or it violated the protocol."""


class TransferError(RuntimeError):
    """A path of the environment is missing, too large, or not the expected file or directory."""


class RefusedError(GuestError):
    """The runner refused a request. `code` is the protocol's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False)
class Connection:
    """A connection to the environment's runner, which carries frames."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, kind: bytes, payload: bytes) -> None:
        """Write a frame, and wait while the write buffer is full.

        Raises:
            GuestError: the connection ended.
        """
        self.writer.write(_HEADER.pack(kind, len(payload)) + payload)
        try:
            await self.writer.drain()
        except ConnectionError as error:
            raise GuestError(_CLOSED) from error

    async def request(self, request: Mapping[str, Any]) -> None:
        """Write a request as a `J` frame."""
        await self.send(JSON, json.dumps(request).encode())

    async def frame(self) -> tuple[bytes, bytes]:
        """Return the next frame's type and payload.

        Raises:
            GuestError: the connection ended or the frame is invalid.
        """
        try:
            kind, size = _HEADER.unpack(await self.reader.readexactly(_HEADER.size))
            if size > _MAX_BYTES.get(kind, -1):
                raise GuestError(f"the environment's runner sent an invalid frame: type {kind!r}, {size} bytes")
            return kind, await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise GuestError(_CLOSED) from error

    async def answer(self) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            RefusedError: the answer is a refusal.
            GuestError: the frame is not a valid answer.
        """
        kind, payload = await self.frame()
        if kind != JSON:
            raise GuestError(f"the environment's runner sent a frame of type {kind!r} instead of an answer")
        return parse_answer(payload)

    async def send_body(self, source: IO[bytes]) -> None:
        """Send the file's contents as a body, which consists of `D` frames and an `E` frame with size and digest."""
        digest, size = hashlib.sha256(), 0
        while block := source.read(BODY_FRAME_BYTES):
            digest.update(block)
            size += len(block)
            await self.send(DATA, block)
        await self.send(END, json.dumps({"size": size, "sha256": digest.hexdigest()}).encode())

    async def receive_body(self, write: Callable[[bytes], object], limit: int) -> None:
        """Read a body of at most `limit` bytes, and pass the payload of each `D` frame to `write`.

        Raises:
            TransferError: the body is larger than the limit.
            GuestError: the body is damaged or incomplete.
        """
        digest, size = hashlib.sha256(), 0
        async for block in self._blocks():
            if isinstance(block, dict):
                _verify(block, size, digest.hexdigest())
                return
            size += len(block)
            if size > limit:
                raise TransferError(f"the download is larger than {limit} bytes, the agent host's limit")
            digest.update(block)
            write(block)

    async def _blocks(self) -> AsyncIterator[bytes | dict[str, Any]]:
        """Yield the payloads of a body's `D` frames, then the object in its `E` frame."""
        while True:
            kind, payload = await self.frame()
            if kind == END:
                yield _object(payload)
                return
            if kind != DATA:
                raise GuestError(f"the environment's runner sent a frame of type {kind!r} inside a body")
            yield payload

    def close(self) -> None:
        """Close the connection. The runner then kills the command that runs in this session."""
        self.writer.close()


def parse_answer(payload: bytes) -> dict[str, Any]:
    """Return the answer in a `J` frame.

    Raises:
        RefusedError: the answer is a refusal.
        GuestError: the frame is not a valid answer.
    """
    answer = _object(payload)
    if answer.get("ok") is True:
        return answer
    error = answer.get("error")
    if not isinstance(error, dict):
        raise GuestError("the environment's runner sent an answer with neither a result nor an error")
    raise RefusedError(str(error.get("code")), str(error.get("message")))


def _object(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except ValueError as error:
        raise GuestError("the environment's runner sent invalid JSON") from error
    if not isinstance(value, dict):
        raise GuestError("the environment's runner sent JSON that is not an object")
    return value


def _verify(trailer: Mapping[str, Any], size: int, sha256: str) -> None:
    if trailer.get("error"):
        raise GuestError(f"the environment's runner aborted the download: {trailer['error']}")
    if (trailer.get("size"), trailer.get("sha256")) != (size, sha256):
        raise GuestError("the download was damaged in transit")
