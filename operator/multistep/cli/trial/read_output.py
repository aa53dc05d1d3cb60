"""Reads a trial's output: from the runner until the trial finishes, afterwards from the results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from itertools import groupby
from typing import Final
from urllib.parse import quote

from multistep.api.trial.status import TrialStatus, is_finished
from multistep.api.trial.trial import parse_status
from multistep.api.trial.values import AGENT, HEALTHCHECK, VERIFIER
from multistep.cli.terminal import print_err
from multistep.cli.trial.output_formats import MAX_TAIL_BYTES, Form, Piece, Tail, Wanted, pieces
from multistep.client.connection import Cluster
from multistep.client.objects import existing_trial
from multistep.client.results.fetch import read_file, read_part
from multistep.engine.journal.operations import Place
from multistep.engine.plan.plan_services import container_name
from multistep.errors import ClusterError, PodError, RunnerError, Unavailable, UsageError
from multistep.pods import agent_host, pod_identity
from multistep.pods import pod_manifest as pods
from multistep.runner_client.session import OUTPUT_PROTOCOL, Session
from multistep.store.harbor.trial_files import service_log

PART_BYTES: Final = 256 * 1024
SESSION_SECONDS: Final = 10.0  # maximum length of an exec session, which uses memory of the API server; proxies close long sessions
ANSWER_SECONDS: Final = 20.0
_WHOLE: Final = ("oracle.txt", "command.txt", "output.txt", "test-stdout.txt")  # stored files that contain a phase's whole output


class Reader:
    """Shows a trial's new output at each poll."""

    def __init__(self, cluster: Cluster, namespace: str, wanted: Wanted, form: Form, tail: int | None = None) -> None:
        """tail: the number of lines of each piece to show at its first poll, or None for all lines."""
        self._cluster, self._namespace, self._wanted = cluster, namespace, wanted
        self._form, self._tail = form, tail
        self._offsets: dict[Piece, int] = {}
        self._finished: set[Piece] = set()
        self._passed: set[Piece] = set()  # pieces that the pod's runner does not have, but perhaps the results
        self._printed_notes: set[str] = set()
        self._since: int | None = None  # latest attempt at the first poll; earlier attempts are shown only if the user selects one
        self.shown = 0  # number of bytes shown so far

    async def show_new(self, status: TrialStatus, *, hosted: bool) -> None:
        """Show new output. hosted: whether the agent host runs the agent.

        Raises one of RETRYABLE if a retry may succeed, UsageError if the output cannot be read.
        """
        self._since = self._since or status.attempt
        todo = [each for each in pieces(status, self._wanted, self._since) if each not in self._finished]
        if is_finished(status):
            await self._of_results(status, todo)
        else:
            self._give_up([each for each in todo if each.attempt != status.attempt])
            here = [each for each in todo if each.attempt == status.attempt and each not in self._passed]
            unknown: list[Piece] = []
            for place, pod, uid, those in _by_place(status, here, hosted=hosted):
                if not await self._of_pod(pod, uid, those, place, unknown):
                    break

    def _give_up(self, lost: list[Piece]) -> None:
        """Skip ``lost``, the pieces of earlier attempts: only the results contain them, which exist when the trial has finished."""
        if lost and self._wanted.follow and any(each in self._offsets for each in lost):
            self._print_once(f"attempt {lost[0].attempt} finished and its pod was deleted: its last output is not shown")
            self._finished.update(lost)
        elif lost and not self._wanted.follow:
            self._print_once("the output of earlier attempts can be read when the trial has finished")

    # -- reading from the runner

    async def _of_pod(self, pod: str, uid: str, todo: list[Piece], place: Place, unknown: list[Piece]) -> bool:
        """Show the new output of ``todo``, pieces of one runner. Return False if one of them is still being printed: later pieces
        have no output yet.

        unknown: list to which the method appends the pieces that this runner does not have.
        """
        try:
            async with asyncio.timeout(SESSION_SECONDS + ANSWER_SECONDS), self._session(pod, uid, place) as session:
                return await self._read_all(session, todo, place, unknown)
        except TimeoutError:
            raise Unavailable(f"pod {pod} does not answer") from None
        except ClusterError as error:
            if error.status != 403:
                raise
            raise UsageError(
                f"reading what a running pod prints needs the right to exec into it (get and create on pods/exec in namespace "
                f"{self._namespace!r}), which you lack; without it logs can be read after the trial: docs/how-to/logs.md"
            ) from error

    @asynccontextmanager
    async def _session(self, pod: str, uid: str, place: Place) -> AsyncIterator[Session]:
        """Open an exec session that only reads output. The operator's own session to this runner may be open at the same time."""
        hosted = place == "host"
        container, call = (agent_host.CONTAINER, agent_host.CALL) if hosted else (pod_identity.CONTAINER, pods.RUNNER_CALL)
        stream = await self._cluster.open_exec(self._namespace, pod, container, call)
        async with Session(stream, pod_uid=uid, answer_timeout_seconds=ANSWER_SECONDS) as session:
            if (await session.hello(records=False)).protocol < OUTPUT_PROTOCOL:
                raise UsageError(
                    f"the runner in pod {pod} is of an earlier release: its logs can be read when the trial has finished"
                )
            yield session

    async def _read_all(self, session: Session, todo: list[Piece], place: Place, unknown: list[Piece]) -> bool:
        """Show the new output of ``todo``. Return False if a piece is still being printed."""
        until = asyncio.get_running_loop().time() + SESSION_SECONDS
        for piece in todo:
            try:
                whole = await self._read(session, piece, until, place)
            except RunnerError as error:
                if error.code != "NotFound":
                    raise
                unknown.append(piece)
                continue
            self._passed.update(unknown)
            if not whole:
                return False
            self._form.end()
            self._finished.add(piece)
        return True

    async def _read(self, session: Session, piece: Piece, until: float, place: Place) -> bool:
        """Show the new output of one piece. Return whether the piece is complete."""
        id, tail = piece.id(place), self._new_tail(piece)
        offset = self._offsets.get(piece, 0)
        if tail is not None:
            offset = max(0, (await session.output(id, 0, 1)).size - MAX_TAIL_BYTES)
        while True:
            printed = await session.output(id, offset, PART_BYTES)
            if piece.phase == HEALTHCHECK and not printed.done:
                return False  # each retry of a healthcheck overwrites the previous output: show only the last try
            if printed.start > offset and tail is None:
                self._print_once(f"{piece.title}: {printed.start - offset} bytes were dropped in the pod")
            offset = max(offset, printed.start) + len(printed.data)
            self._show(piece, printed.data, tail)
            if not printed.data or offset >= printed.size or asyncio.get_running_loop().time() > until:
                break
        self._offsets[piece] = offset
        if tail is not None:
            self._show(piece, tail.last(), None)
        return printed.done and offset >= printed.size

    # -- reading from the stored results

    async def _of_results(self, status: TrialStatus, todo: list[Piece]) -> None:
        if status.results is None:
            return
        for piece in todo:
            for path in piece.files(status):
                if await self._read_stored(status.results, path, piece):
                    break
            self._form.end()
            self._finished.add(piece)

    async def _read_stored(self, uri: str, path: str, piece: Piece) -> bool:
        """Show the part of a stored file that was not yet shown. Return False if the file does not exist."""
        tail, offset = self._new_tail(piece), self._offsets.get(piece, 0)
        if tail is not None:
            offset = -MAX_TAIL_BYTES
        elif offset and not path.endswith(_WHOLE):
            return True  # the file contains only the end of the output, which was read from the runner and shown
        found = False
        while (part := await read_part(self._cluster, uri, quote(path), offset, MAX_TAIL_BYTES)) is not None:
            found = True
            self._show(piece, part, tail)
            offset += len(part)
            if tail is not None or len(part) < MAX_TAIL_BYTES:
                break
        if found:
            self._offsets[piece] = max(0, offset)
        if found and tail is not None:
            self._show(piece, tail.last(), None)
        return found

    # -- printing

    def _new_tail(self, piece: Piece) -> Tail | None:
        return Tail(self._tail) if self._tail is not None and piece not in self._offsets else None

    def _show(self, piece: Piece, data: bytes, tail: Tail | None) -> None:
        if tail is not None:
            tail.add(data)
        elif data:
            self._form.start(piece)
            self._form.show(data)
            self.shown += len(data)

    def _print_once(self, text: str) -> None:
        if text not in self._printed_notes:
            self._printed_notes.add(text)
            print_err(text)


