"""Sends and receives frames over an exec stream. Every read and write has a timeout. If the stream ends early, the error names the
cause."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from multistep.errors import ExecKilled, RunnerError, StreamLost

MAX_PAYLOAD_BYTES: Final = 1024 * 1024  # maximum payload of a D frame
MAX_JSON_BYTES: Final = 8 * 1024 * 1024  # maximum payload of a J or E frame. The answer to hello has all records of a trial
# Maximum number of JSON values in a frame, because an empty list takes 2 bytes there, but 60 in memory.
MAX_JSON_VALUES: Final = 250_000
HEADER = struct.Struct(">cI")

Kind = Literal[b"J", b"D", b"E"]
MESSAGE: Final = b"J"  # a JSON object that is a request or an answer
DATA: Final = b"D"  # a chunk of a body, which is a tar stream, or the files or manifest of a checkpoint
END: Final = b"E"  # the size and the digest of a body, after its last chunk
_KINDS: Final = frozenset({MESSAGE, DATA, END})


@dataclass(frozen=True)
class Frame:
    kind: bytes
    payload: bytes

    def json(self) -> dict[str, Any]:
        """Return the payload of a J or E frame. Raises RunnerError (code Protocol) if it is not one JSON object."""
        try:
            value = _DECODER.decode(self.payload.decode(errors="surrogatepass"))
        except (ValueError, RecursionError) as error:  # a hostile runner may nest JSON too deeply
            raise RunnerError(f"the runner sent invalid JSON: {error}"[:300], code="Protocol") from None
        if not isinstance(value, dict):
            raise RunnerError("the runner sent JSON that is not an object", code="Protocol")
        if len(self.payload) > MAX_JSON_VALUES:  # a value takes at least one byte
            _require_few_values(value)
        return value


def encode(kind: bytes, payload: bytes) -> bytes:
    """Return one encoded frame. Raises ValueError if the payload is larger than this kind of frame may be."""
    if len(payload) > _limit(kind):
        raise ValueError(f"a frame of {len(payload)} bytes exceeds the limit of {_limit(kind)}")
    return HEADER.pack(kind, len(payload)) + payload


def encode_json(kind: bytes, value: Mapping[str, Any]) -> bytes:
    """Return one encoded J or E frame. Raises ValueError if it is too large or contains NaN or infinity."""
    return encode(kind, json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


class FrameReader:
    """Splits a byte stream, which arrives in chunks of any size, into frames. It buffers at most one frame and the last chunk."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next whole frame, or None if it is incomplete. Raises RunnerError (code Protocol) for an invalid frame."""
        if len(self._buffer) < HEADER.size:
            return None
        kind, length = HEADER.unpack_from(self._buffer)
        if kind not in _KINDS:
            raise RunnerError(f"the runner sent a frame of unknown type {kind!r}", code="Protocol")
        if length > _limit(kind):
            raise RunnerError(f"the runner sent a frame of {length} bytes (limit {_limit(kind)})", code="Protocol")
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            payload = bytes(view[HEADER.size : end])
        del self._buffer[:end]  # this is cheap, because a bytearray moves its start instead of its content
        return Frame(kind, payload)

    def __iter__(self) -> Iterator[Frame]:
        """Yield all whole frames in the buffer."""
        while (frame := self.next()) is not None:
            yield frame


def _limit(kind: bytes) -> int:
    return MAX_PAYLOAD_BYTES if kind == DATA else MAX_JSON_BYTES


def _require_few_values(value: object) -> None:
    count, level = 0, [value]
    while level:
        count += len(level)
        if count > MAX_JSON_VALUES:
            raise RunnerError(f"the runner sent JSON of more than {MAX_JSON_VALUES} values", code="Protocol")
        level = [below for each in level for below in _below(each)]


