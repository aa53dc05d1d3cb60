"""An exec session with a pod's runner: framed requests over one exec stream, answered in order.

The answers come from a container with hostile code: every size is bounded, every await has a timeout. A broken session raises
``StreamLost``; only a new session can find out what happened.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from multistep.api.records import Fields, Hello, Record
from multistep.engine.direct_upload import Large
from multistep.engine.exec_ends import ended_from_inside
from multistep.engine.operations import Directory, Source
from multistep.errors import CollectionCut, ExecKilled, NoCommonProtocol, PodError, RunnerError, StreamLost
from multistep.runner_client import answers
from multistep.runner_client.answers import Printed
from multistep.runner_client.frames import DATA, END, MESSAGE, Frame, FrameReader, encode, encode_json

PROTOCOLS = (2, 1)  # the previous release's too: its runners run in pods that it created
OUTPUT_PROTOCOL = 2  # first version with the op output
ANSWER_TIMEOUT_SECONDS = 60.0
CLOSE_TIMEOUT_SECONDS = 5.0
UPLOAD_CHUNK_BYTES = 256 * 1024  # small enough to share a connection fairly, large enough for little overhead

Body = AsyncIterable[bytes] | Iterable[bytes] | bytes
Sink = Callable[[bytes], Awaitable[None] | None]
Moved = Callable[[Literal["up", "down"], int], object]  # bytes to ("up") or from ("down") the pod


class Stream(Protocol):
    """The exec stream of a session (multistep.kube.exec has the real one).

    Each method raises StreamLost when the stream is broken; ``receive`` returns b"" at an orderly end.
    """

    async def send(self, data: bytes) -> None: ...
    async def send_eof(self) -> None: ...
    async def receive(self) -> bytes: ...
    async def close(self) -> None: ...


@dataclass(frozen=True)
class DownloadResult:
    """The result of a download. size and sha256 are of the tar stream, and verified.

    types: one of file, directory, missing, other, for each source; changed, unreadable: member names. cut: why the stream
    ended early, "" if it is complete. After a cut, size and sha256 are not verified, and the session is unusable.
    """

    types: tuple[str, ...]
    size: int
    sha256: str
    changed: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    cut: str = ""


class Session:
    """One exec session with a runner. Start with hello. Concurrent requests are serialized.

    pod_uid: of the expected pod. answer_timeout_seconds: how long the runner may be silent in an exchange.
    moved: called with the number of bytes sent or received.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        pod_uid: str,
        answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS,
        moved: Moved = lambda _direction, _bytes: None,
    ) -> None:
        self._stream = stream
        self._pod_uid = pod_uid
        self._timeout = answer_timeout_seconds
        self._moved = moved
        self._frames = FrameReader()
        self._turn = asyncio.Lock()
        self._pending_acks: list[bytes] = []  # encoded acknowledgements, sent with the next request
        self._lost = ""  # why the session is unusable; "" while it is usable

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def hello(self, *, records: bool = True) -> Hello:
        """Negotiate the protocol version, and return the runner's greeting with its records.

        Raises PodError if this is another pod than expected, NoCommonProtocol if the runner supports none of PROTOCOLS.
        records: False if the caller needs no records (an older runner sends them anyway).
        """
        hello = Hello.from_json(await self._greet(records=records))
        if hello.protocol not in PROTOCOLS:
            raise RunnerError(f"the runner chose protocol {hello.protocol}, which was not offered", code="Protocol")
        if hello.pod_uid != self._pod_uid:
            raise PodError(f"the runner is in pod {hello.pod_uid[:64]!r}, not in {self._pod_uid!r}; retrying")
        return hello

    async def _greet(self, *, records: bool) -> dict[str, Any]:
        try:
            return await self._ask({"op": "hello", "protocols": list(PROTOCOLS)} | ({} if records else {"records": False}))
        except RunnerError as error:
            if error.code != "Refused":
                raise
            ours = ", ".join(map(str, PROTOCOLS))
            raise NoCommonProtocol(f"{error}, this operator {ours}: run an operator of a release in between") from None

    async def start(self, spec: Mapping[str, Any], wait_seconds: float | None = None) -> Record:
        """Start a command as a phase. spec: the request without ``op``. Return at once, or after wait_seconds as ``wait`` does."""
        return await self._start("start", spec, wait_seconds)

    async def healthcheck(self, spec: Mapping[str, Any], wait_seconds: float | None = None) -> Record:
        """Retry a command until it succeeds. spec: the request without ``op``. Return as ``start`` does."""
        return await self._start("healthcheck", spec, wait_seconds)

    async def wait(self, id: str, timeout_seconds: float) -> Record:
        """Return the record as soon as it is done, or its current state after timeout_seconds."""
        return answers.record(await self._ask(answers.wait(id, timeout_seconds), extra_seconds=max(0.0, timeout_seconds)), id)

    async def output(self, id: str, offset: int, max_bytes: int) -> Printed:
        """Return a part of a phase's output, from offset on. Needs OUTPUT_PROTOCOL or later."""
        answer = await self._ask({"op": "output", "id": id, "offset": offset, "maxBytes": max_bytes})
        return answers.printed(answer, max_bytes)

    def ack(self, id: str) -> None:
        """Acknowledge a result, together with the next request or at close."""
        self._pending_acks.append(encode_json(MESSAGE, {"op": "ack", "id": id}))

    def seen(self, record: Record) -> Record:
        """Return the record, and acknowledge an unacknowledged result: that makes the pod ready again."""
        if record.done and not record.acknowledged:
            self.ack(record.id)
        return record

    async def note(self, id: str, data: Mapping[str, Any]) -> Record:
        """Store data (at most 64 KiB) as the result of a record. The first write wins."""
        return await self._ask_record("note", {"id": id, "data": dict(data)})

    async def reset(self, id: str, directories: Iterable[Directory]) -> Record:
        """Replace each directory by an empty one that is not a link."""
        return await self._ask_record("reset", {"id": id, "directories": [answers.directory(each) for each in directories]})

    async def upload(self, id: str, target: str, chunks: Body, user: str = "") -> Record:
        """Extract a tar stream into the directory target. chunks is not read if the runner has the record already."""
        request = {"op": "upload", "id": id, "target": target, "user": user}
        async with self._exchange():
            answer = await self._request(request)
            if answer.get("proceed") is True:
                await self._send_body(chunks)
                answer = await self._answer()
        return answers.record(answer, id, "upload")

    async def survey(self, sources: Sequence[Source], *, min_bytes: int, limit: int) -> tuple[Large, ...]:
        """Return the files of at least min_bytes that a download of the sources would contain. Needs protocol 2."""
        request = {"op": "survey", "sources": [answers.source(each) for each in sources], "minBytes": min_bytes, "limit": limit}
        found = Fields(await self._ask(request), "survey").sequence("files", limit)
        return tuple(Large.from_json(each, len(sources)) for each in found)

    async def send(self, spec: Mapping[str, Any]) -> Record:
        """Start sending a file to a URL. spec: the request without ``op``. Needs protocol 2."""
        return await self._ask_record("send", spec)

    async def download(
        self, sources: Sequence[Source], sink: Sink, *, max_bytes: int | None = None, timeout_seconds: float | None = None
    ) -> DownloadResult:
        """Pass the tar stream of sources to sink, chunk by chunk. max_bytes: a longer stream raises RunnerError.

        The sink's content is verified only when this returns. After timeout_seconds, or when the sink raises CollectionCut,
        the rest of the stream is not read: the result has ``cut``, and the session is unusable.
        """
        request = {"op": "download", "sources": [answers.source(each) for each in sources]}
        async with self._exchange():
            types = answers.types(await self._request(request), len(sources))
            try:
                async with asyncio.timeout(timeout_seconds):
                    return await self._receive_body(types, sink, max_bytes)
            except CollectionCut as cut:
                result = DownloadResult(types, 0, "", cut=str(cut))
            except TimeoutError:
                result = DownloadResult(types, 0, "", cut=f"it took longer than {timeout_seconds:g} s")
        self._lost = "a download was cut off"
        return result

    async def close(self) -> None:
        """Close the session, after pending acknowledgements if possible; never raises for a broken stream."""
        if self._pending_acks and not self._lost:
            with suppress(PodError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                    await self._ask()
        self._lost = self._lost or "it was closed"
        with suppress(StreamLost, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._stream.send_eof()
        with suppress(StreamLost, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._stream.close()

    # -- one exchange

    @asynccontextmanager
    async def _exchange(self) -> AsyncIterator[None]:
        """Hold the session for one exchange. An exchange that is interrupted (error, cancellation) makes the session unusable: its
        answers would be matched to later requests."""
        async with self._turn:
            if self._lost:
                raise StreamLost(f"the session cannot be used any more: {self._lost}")
            self._lost = "an exchange was interrupted"
            try:
                yield
            except _Refusal as refusal:
                self._lost = ""  # a regular answer
                raise refusal.error from None
            except (StreamLost, RunnerError) as error:
                self._lost = str(error)
                raise
            self._lost = ""

    async def _start(self, op: str, spec: Mapping[str, Any], wait_seconds: float | None) -> Record:
        """Start and wait in one write: most phases finish at once, and each round trip to the pod is slow."""
        start = {**spec, "op": op}
        if wait_seconds is None:
            return answers.record(await self._ask(start), spec["id"], op)
        answer = await self._ask(start, answers.wait(spec["id"], wait_seconds), extra_seconds=wait_seconds)
        return answers.record(answer, spec["id"], op)

    async def _ask_record(self, op: str, spec: Mapping[str, Any]) -> Record:
        return answers.record(await self._ask({**spec, "op": op}), spec["id"], op)

    async def _ask(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        async with self._exchange():
            return await self._request(*requests, extra_seconds=extra_seconds)

    async def _request(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        """Send pending acknowledgements and requests in one write. Return the last answer; drop the others, as they may be large.
        A refusal is raised after all answers; a refused acknowledgement is a protocol violation."""
        frames, pending = [_frame(each) for each in requests], self._pending_acks
        self._pending_acks = []
        await self._send(b"".join([*pending, *frames]))
        for _ in pending:
            await self._receive_ack_answer()
        answer: dict[str, Any] = {}
        refusal: _Refusal | None = None
        for _ in frames:
            try:
                answer = await self._answer(extra_seconds)
            except _Refusal as refused:
                refusal = refusal or refused
        if refusal is not None:
            raise refusal
        return answer

    async def _receive_ack_answer(self) -> None:
        try:
            await self._answer()
        except _Refusal as refusal:
            raise RunnerError(f"the runner rejected an acknowledgement: {refusal}", code="Protocol") from None

    async def _answer(self, extra_seconds: float = 0.0) -> dict[str, Any]:
        frame = await self._receive(extra_seconds)
        if frame.kind != MESSAGE:
            raise RunnerError(f"the runner sent a frame {frame.kind!r} instead of an answer", code="Protocol")
        answer = frame.json()
        if answer.get("ok") is True:
            return answer
        raise _Refusal(answers.error(answer))

    # -- bodies

    async def _send_body(self, chunks: Body) -> None:
        digest, size = hashlib.sha256(), 0
        try:
            async for chunk in _pieces(chunks):
                digest.update(chunk)
                size += len(chunk)
                await self._send(encode(DATA, chunk))
        except (StreamLost, asyncio.CancelledError):
            raise
        except Exception as error:
            await self._abort_body(error)
            raise
        await self._send(encode_json(END, {"size": size, "sha256": digest.hexdigest()}))

    async def _abort_body(self, error: Exception) -> None:
        """Abort the body, so that the runner discards the received part."""
        with suppress(StreamLost):
            await self._send(encode_json(END, {"size": 0, "sha256": "", "error": str(error)[:1000]}))

    async def _receive_body(self, types: tuple[str, ...], sink: Sink, max_bytes: int | None) -> DownloadResult:
        digest, size = hashlib.sha256(), 0
        while (frame := await self._receive()).kind == DATA:
            size += len(frame.payload)
            if max_bytes is not None and size > max_bytes:
                raise RunnerError(f"the runner sent more than {max_bytes} bytes", code="TooLarge")
            digest.update(frame.payload)
            written = sink(frame.payload)
            if inspect.isawaitable(written):
                await written
        return _body_end(frame, DownloadResult(types=types, size=size, sha256=digest.hexdigest()))

    # -- frames

    async def _send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._stream.send(data)
        except TimeoutError:
            raise StreamLost(f"the runner received nothing for {self._timeout:g} s") from None
        self._moved("up", len(data))

    async def _receive(self, extra_seconds: float = 0.0) -> Frame:
        limit = self._timeout + extra_seconds
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
        return frame

    def _ended_early(self) -> StreamLost:
        """Return the error of a stream that ended early; ExecKilled if the exit status shows a kill from inside the container."""
        message = f"the exec stream ended early{self._last_words()}"
        status = getattr(self._stream, "status", None)
        killed = status is not None and ended_from_inside(status.code, status.message)
        return ExecKilled(message) if killed else StreamLost(message)

    def _last_words(self) -> str:
        """Return the relay's stderr, if the stream has it."""
        words = str(getattr(self._stream, "exit_details", "") or "").strip()
        return f": {words[:500]}" if words else ""


class _Refusal(Exception):
    """The runner answered ok: false; the session stays usable."""

    def __init__(self, error: RunnerError) -> None:
        super().__init__(str(error))
        self.error = error


async def _pieces(chunks: Body) -> AsyncIterator[bytes]:
    """Split or join the chunks into pieces of UPLOAD_CHUNK_BYTES: a tar writer yields many chunks of 512 bytes."""
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


def _frame(request: Mapping[str, Any]) -> bytes:
    try:
        return encode_json(MESSAGE, request)
    except ValueError as error:  # nothing was sent: the session stays usable
        raise _Refusal(RunnerError(f"{request['op']} cannot be sent: {error}", code="TooLarge")) from None


def _body_end(frame: Frame, got: DownloadResult) -> DownloadResult:
    if frame.kind != END:
        raise RunnerError(f"the runner sent a frame {frame.kind!r} inside a body", code="Protocol")
    end = Fields(frame.json(), "end of a body")
    error = end.optional_text("error")
    if error:
        raise _Refusal(RunnerError(f"the runner could not send the whole body: {error[:500]}", code="Download"))
    if (end.integer("size"), end.text("sha256", 64)) != (got.size, got.sha256):
        raise StreamLost(f"the received {got.size} bytes do not match the size or digest that the runner sent")
    changed, unreadable = end.texts("changed", 100_000), end.texts("unreadable", 100_000)
    return DownloadResult(got.types, got.size, got.sha256, changed, unreadable)
