"""An exec session with a pod's runner, which answers framed requests over one exec stream in order.

The answers come from a container with hostile code, so every size is limited and every await has a timeout. A broken session raises
``StreamLost``. Only a new session can find out which requests were executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Self

from multistep.api.trial.runner_records import Fields, Hello, Record
from multistep.engine.journal.operations import ResetDirectory, Source
from multistep.engine.journal.results_limits import LargeFile
from multistep.errors import CollectionCut, NoCommonProtocol, PodError, RunnerError
from multistep.runner_client import exchange as runner_answers
from multistep.runner_client.checkpoint_requests import CheckpointRequests
from multistep.runner_client.exchange import Exchanges, Printed
from multistep.runner_client.frame_stream import FrameStream, Moved, Stream
from multistep.runner_client.transfer_bodies import Body, DownloadResult, Sink, receive_body, send_body

PROTOCOLS = (5, 4, 3, 2, 1)  # supported protocol versions, because pods that an earlier release created may have an older runner
OUTPUT_PROTOCOL = 2  # first protocol version with the ``output`` request
ANSWER_TIMEOUT_SECONDS = 60.0


class Session(CheckpointRequests):
    """An exec session with a runner. Call ``hello`` first. Concurrent requests are sent one after the other.

    ``pod_uid`` is the UID of the expected pod. During a request, the runner may be silent for ``answer_timeout_seconds``. ``moved``
    is called with the direction and the number of bytes after each transfer.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        pod_uid: str,
        answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS,
        moved: Moved = lambda _direction, _bytes: None,
    ) -> None:
        self._pod_uid = pod_uid
        self.protocol = min(PROTOCOLS)  # until hello negotiates another version
        self._frames = FrameStream(stream, timeout_seconds=answer_timeout_seconds, moved=moved)
        self._exchanges = Exchanges(self._frames)

    def with_host(self, key: str) -> Session:
        """Return a session with the agent host's runner, which has this key, through this session. The protocol of this session
        must be HOST_PROTOCOL or later. The new session supports only requests without a body, and ends with this session."""
        session = copy(self)
        session._exchanges = self._exchanges.with_host(key)
        return session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def hello(self, *, records: bool = True, users: Iterable[str] = ()) -> Hello:
        """Negotiate the protocol version, and return the runner's greeting with its records.

        Raises PodError if the pod's UID is not the expected one, and NoCommonProtocol if the runner supports none of PROTOCOLS.
        Without ``records``, the runner need not send them, but runners of earlier releases do. The greeting has the ids of
        ``users``.
        """
        hello = Hello.from_json(await self._greet(records=records, users=users))
        if hello.protocol not in PROTOCOLS:
            raise RunnerError(f"the runner chose protocol {hello.protocol}, which was not offered", code="Protocol")
        if hello.pod_uid != self._pod_uid:
            raise PodError(f"the runner is in pod {hello.pod_uid[:64]!r}, not in {self._pod_uid!r}; retrying")
        self.protocol = hello.protocol
        return hello

    async def _greet(self, *, records: bool, users: Iterable[str]) -> dict[str, Any]:
        try:
            request: dict[str, Any] = {"op": "hello", "protocols": list(PROTOCOLS)}
            request |= ({} if records else {"records": False}) | ({"users": names} if (names := sorted(users)) else {})
            return await self._exchanges.ask(request)
        except RunnerError as error:
            if error.code != "Refused":
                raise
            ours = ", ".join(map(str, PROTOCOLS))
            raise NoCommonProtocol(f"{error}, this operator {ours}: run an operator of a release in between") from None

    async def start(self, spec: Mapping[str, Any], wait_seconds: float | None = None) -> Record:
        """Start a command as a phase, and return its record. With ``wait_seconds``, wait for its result as ``wait`` does.

        ``spec`` has the request's fields except ``op``.
        """
        return await self._start("start", spec, wait_seconds)

    async def healthcheck(self, spec: Mapping[str, Any], wait_seconds: float | None = None) -> Record:
        """Start a healthcheck, in which the runner retries a command until it succeeds. Parameters and result are those of
        ``start``."""
        return await self._start("healthcheck", spec, wait_seconds)

    async def wait(self, id: str, timeout_seconds: float) -> Record:
        """Return an operation's record as soon as the operation has finished, or after ``timeout_seconds`` its current record."""
        answer = await self._exchanges.ask(runner_answers.wait(id, timeout_seconds), extra_seconds=max(0.0, timeout_seconds))
        return runner_answers.record(answer, id)

    async def output(self, id: str, offset: int, max_bytes: int) -> Printed:
        """Return a part of a phase's output, from the byte ``offset`` on. This needs OUTPUT_PROTOCOL or later."""
        answer = await self._exchanges.ask({"op": "output", "id": id, "offset": offset, "maxBytes": max_bytes})
        return runner_answers.printed(answer, max_bytes)

    def ack(self, id: str) -> None:
        """Acknowledge a record's result. The acknowledgement is sent with the next request, or by ``close``."""
        self._exchanges.ack(id)

    def seen(self, record: Record) -> Record:
        """Return the record, and acknowledge its result, because the pod is not ready until every result of a phase is
        acknowledged."""
        if record.done and not record.acknowledged:
            self.ack(record.id)
        return record

    async def operate(self, op: str, spec: Mapping[str, Any]) -> Record:
        """Perform an operation of type ``op``, and return its record. ``spec`` has the request's other fields."""
        return runner_answers.record(await self._exchanges.ask({**spec, "op": op}), spec["id"], op)

    async def note(self, id: str, data: Mapping[str, Any]) -> Record:
        """Create a record with ``data`` (at most 64 KiB) as its result, and return it. If a record already has this id, return that
        one unchanged."""
        return await self.operate("note", {"id": id, "data": dict(data)})

    async def reset(self, id: str, directories: Iterable[ResetDirectory]) -> Record:
        """Create or empty each directory. One with ``keep`` is only created. A link or a file at its path is replaced."""
        return await self.operate("reset", {"id": id, "directories": [runner_answers.directory(each) for each in directories]})

    async def upload(self, id: str, target: str, chunks: Body, user: str = "") -> Record:
        """Extract a tar stream into the directory ``target``. ``chunks`` is not read if the runner already has a record with this
        id."""
        request = {"op": "upload", "id": id, "target": target, "user": user}
        async with self._exchanges.exchange():
            answer = await self._exchanges.request(request)
            if answer.get("proceed") is True:
                await send_body(self._frames, chunks)
                answer = await self._exchanges.answer()
        return runner_answers.record(answer, id, "upload")

    async def survey(self, sources: Sequence[Source], *, min_bytes: int, limit: int) -> tuple[LargeFile, ...]:
        """Return at most ``limit`` files of the sources that have at least ``min_bytes``. This needs protocol 2 or later."""
        request = {
            "op": "survey",
            "sources": [runner_answers.source(each) for each in sources],
            "minBytes": min_bytes,
            "limit": limit,
        }
        found = Fields(await self._exchanges.ask(request), "survey").sequence("files", limit)
        return tuple(LargeFile.from_json(each, len(sources)) for each in found)

    async def download(
        self, sources: Sequence[Source], sink: Sink, *, max_bytes: int | None = None, timeout_seconds: float | None = None
    ) -> DownloadResult:
        """Pass the tar stream of the sources to ``sink`` in chunks. Raises RunnerError if it is longer than ``max_bytes``.

        The stream's digest is verified at its end. After ``timeout_seconds``, or if the sink raises CollectionCut, the rest of the
        stream is not read. The result's ``cut`` is then the reason, and the session is unusable.
        """
        request = {"op": "download", "sources": [runner_answers.source(each) for each in sources]}
        async with self._exchanges.exchange():
            types = runner_answers.types(await self._exchanges.request(request), len(sources))
            try:
                async with asyncio.timeout(timeout_seconds):
                    return await receive_body(self._frames, types, sink, max_bytes)
            except CollectionCut as cut:
                result = DownloadResult(types, 0, "", cut=str(cut))
            except TimeoutError:
                result = DownloadResult(types, 0, "", cut=f"it took longer than {timeout_seconds:g} s")
        self._exchanges.give_up("a download was cut off")
        return result

    async def close(self) -> None:
        """Send pending acknowledgements if possible, and close the session. A broken stream raises no error."""
        await self._exchanges.close()

    async def _start(self, op: str, spec: Mapping[str, Any], wait_seconds: float | None) -> Record:
        """Send the start and wait requests in one write. Most phases finish at once, so this saves a round trip."""
        start = {**spec, "op": op}
        if wait_seconds is None:
            return runner_answers.record(await self._exchanges.ask(start), spec["id"], op)
        answer = await self._exchanges.ask(start, runner_answers.wait(spec["id"], wait_seconds), extra_seconds=wait_seconds)
        return runner_answers.record(answer, spec["id"], op)
