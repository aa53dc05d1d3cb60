"""What `make lint` and `make test` run, and that what fails at one stage does not hide the others' results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hack import checks, end_to_end, lanes
from hack.flaky import Rerun
from hack.lanes import Ended, Run
from hack.outcomes import Outcomes
from hack.stages import Failure
from tests.support.nested import BARE

CLUSTER_TEST = Ended(Run("side by side", [], {}), 0, ["==== 5 passed ===="], Outcomes())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that runs `make test` while the runs with these names fail; it returns the names of the reported runs."""

    def of(*bad: str) -> list[str]:
        reported: list[str] = []

        def execute(run: Run) -> Ended:
            return Ended(run, int(run.name in bad), [f"==== 1 {'failed' if run.name in bad else 'passed'} ===="], Outcomes())

        def report(ended: Sequence[Ended], again: Sequence[Rerun]) -> None:
            reported.extend(each.run.name for each in ended)

        monkeypatch.setattr(checks, "_ensure_programs", lambda: None)
        monkeypatch.setattr(lanes, "environment", dict)
        monkeypatch.setattr(lanes, "execute", execute)
        monkeypatch.setattr(end_to_end, "each_run", lambda *_: ([CLUSTER_TEST], []))
        monkeypatch.setattr(checks, "report", report)
        checks.everything()
        return sorted(reported)

    return of


@pytest.mark.parametrize("bad", ["lint", "go-tests", "unit", "processes"])
def test_what_fails_at_one_stage_does_not_hide_the_results_of_others(bad: str, runs: Callable[..., list[str]]) -> None:
    assert runs(bad) == runs() == ["deploy", "go-tests", "lint", "processes", "side by side", "unit"]


def test_without_the_operator_in_a_cluster_all_other_results_are_reported(runs: Callable[..., list[str]]) -> None:
    assert runs("deploy") == ["deploy", "go-tests", "lint", "processes", "unit"]


def test_failed_unit_tests_run_again_for_what_their_assertions_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "test_bad.py"
    file.write_text("def test_bad():\n    assert [1, 2] == [1, 3]\ndef test_good(): ...\n")
    options = [f"--rootdir={tmp_path}", "-p", "no:cacheprovider"]
    first = lanes.execute(Run("unit", [str(file), "--assert=plain", *options], BARE))

    def again(run: Run) -> Ended:
        name, test = run.name, [str(tmp_path / each) for each in run.arguments if "::" in each]
        return executed(Run(name, [*test, *options], run.env))

    executed = lanes.execute
    monkeypatch.setattr(lanes, "execute", again)
    explained = checks._explained(first)
    assert "At index 1 diff: 2 != 3" in "\n".join(explained.words) and "At index" not in "\n".join(first.words)
    assert explained.totals == {"failed": 1, "passed": 1} and checks._explained(CLUSTER_TEST) is CLUSTER_TEST


def test_each_static_check_runs_and_all_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def check(name: str, problem: str = "") -> Callable[[], None]:
        def run() -> None:
            ran.append(name)
            if problem:
                raise Failure(problem)

        return run

    monkeypatch.setattr(checks, "_LINT", {"a": check("a", "bad"), "b": check("b"), "c": check("c", "worse")})
    with pytest.raises(Failure, match=r"^a: bad\nc: worse$"):
        checks.lint()
    assert ran == ["a", "b", "c"]