def _by_place(status: TrialStatus, here: list[Piece], *, hosted: bool) -> Iterator[tuple[Place, str, str, list[Piece]]]:
    """For each runner that may have output of the pieces ``here``, yield its place, its pod, the pod's UID and the pieces
    that it may have, in order."""
    if status.pod_name and status.pod_uid:
        for of_host, those in groupby(here, lambda piece: hosted and piece.phase == AGENT):
            yield "host" if of_host else "agent", status.pod_name, status.pod_uid, list(those)
    if (apart := status.verifier) and apart.pod_uid and (last := [each for each in here if each.phase == VERIFIER][-1:]):
        yield "verifier", apart.pod_name, apart.pod_uid, last


RETRYABLE = (PodError, ClusterError)
"""Errors after which a retry may succeed, because the pod is starting or terminating, or because a connection broke."""


async def show_service(
    cluster: Cluster, namespace: str, trial: str, service: str, form: Form, *, follow: bool, tail: int | None
) -> None:
    """Show a service's output. follow: continue until the container terminates. Raises UsageError if the output cannot be read."""
    status = parse_status(await existing_trial(cluster, namespace, trial))
    if is_finished(status):
        await _stored(cluster, status.results or "", service, form, tail)
    elif status.pod_name is None:
        raise UsageError(f"trial {trial} has no pod yet")
    else:
        await _live(cluster, namespace, status.pod_name, service, form, follow=follow, tail=tail)
    form.close()


async def _live(cluster: Cluster, namespace: str, pod: str, service: str, form: Form, *, follow: bool, tail: int | None) -> None:
    try:
        read = cluster.logs(namespace, pod, container_name(service), follow=follow, tail_lines=tail)
        async with aclosing(read):
            async for chunk in read:
                form.show(chunk)
    except ClusterError as error:
        if error.status not in (400, 403, 404):
            raise
        raise UsageError(f"the output of service {service!r} in pod {pod} cannot be read: {error}") from error


async def _stored(cluster: Cluster, uri: str, service: str, form: Form, tail: int | None) -> None:
    whole = await read_file(cluster, uri, service_log(service)) if uri else None
    if whole is None:
        raise UsageError(f"the results have no output of a service {service!r}")
    lines = whole.splitlines(keepends=True)
    form.show(b"".join(lines if tail is None else lines[max(0, len(lines) - tail) :]))
