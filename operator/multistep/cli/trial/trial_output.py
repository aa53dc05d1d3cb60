"""Reads a trial's output: from the runner while the pod exists, afterwards from the results."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

from multistep.api.conditions import is_finished
from multistep.api.trial_status import TrialStatus
from multistep.cli.cluster import Cluster
from multistep.cli.terminal import print_err
from multistep.cli.trial.fetch import read_part
from multistep.cli.trial.pieces import Piece, Wanted, pieces
from multistep.cli.trial.printing import MAX_TAIL_BYTES, Form, Tail
from multistep.engine.journal import HEALTHCHECK, VERIFIER
from multistep.errors import ClusterError, PodError, RunnerError, Unavailable, UsageError
from multistep.pods import identity
from multistep.pods import manifest as pods
from multistep.runner_client.session import OUTPUT_PROTOCOL, Session

PART_BYTES: Final = 256 * 1024
SESSION_SECONDS: Final = 10.0  # kept short: an exec session occupies memory of the API server, and proxies cut long ones
ANSWER_SECONDS: Final = 20.0


class Reader:
    """Shows new output at each poll. tail: how many of the last lines of each piece to start with; None for all lines."""

    def __init__(self, cluster: Cluster, namespace: str, wanted: Wanted, form: Form, tail: int | None = None) -> None:
        self._cluster, self._namespace, self._wanted = cluster, namespace, wanted
        self._form, self._tail = form, tail
        self._offsets: dict[Piece, int] = {}
        self._finished: set[Piece] = set()
        self._passed: set[Piece] = set()  # not in the pod; the results may have them
        self._printed_notes: set[str] = set()
        self._since: int | None = None  # the latest attempt at the first poll
        self.shown = 0  # number of bytes shown

    async def show_new(self, status: TrialStatus) -> None:
        """Show new output. Raises PodError or Unavailable if a retry may succeed, UsageError if the output cannot be read."""
        self._since = self._since or status.attempt
        todo = [each for each in pieces(status, self._wanted, self._since) if each not in self._finished]
        if is_finished(status):
            await self._of_results(status, todo)
        else:
            self._give_up([each for each in todo if each.attempt != status.attempt])
            here = [each for each in todo if each.attempt == status.attempt and each not in self._passed]
            if status.pod_name and status.pod_uid and here:
                await self._of_pod(status.pod_name, status.pod_uid, here)
            if (apart := status.verifier) and apart.pod_uid and (last := [each for each in here if each.phase == VERIFIER][-1:]):
                await self._of_pod(apart.pod_name, apart.pod_uid, last, apart=True)

    def _give_up(self, lost: list[Piece]) -> None:
        """Skip the output of an earlier attempt, whose results can be read only when the trial has finished."""
        if lost and self._wanted.follow and any(each in self._offsets for each in lost):
            self._print_once(f"attempt {lost[0].attempt} finished and its pod was deleted: its last output is not shown")
            self._finished.update(lost)
        elif lost and not self._wanted.follow:
            self._print_once("the output of earlier attempts can be read when the trial has finished")

    # -- the runner

    async def _of_pod(self, pod: str, uid: str, todo: list[Piece], *, apart: bool = False) -> None:
        try:
            async with asyncio.timeout(SESSION_SECONDS + ANSWER_SECONDS), self._session(pod, uid) as session:
                await self._read_all(session, todo, apart=apart)
        except TimeoutError:
            raise Unavailable(f"pod {pod} does not answer") from None
        except ClusterError as error:
            if error.status != 403:
                raise
            raise UsageError(
                f"reading what a running pod prints needs the right to exec into it (get and create on pods/exec in namespace "
                f"{self._namespace!r}), which you lack; without it logs can be read when the trial has finished: docs/logs.md"
            ) from error

    @asynccontextmanager
    async def _session(self, pod: str, uid: str) -> AsyncIterator[Session]:
        """Open an additional exec session, which only reads output."""
        stream = await self._cluster.open_exec(self._namespace, pod, identity.CONTAINER, pods.RUNNER_CALL)
        async with Session(stream, pod_uid=uid, answer_timeout_seconds=ANSWER_SECONDS) as session:
            if (await session.hello(records=False)).protocol < OUTPUT_PROTOCOL:
                raise UsageError(
                    f"the runner in pod {pod} is of an earlier release: its logs can be read when the trial has finished"
                )
            yield session

    async def _read_all(self, session: Session, todo: list[Piece], *, apart: bool) -> None:
        unknown: list[Piece] = []
        until = asyncio.get_running_loop().time() + SESSION_SECONDS
        for piece in todo:
            try:
                whole = await self._read(session, piece, until, apart=apart)
            except RunnerError as error:
                if error.code != "NotFound":
                    raise
                unknown.append(piece)
                continue
            self._passed.update(unknown)
            if not whole:
                return
            self._form.end()
            self._finished.add(piece)

    async def _read(self, session: Session, piece: Piece, until: float, *, apart: bool) -> bool:
        """Show the new output of one piece. Return whether the piece is complete."""
        id, tail = piece.id(apart=apart), self._new_tail(piece)
        offset = self._offsets.get(piece, 0)
        if tail is not None:
            offset = max(0, (await session.output(id, 0, 1)).size - MAX_TAIL_BYTES)
        while True:
            printed = await session.output(id, offset, PART_BYTES)
            if piece.phase == HEALTHCHECK and not printed.done:
                return False  # each try of the healthcheck replaces the output: show only that of the last try
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

    # -- the results

    async def _of_results(self, status: TrialStatus, todo: list[Piece]) -> None:
        if status.results is None:
            return
        for piece in todo:
            for path in piece.files(status.attempt or 1):
                if await self._read_stored(status.results, path, piece):
                    break
            self._form.end()
            self._finished.add(piece)

    async def _read_stored(self, uri: str, path: str, piece: Piece) -> bool:
        """Show the rest of a stored file. Return False if the file does not exist."""
        tail, offset = self._new_tail(piece), self._offsets.get(piece, 0)
        if tail is not None:
            offset = -MAX_TAIL_BYTES
        elif offset and not path.endswith(("oracle.txt", "command.txt", "test-stdout.txt")):
            return True  # these files contain only the end of the output, which was already shown
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

    # -- showing

    def _new_tail(self, piece: Piece) -> Tail | None:
        return Tail(self._tail) if self._tail is not None and piece not in self._offsets else None

    def _show(self, piece: Piece, data: bytes, tail: Tail | None) -> None:
        if tail is not None:
            tail.take(data)
        elif data:
            self._form.start(piece)
            self._form.show(data)
            self.shown += len(data)
            sys.stdout.flush()

    def _print_once(self, text: str) -> None:
        if text not in self._printed_notes:
            self._printed_notes.add(text)
            print_err(text)


LATER = (PodError, ClusterError)  # the pod may be starting or ending, or the connection broken: retry
