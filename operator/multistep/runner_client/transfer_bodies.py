"""Sends and receives the bodies of uploads and downloads, which are tar streams in frames that end with size and digest."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from multistep.api.trial.runner_records import Fields
from multistep.errors import RunnerError, StreamLost
from multistep.runner_client.exchange import Refusal
from multistep.runner_client.frame_stream import DATA, END, Frame, FrameStream, encode, encode_json

UPLOAD_CHUNK_BYTES = 256 * 1024  # small enough to share a connection fairly, and large enough for little overhead

Body = AsyncIterable[bytes] | Iterable[bytes] | bytes
Sink = Callable[[bytes], Awaitable[None] | None]


@dataclass(frozen=True)
class DownloadResult:
    """The result of a download."""

    types: tuple[str, ...]
    """The type of each source, which is file, directory, missing or other."""
    size: int
    """Size of the tar stream in bytes. Like ``sha256``, the size is verified unless the stream was cut."""
    sha256: str
    changed: tuple[str, ...] = ()
    """Names of members that changed while the runner read them."""
    unreadable: tuple[str, ...] = ()
    """Names of members that the runner could not read."""
    cut: str = ""
    """Why the stream ended early, or "". After a cut, the session is unusable."""


async def send_body(frames: FrameStream, chunks: Body) -> None:
    """Send the chunks as a body. If ``chunks`` raises an error, abort the body, so that the runner discards it."""
    digest, size, last = hashlib.sha256(), 0, b""
    try:
        async for chunk in _pieces(chunks):
            if last:
                await frames.send(last)
            digest.update(chunk)
            size += len(chunk)
            last = encode(DATA, chunk)
    except (StreamLost, asyncio.CancelledError):
        raise
    except Exception as error:
        await _abort_body(frames, error)
        raise
    await frames.send(last + encode_json(END, {"size": size, "sha256": digest.hexdigest()}))  # one message for most uploads


async def _abort_body(frames: FrameStream, error: Exception) -> None:
    """Abort the body, so that the runner discards the received part."""
    with suppress(StreamLost):
        await frames.send(encode_json(END, {"size": 0, "sha256": "", "error": str(error)[:1000]}))


async def receive_body(frames: FrameStream, types: tuple[str, ...], sink: Sink, max_bytes: int | None) -> DownloadResult:
    """Pass a download's body to ``sink``. Raises RunnerError if the body exceeds ``max_bytes``, and StreamLost if the body's digest
    differs.

    An empty D frame is a keep-alive of a runner that has nothing to send yet.
    """
    digest, size = hashlib.sha256(), 0
    while (frame := await frames.receive()).kind == DATA:
        if not frame.payload:
            continue
        size += len(frame.payload)
        if max_bytes is not None and size > max_bytes:
            raise RunnerError(f"the runner sent more than {max_bytes} bytes", code="TooLarge")
        digest.update(frame.payload)
        written = sink(frame.payload)
        if inspect.isawaitable(written):
            await written
    return _body_end(frame, DownloadResult(types=types, size=size, sha256=digest.hexdigest()))


async def _pieces(chunks: Body) -> AsyncIterator[bytes]:
    """Yield the chunks as pieces of UPLOAD_CHUNK_BYTES, because a tar writer yields many chunks of 512 bytes."""
    pending: list[bytes] = []
    size = 0
    async for chunk in _chunks(chunks):
        for start in range(0, len(chunk), UPLOAD_CHUNK_BYTES):
            piece = chunk[start : start + UPLOAD_CHUNK_BYTES]
            if size + len(piece) > UPLOAD_CHUNK_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
            pending.append(piece)
            size += len(piece)
    if pending:
        yield b"".join(pending)


async def _chunks(chunks: Body) -> AsyncIterator[bytes]:
    if isinstance(chunks, bytes):
        yield chunks
    elif isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
    else:
        for chunk in chunks:
            yield chunk


def _body_end(frame: Frame, got: DownloadResult) -> DownloadResult:
    if frame.kind != END:
        raise RunnerError(f"the runner sent a frame {frame.kind!r} inside a body", code="Protocol")
    end = Fields(frame.json(), "end of a body")
    error = end.optional_text("error")
    if error:
        raise Refusal(RunnerError(f"the runner could not send the whole body: {error[:500]}", code="Download"))
    if (end.integer("size"), end.text("sha256", 64)) != (got.size, got.sha256):
        raise StreamLost(f"the received {got.size} bytes do not match the size or digest that the runner sent")
    changed, unreadable = end.texts("changed", 100_000), end.texts("unreadable", 100_000)
    return DownloadResult(got.types, got.size, got.sha256, changed, unreadable)