def _below(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


_FIRST_SIGNAL = 128  # a process that signal N killed has the exit status 128 + N
_WITHOUT_RESOURCES = 2  # exit status of ``runner call`` if it gets no memory, threads or file descriptors
_CHDIR = "chdir to cwd"  # runc's message has this text if it cannot enter the container's working directory
_NO_WORKDIR = (  # errors for a directory that was deleted or replaced, or whose mode permits no entry
    "no such file or directory",
    "not a directory",
    "too many levels of symbolic links",
    "file name too long",
    "permission denied",
)
# runc's message if the working directory is a link to a missing directory.
_WORKDIR_OUTSIDE = "current working directory is outside of container mount namespace root"


def ended_from_inside(code: int | None, message: str) -> bool:
    """Return whether a process in the container ended the exec session. False means that an infrastructure failure may have ended
    it.

    The result is True if a signal killed the session's process, if this process got no resources (prlimit), or if no session can
    start because the container's working directory was deleted or replaced. While the container runs, only its own processes or its
    limits cause such ends, and the report of the end shows that API server, network, kubelet and node work. All other ends may be
    infrastructure failures, e.g. status 1 (the container's process 1 does not answer) and errors of containerd or runc.

    ``code`` is the exit status of the session's process, or None if it could not be started. ``message`` is the error that the
    kubelet reported.
    """
    if code is not None:  # 255 is an error of the container runtime instead of the process's status
        return code == _WITHOUT_RESOURCES or (code > _FIRST_SIGNAL and code != 255)
    return _WORKDIR_OUTSIDE in message or (_CHDIR in message and any(each in message for each in _NO_WORKDIR))


CLOSE_TIMEOUT_SECONDS = 5.0

Moved = Callable[[Literal["up", "down"], int], object]  # called with the direction ("up" is to the pod) and the number of bytes


class Stream(Protocol):
    """The exec stream of a session, which multistep.kube.exec implements.

    Each method raises StreamLost when the stream is broken. ``receive`` returns b"" at an orderly end.
    """

    async def send(self, data: bytes) -> None: ...
    async def send_eof(self) -> None: ...
    async def receive(self) -> bytes: ...
    async def close(self) -> None: ...


class FrameStream:
    """Sends bytes to a runner, and receives its frames. The runner may be silent for ``timeout_seconds``."""

    def __init__(self, stream: Stream, *, timeout_seconds: float, moved: Moved) -> None:
        self._stream = stream
        self.timeout_seconds = timeout_seconds
        self._moved = moved
        self._frames = FrameReader()
        self._sending: asyncio.Timeout | None = None  # timeout of the send in progress

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises StreamLost if the stream fails or at the timeout. The timeout starts again whenever a concurrent
        ``receive`` gets data."""
        try:
            async with asyncio.timeout(self.timeout_seconds) as self._sending:
                await self._stream.send(data)
        except TimeoutError:
            raise StreamLost(f"the runner received nothing for {self.timeout_seconds:g} s") from None
        finally:
            self._sending = None
        self._moved("up", len(data))

    async def receive(self, extra_seconds: float = 0.0) -> Frame:
        """Return the next frame. ``extra_seconds`` is added to the usual timeout. Raises StreamLost if the stream ends or at the
        timeout, and RunnerError if the frame is invalid."""
        limit = self.timeout_seconds + extra_seconds
        try:
            async with asyncio.timeout(limit):
                return await self._next_frame()
        except TimeoutError:
            raise StreamLost(f"the runner was silent for {limit:g} s") from None

    async def _next_frame(self) -> Frame:
        while (frame := self._frames.next()) is None:
            data = await self._stream.receive()
            if not data:
                raise self._ended_early()
            self._moved("down", len(data))
            self._frames.feed(data)
            if self._sending is not None and not self._sending.expired():
                self._sending.reschedule(asyncio.get_running_loop().time() + self.timeout_seconds)
        return frame

    def _ended_early(self) -> StreamLost:
        """Return the error of a stream that ended early. It is ExecKilled if the exit status shows a kill from inside of the
        container."""
        message = f"the exec stream ended early{self._last_words()}"
        status = getattr(self._stream, "status", None)
        killed = status is not None and ended_from_inside(status.code, status.message)
        return ExecKilled(message) if killed else StreamLost(message)

    def _last_words(self) -> str:
        """Return the stderr of the session's process (``runner call``) as a part of a message, or ""."""
        words = str(getattr(self._stream, "exit_details", "") or "").strip()
        return f": {words[:500]}" if words else ""

    async def close(self) -> None:
        """Close the stream. A broken stream raises no error."""
        with suppress(StreamLost, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._stream.send_eof()
        with suppress(StreamLost, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._stream.close()
