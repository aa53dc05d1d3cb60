"""Split the long tests into thirds. Each run of CI runs the next third.

Tests on a cluster are divided by file, because the tests of a file share fixtures. Other tests are divided one by one. The thirds
take about the same time, according to long_seconds.json, which has the seconds that a file or a test adds to a run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zlib import crc32

from hack.paths import CACHE, ROOT
from hack.stages import Failure
from localkube.commands import capture, succeeds

ALL = (1, 2, 3)
_SECONDS = Path(__file__).with_name("long_seconds.json")
_ON_CLUSTER = ("tests/e2e/", "tests/simulated/")


def third_of(test: str) -> int:
    """Return the third, 1 to 3, of the test with this pytest id."""
    file = test.partition("::")[0]
    unit = file if file.startswith(_ON_CLUSTER) else test
    return _balanced().get(unit) or ALL[crc32(unit.encode()) % len(ALL)]


@cache
def _balanced() -> dict[str, int]:
    return balanced(json.loads(_SECONDS.read_text()))


def balanced(seconds: Mapping[str, float]) -> dict[str, int]:
    """Return the third of each key. The keys are assigned in the order of their seconds, the longest first. Each key goes to the
    third that has the fewest seconds so far."""
    found: dict[str, int] = {}
    sums = dict.fromkeys(ALL, 0.0)
    for key in sorted(seconds, key=lambda each: (-seconds[each], each)):
        found[key] = min(ALL, key=lambda each: sums[each])
        sums[found[key]] += seconds[key]
    return found


@dataclass(frozen=True)
class Choice:
    """The long tests of a run."""

    third: int = 0
    """1 to 3, or 0 for all tests."""
    why: str = ""
    """The reason, for the output."""

    @property
    def shown(self) -> str:
        return f"long tests, third {self.third} of {len(ALL)}: {self.why}" if self.third else "all long tests"

    @property
    def options(self) -> tuple[str, ...]:
        """The options of pytest that select the tests."""
        return (f"--third={self.third}",) if self.third else ()


@dataclass(frozen=True)
class Turn:
    """The record of the last third that passed on this machine. The third after it is the next to run.

    A third that failed runs again, so three runs in a row that pass have run all thirds. On a machine without a record, the number
    of commits decides, so that machines that keep no files run all thirds, too.
    """

    file: Path = CACHE / "long-third"

    def choice(self, commits: int) -> Choice:
        """Return the choice of the next third. `commits` is the number of first-parent commits of HEAD."""
        try:
            last = int(self.file.read_text())
        except (FileNotFoundError, ValueError):
            return Choice(
                commits % len(ALL) + 1, f"none has passed on this machine yet, and HEAD has {commits} first-parent commits"
            )
        return Choice(last % len(ALL) + 1, f"third {last} was the last that passed on this machine")

    def passed(self, third: int) -> None:
        """Store that this third passed."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new = self.file.with_suffix(".new")
        new.write_text(f"{third}\n")
        new.replace(self.file)


def chosen(wanted: str) -> Choice:
    """Return the choice that the make variable LONG names: ``1/3``, ``2/3``, ``3/3``, ``turn``, or empty for all tests. Raises
    Failure for any other text."""
    if not wanted:
        return Choice()
    if wanted == "turn":
        counting = ["git", "-C", str(ROOT), "rev-list", "--count", "--first-parent", "HEAD"]
        return Turn().choice(int(capture(counting)) if succeeds(counting) else 0)
    number, _, of = wanted.partition("/")
    if of != str(len(ALL)) or number not in map(str, ALL):
        raise Failure(f"LONG is {wanted!r}; it must be 1/3, 2/3, 3/3, or `turn` for the third that is next on this machine")
    return Choice(int(number), f"LONG={wanted}")
