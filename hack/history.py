"""History of test failures on this machine, stored in the cache."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hack.paths import CACHE, ROOT
from localkube.locking import exclusive

FILE = CACHE / "test-history.json"
RUNS = 20
_STARTED = datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class TestRun:
    """One test run of a make target.

    ``failed`` has "failed" or "flaky" by test id, ``totals`` the counts by "passed", "failed", "flaky" and so on, and ``seconds``
    the durations by test file.
    """

    started: str
    checkout: str
    failed: dict[str, str] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """The recorded test runs.

    If ``continued``, `add` extends this checkout's newest run, even if another process started it. Otherwise, `add` extends only
    the run of this process. If no such run exists, `add` creates one.
    """

    file: Path = FILE
    checkout: str = str(ROOT)
    started: str = _STARTED
    continued: bool = False

    def add(self, failed: Mapping[str, str], totals: Mapping[str, int], seconds: Mapping[str, float] | None = None) -> TestRun:
        """Add the results of one stage to the current run (see `continued`), and return the run with the results of all stages."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(self.file.with_suffix(".lock")):
            runs = self.runs()
            mine = next((each for each in reversed(runs) if self._is_mine(each)), None)
            if mine is None:
                runs.append(mine := TestRun(self.started, self.checkout))
            mine.failed |= failed
            mine.seconds |= seconds or {}
            mine.totals = dict(Counter(mine.totals) + Counter(totals))
            self._write(runs[-RUNS:])
        return mine

    def runs(self) -> list[TestRun]:
        """Return the runs, oldest first, or [] if the file is missing or damaged."""
        try:
            return [TestRun(**each) for each in json.loads(self.file.read_text())]
        except (FileNotFoundError, ValueError, TypeError):
            return []

    def newest_start(self) -> str:
        """Return the start time, in ISO format, of the run that `add` extends. If no such run exists, return that of this
        process."""
        return next((each.started for each in reversed(self.runs()) if self._is_mine(each)), self.started)

    def seconds(self) -> dict[str, float]:
        """Return the duration in seconds of each test file in its last run."""
        found: dict[str, float] = {}
        for run in self.runs():
            found |= run.seconds
        return found

    def _is_mine(self, run: TestRun) -> bool:
        return run.checkout == self.checkout and (self.continued or run.started == self.started)

    def _write(self, runs: Sequence[TestRun]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps([asdict(each) for each in runs], indent=1))
        new.replace(self.file)


def table(runs: Sequence[TestRun]) -> list[str]:
    """Return table lines of the tests that failed in the last runs, most failures first."""
    failures = Counter(test for run in runs for test in run.failed)
    if not failures:
        return [f"    no test failed in the last {len(runs)} runs"]
    lines = [f"    {'failed':>6}  {'flaky':>5}  {'last':<10}  in the last {len(runs)} runs"]
    for test, _ in failures.most_common():
        mine = [run for run in runs if test in run.failed]
        kinds = Counter(run.failed[test] for run in mine)
        lines.append(f"    {kinds['failed']:>6}  {kinds['flaky']:>5}  {mine[-1].started[:10]}  {test}")
    return lines
