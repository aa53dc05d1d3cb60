"""Read test outcomes that the plugin hack.pytest_outcomes wrote."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_GROUP = re.compile(r"@[\w.-]+$")  # pytest-xdist appends "@" and a test's group to the test's id


@dataclass(frozen=True)
class Outcome:
    """The outcome of one phase of a test."""

    test: str
    """The test's id."""
    phase: str
    """pytest's setup, call or teardown, or "collect" for the collection of a file."""
    outcome: str
    """One of passed, failed and skipped."""
    seconds: float = 0.0
    """Duration in seconds."""
    output: str = ""
    """The error and the captured output of a phase that did not pass, otherwise ""."""
    cpu: float = 0.0
    """CPU seconds of the test's process and its children."""


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of one pytest run."""

    all: tuple[Outcome, ...] = ()

    @property
    def failed(self) -> Mapping[str, str]:
        """The output of each failed test, by test id."""
        found: dict[str, list[str]] = defaultdict(list)
        for each in self._that("failed"):
            found[each.test].append(f"-- {each.phase}\n{each.output}")
        return {test: "\n".join(outputs) for test, outputs in found.items() if not test.endswith("::")}

    @property
    def is_decided_by_tests(self) -> bool:
        """Whether failed tests are the only reason why the run failed, which means that no test was skipped and every file was
        collected."""
        return not any(self._that("skipped")) and not any(each.phase == "collect" for each in self._that("failed"))

    @property
    def seconds(self) -> dict[str, float]:
        """The duration in seconds of each test and its fixtures, by test id."""
        return self._sums(lambda outcome: outcome.seconds)

    @property
    def cpu(self) -> dict[str, float]:
        """The CPU seconds of each test and its fixtures, by test id."""
        return self._sums(lambda outcome: outcome.cpu)

    def words_of(self, tests: Iterable[str]) -> Counter[str]:
        """Return the number of failures of these tests, by pytest's words. A test is "failed" if it fails itself, and an "error" if
        a fixture fails."""
        chosen = set(tests)
        return Counter("failed" if each.phase == "call" else "error" for each in self._that("failed") if each.test in chosen)

    def _sums(self, number: Callable[[Outcome], float]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for each in self.all:
            found[each.test] += number(each)
        return dict(found)

    def _that(self, outcome: str) -> Iterable[Outcome]:
        return (each for each in self.all if each.outcome == outcome)


def read(file: Path) -> Outcomes:
    """Return the outcomes in a file, or no outcomes if the file is missing."""
    if not file.exists():
        return Outcomes()
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return Outcomes(tuple(Outcome(**{**line, "test": _GROUP.sub("", line["test"])}) for line in lines))
