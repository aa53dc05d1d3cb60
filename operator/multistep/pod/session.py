"""A session with a pod's runner: framed requests, answered in their order, over one exec stream.

The answers come from a container with hostile code in it: every size is bounded, every await has a time limit, and
whatever breaks the conversation is a ``StreamLost``, after which only a new session can tell what happened.
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
from multistep.engine.direct import Large
from multistep.engine.exec_ends import ended_from_inside
from multistep.engine.operations import Directory, Source
from multistep.errors import CollectionCut, ExecKilled, NoCommonProtocol, PodError, RunnerError, StreamLost
from multistep.pod import answers
from multistep.pod.answers import Printed
from multistep.pod.frames import DATA, END, MESSAGE, Frame, FrameReader, encode, encode_json

PROTOCOLS = (2, 1)  # with that of the release before, whose runners live in the pods that it made
OUTPUT_PROTOCOL = 2  # from this on there is the op output
ANSWER_TIMEOUT_SECONDS = 60.0
CLOSE_TIMEOUT_SECONDS = 5.0
UPLOAD_CHUNK_BYTES = 256 * 1024  # small enough to share a connection, large enough to cost nothing

Body = AsyncIterable[bytes] | Iterable[bytes] | bytes
Sink = Callable[[bytes], Awaitable[None] | None]
Moved = Callable[[Literal["up", "down"], int], object]  # to or from the pod


class Stream(Protocol):
    """What a session needs of an exec stream (multistep.cluster.exec has the real one).

    Each method raises StreamLost when the stream broke; ``receive`` returns b"" at an orderly end.
    """

    async def send(self, data: bytes) -> None: ...
    async def send_eof(self) -> None: ...
    async def receive(self) -> bytes: ...
    async def close(self) -> None: ...


@dataclass(frozen=True)
class DownloadResult:
    """What a download brought. size and sha256 are of the tar stream, and were verified.

    types: one of file, directory, missing, other, for each source; changed, unreadable: member names. cut: why the stream
    ended early, "" if it did not; then size and sha256 were not verified, and the session is at an end.
    """

    types: tuple[str, ...]
    size: int
    sha256: str
    changed: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    cut: str = ""


class Session:
    """One conversation with a runner. Begin with hello. Requests of several tasks wait for one another.

    pod_uid: of the pod that is meant. answer_timeout_seconds: how long the runner may be silent in an exchange.
    moved: told of all bytes that went.
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
        self._held: list[bytes] = []  # requests that go with the next one
        self._lost = ""  # why nothing more can be asked in this session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def hello(self, *, records: bool = True) -> Hello:
        """Agree on a protocol, and learn of all that was done.

        Raises PodError when this is not the pod that was meant, NoCommonProtocol when the runner speaks none of ours.
        records: False by who needs none (an older runner sends them all the same).
        """
        hello = Hello.from_json(await self._greet(records=records))
        if hello.protocol not in PROTOCOLS:
            raise RunnerError(f"the runner chose protocol {hello.protocol}, which was not offered", code="Protocol")
        if hello.pod_uid != self._pod_uid:
            raise PodError(f"the runner is in pod {hello.pod_uid[:64]!r}, not in {self._pod_uid!r}: look again")
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
        """Run a command as a phase. spec: the request's fields but ``op``. Returns at once, mostly with it running; or as wait."""
        return await self._begin("start", spec, wait_seconds)

    async def healthcheck(self, spec: Mapping[str, Any], wait_seconds: float | None = None) -> Record:
        """Try a command until it succeeds. spec: the request's fields but ``op``. Returns as start does."""
        return await self._begin("healthcheck", spec, wait_seconds)

    async def wait(self, id: str, timeout_seconds: float) -> Record:
        """The record as soon as it is done, or as it is after timeout_seconds."""
        return answers.record(await self._ask(answers.wait(id, timeout_seconds), extra_seconds=max(0.0, timeout_seconds)), id)

    async def output(self, id: str, offset: int, max_bytes: int) -> Printed:
        """A part of what a phase printed, from offset on; changes nothing. Only if hello agreed on OUTPUT_PROTOCOL or later."""
        answer = await self._ask({"op": "output", "id": id, "offset": offset, "maxBytes": max_bytes})
        return answers.printed(answer, max_bytes)

    def ack(self, id: str) -> None:
        """Say that the result is in safe hands: together with the next request, or when the session is closed."""
        self._held.append(encode_json(MESSAGE, {"op": "ack", "id": id}))

    def seen(self, record: Record) -> Record:
        """The record; if it is of a result that nobody acknowledged, that is done: it makes the pod ready again."""
        if record.done and not record.acknowledged:
            self.ack(record.id)
        return record

    async def note(self, id: str, data: Mapping[str, Any]) -> Record:
        """Keep data (at most 64 KiB) as the result of a record. The first one wins."""
        return await self._ask_record("note", {"id": id, "data": dict(data)})

    async def reset(self, id: str, directories: Iterable[Directory]) -> Record:
        """Make each directory an empty, real directory."""
        return await self._ask_record("reset", {"id": id, "directories": [answers.directory(each) for each in directories]})

    async def upload(self, id: str, target: str, chunks: Body, user: str = "") -> Record:
        """Merge a tar stream into the directory target. chunks is not read when the runner has it already."""
        request = {"op": "upload", "id": id, "target": target, "user": user}
        async with self._exchange():
            answer = await self._request(request)
            if answer.get("proceed") is True:
                await self._send_body(chunks)
                answer = await self._answer()
        return answers.record(answer, id, "upload")

    async def survey(self, sources: Sequence[Source], *, min_bytes: int, limit: int) -> tuple[Large, ...]:
        """Files of at least so many bytes among what a download of the sources would bring. Since protocol 2."""
        request = {"op": "survey", "sources": [answers.source(each) for each in sources], "minBytes": min_bytes, "limit": limit}
        found = Fields(await self._ask(request), "survey").sequence("files", limit)
        return tuple(Large.from_json(each, len(sources)) for each in found)

    async def send(self, spec: Mapping[str, Any]) -> Record:
        """Begin to send a file to an address. spec: the request's fields but ``op``. Since protocol 2."""
        return await self._ask_record("send", spec)

    async def download(
        self, sources: Sequence[Source], sink: Sink, *, max_bytes: int | None = None, timeout_seconds: float | None = None
    ) -> DownloadResult:
        """Give the tar stream of sources to sink, chunk by chunk. max_bytes: beyond it the session is given up.

        What the sink got is only to be believed once this returned. After timeout_seconds, or when the sink raises CollectionCut,
        the rest of the stream is not read: the result has ``cut``, and this session can do nothing more.
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
        """End the session in an orderly way where possible; never raises for a broken stream."""
        if self._held and not self._lost:
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
        """A turn to speak. Left in the middle (error, cancellation), the session is at an end: answers would be
        taken for those to other questions."""
        async with self._turn:
            if self._lost:
                raise StreamLost(f"the session cannot be used any more: {self._lost}")
            self._lost = "an exchange was broken off"
            try:
                yield
            except _Refusal as refusal:
                self._lost = ""  # an answer like any other
                raise refusal.error from None
            except (StreamLost, RunnerError) as error:
                self._lost = str(error)
                raise
            self._lost = ""

    async def _begin(self, op: str, spec: Mapping[str, Any], wait_seconds: float | None) -> Record:
        """Begin and wait by one write: most phases are over in a moment, and each message takes the whole way to the pod."""
        begin = {**spec, "op": op}
        if wait_seconds is None:
            return answers.record(await self._ask(begin), spec["id"], op)
        answer = await self._ask(begin, answers.wait(spec["id"], wait_seconds), extra_seconds=wait_seconds)
        return answers.record(answer, spec["id"], op)

    async def _ask_record(self, op: str, spec: Mapping[str, Any]) -> Record:
        return answers.record(await self._ask({**spec, "op": op}), spec["id"], op)

    async def _ask(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        async with self._exchange():
            return await self._request(*requests, extra_seconds=extra_seconds)

    async def _request(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        """What is held, then requests, by one write. Returns the answer to the last one; none of the others is kept, as a pod may
        send large ones. A refusal is raised when all have answered; who refuses an acknowledgement is not talked to any more."""
        frames, held = [_frame(each) for each in requests], self._held
        self._held = []
        await self._send(b"".join([*held, *frames]))
        for _ in held:
            await self._ack_taken()
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

    async def _ack_taken(self) -> None:
        try:
            await self._answer()
        except _Refusal as refusal:
            raise RunnerError(f"the runner takes no acknowledgement: {refusal}", code="Protocol") from None

    async def _answer(self, extra_seconds: float = 0.0) -> dict[str, Any]:
        frame = await self._receive(extra_seconds)
        if frame.kind != MESSAGE:
            raise RunnerError(f"the runner sent {frame.kind!r} where an answer belongs", code="Protocol")
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
            await self._give_up_body(error)
            raise
        await self._send(encode_json(END, {"size": size, "sha256": digest.hexdigest()}))

    async def _give_up_body(self, error: Exception) -> None:
        """Tell the runner that no more comes, so that it forgets what came."""
        with suppress(StreamLost):
            await self._send(encode_json(END, {"size": 0, "sha256": "", "error": str(error)[:1000]}))

    async def _receive_body(self, types: tuple[str, ...], sink: Sink, max_bytes: int | None) -> DownloadResult:
        digest, size = hashlib.sha256(), 0
        while (frame := await self._receive()).kind == DATA:
            size += len(frame.payload)
            if max_bytes is not None and size > max_bytes:
                raise RunnerError(f"more than {max_bytes} bytes were sent", code="TooLarge")
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
            raise StreamLost(f"the runner took nothing for {self._timeout:g} s") from None
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
        """What the end of the stream means by the status that the kubelet gave the process, if any did."""
        message = f"the exec stream ended early{self._last_words()}"
        status = getattr(self._stream, "status", None)
        killed = status is not None and ended_from_inside(status.code, status.message)
        return ExecKilled(message) if killed else StreamLost(message)

    def _last_words(self) -> str:
        """What the relay said on stderr, where the stream keeps it."""
        words = str(getattr(self._stream, "exit_details", "") or "").strip()
        return f": {words[:500]}" if words else ""


class _Refusal(Exception):
    """The runner answered ok: false; the session goes on."""

    def __init__(self, error: RunnerError) -> None:
        super().__init__(str(error))
        self.error = error


async def _pieces(chunks: Body) -> AsyncIterator[bytes]:
    """The body in pieces of UPLOAD_CHUNK_BYTES: tar writers make many of 512 bytes, others one of all."""
    held: list[bytes] = []
    size = 0
    async for chunk in _chunks(chunks):
        for start in range(0, len(chunk), UPLOAD_CHUNK_BYTES):
            piece = chunk[start : start + UPLOAD_CHUNK_BYTES]
            if size + len(piece) > UPLOAD_CHUNK_BYTES:
                yield b"".join(held)
                held, size = [], 0
            held.append(piece)
            size += len(piece)
    if held:
        yield b"".join(held)


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
    except ValueError as error:  # nothing was sent: the session goes on
        raise _Refusal(RunnerError(f"{request['op']} cannot be sent: {error}", code="TooLarge")) from None


def _body_end(frame: Frame, got: DownloadResult) -> DownloadResult:
    if frame.kind != END:
        raise RunnerError(f"the runner sent {frame.kind!r} inside a body", code="Protocol")
    end = Fields(frame.json(), "end of a body")
    error = end.optional_text("error")
    if error:
        raise _Refusal(RunnerError(f"the runner could not send all: {error[:500]}", code="Download"))
    if (end.integer("size"), end.text("sha256", 64)) != (got.size, got.sha256):
        raise StreamLost(f"{got.size} bytes came, with another size or digest than the runner sent")
    changed, unreadable = end.texts("changed", 100_000), end.texts("unreadable", 100_000)
    return DownloadResult(got.types, got.size, got.sha256, changed, unreadable)
