"""Fetches excerpts of output and tests of trials that did not pass, for the report page. Limits trials, steps, bytes and time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from rich.text import Text

from multistep.api.common.plural import plural
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import parse_status
from multistep.api.trial.values import AGENT, VERIFIER
from multistep.cli.terminal import Following, print_err, print_warning
from multistep.cli.trial.output_formats import MAX_TAIL_BYTES, Piece, Wanted, pieces
from multistep.client.connection import Cluster
from multistep.client.objects import find_trial
from multistep.client.results.fetch import read_part
from multistep.errors import ClusterError, StoreError
from multistep.report.excerpts import TEST_FILES, Excerpts, FailingTest, failing_tests, visible_text
from multistep.report.rows import TrialRow
from multistep.report.stream_json import output_lines, readable_line

MAX_TRIALS: Final = 200
MAX_STEPS: Final = 3  # maximum number of steps per trial: the first ones that did not pass
TAIL_BYTES: Final = 4096  # maximum number of bytes from the end of each phase's output
AGENT_BYTES: Final = 8 * TAIL_BYTES  # the same of an agent's JSON, which is much longer than the text that is shown of it
MAX_SECONDS: Final = 300.0
_AT_ONCE: Final = 4  # concurrent requests; the operator serves at most 8 at once, from all clients together
_EACH: Final = 20  # number of trials per progress line, if stderr is not a terminal


async def read_excerpts(cluster: Cluster, rows: Sequence[TrialRow]) -> dict[str, Excerpts]:
    """Return excerpts by trial name, for the first MAX_TRIALS trials that finished without passing. A trial that cannot be read
    has none."""
    unpassed = [each for each in rows if each.state != "Active" and not each.passed]
    if not unpassed:
        return {}
    fetch = _Fetch(cluster, unpassed[:MAX_TRIALS])
    await fetch.run()
    if len(unpassed) > MAX_TRIALS:
        print_err(
            f"the page has the output of {MAX_TRIALS} of {len(unpassed)} trials without a pass: `multistep logs` shows others"
        )
    if fetch.problem:
        print_warning(f"the output of {plural(fetch.failed, 'trial')} is not on the page: {fetch.problem}")
    return fetch.found


class _Fetch:
    """Reads excerpts in parallel, until the first error."""

    def __init__(self, cluster: Cluster, rows: Sequence[TrialRow]) -> None:
        self._cluster, self._rows = cluster, rows
        self._done = 0
        self.found: dict[str, Excerpts] = {}
        """The excerpts by trial."""
        self.problem = ""
        """The first error; "" without one."""
        self.failed = 0
        """The number of trials that had no excerpts when the error occurred."""

    async def run(self) -> None:
        waiting = iter(self._rows)
        with Following(lambda: Text(self._progress)) as following:
            try:
                async with asyncio.timeout(MAX_SECONDS), asyncio.TaskGroup() as group:
                    for _ in range(_AT_ONCE):
                        group.create_task(self._work(waiting, following))
            except TimeoutError:
                self._give_up(f"reading took longer than {MAX_SECONDS:.0f} s")

    @property
    def _progress(self) -> str:
        return f"reading the output of trials without a pass: {self._done} of {len(self._rows)}"

    async def _work(self, waiting: Iterator[TrialRow], following: Following) -> None:
        for each in waiting:
            if self.problem:
                return
            try:
                if (found := await self._read(each)) is not None:
                    self.found[each.trial] = found
            except (StoreError, ClusterError) as error:  # an unavailable server or a missing permission probably affects all trials
                self._give_up(str(error))
            self._done += 1
            if self._done % _EACH == 0 or self._done == len(self._rows):
                following.line(self._progress)

    def _give_up(self, why: str) -> None:
        self.problem = self.problem or why
        self.failed = len(self._rows) - len(self.found)

    async def _read(self, row: TrialRow) -> Excerpts | None:
        trial = await find_trial(self._cluster, row.namespace, row.trial)
        status = parse_status(trial) if trial else None
        if status is None or status.results is None:
            return None
        steps = [each.name for each in row.steps if not each.passed] or [each.name for each in row.steps][-1:]
        tails: list[tuple[str, str]] = []
        tests: list[FailingTest] = []
        for piece in pieces(status, Wanted()):
            if piece.step in steps[:MAX_STEPS] and piece.phase in (AGENT, VERIFIER):
                tails += await self._tail(status, status.results, piece)
                tests += await self._tests(status, status.results, piece) if piece.phase == VERIFIER else ()
        return Excerpts(tuple(tails), tuple(tests))

    async def _tail(self, status: TrialStatus, uri: str, piece: Piece) -> list[tuple[str, str]]:
        size = AGENT_BYTES if piece.phase == AGENT else TAIL_BYTES
        for path in piece.files(status):
            if (data := await read_part(self._cluster, uri, quote(path), -size, size)) is not None:
                cut = len(data) >= size
                if piece.phase == AGENT:
                    data = b"".join(map(readable_line, output_lines(data)))
                    cut = cut or len(data) > TAIL_BYTES
                text = visible_text(data[-TAIL_BYTES:], cut=cut)
                return [(f"{piece.title}{f', last {TAIL_BYTES} bytes' if cut else ''}", text)] if text else []
        return []

    async def _tests(self, status: TrialStatus, uri: str, piece: Piece) -> list[FailingTest]:
        """Return the failing tests of a step. A file of MAX_TAIL_BYTES or more is skipped, because its data would be cut off."""
        for path in piece.files(status):
            for name in TEST_FILES:
                file = f"{path.rpartition('/')[0]}/{name}"
                data = await read_part(self._cluster, uri, quote(file), 0, MAX_TAIL_BYTES)
                if data is not None and len(data) < MAX_TAIL_BYTES:
                    return await asyncio.to_thread(failing_tests, piece.step, name, data)
        return []
