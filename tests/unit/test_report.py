"""Reports of failed end-to-end tests: which of them pass when repeated (flaky tests), and the history of failures."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hack import costs, load
from hack.flaky import MAX_FLAKY, MAX_RERUNS, Rerun, run_again
from hack.history import RUNS, History, table
from hack.lanes import Ended, Run, execute
from hack.load import busy_share, workers_for
from hack.outcomes import Outcome, Outcomes, read
from hack.report import report
from hack.stages import Failure
from tests.support.nested import BARE

FAILS_AT_FIRST = """
from pathlib import Path

def test_once():
    seen = Path(__file__).with_name("seen")
    print("seen before:", seen.exists())
    if not seen.exists():
        seen.touch()
        assert "first" == "try"

def test_good(): ...
"""
FAILS_IN_A_FIXTURE = """
import pytest
from pathlib import Path

@pytest.fixture
def place():
    seen = Path(__file__).with_name("seen-in-fixture")
    yield
    if not seen.exists():
        seen.touch()
        raise OSError("not cleaned up")

def test_with_fixture(place): ...
"""
NEVER_PASSES = "def test_never():\n    assert 'never' == 'well'\n"


@pytest.fixture
def past(tmp_path: Path) -> History:
    return History(tmp_path / "history.json", checkout="here")


def run(directory: Path, text: str, name: str = "cases") -> Run:
    file = directory / f"test_{name}.py"
    file.write_text(text)
    # --rootdir keeps the path of the checkout out of the tests' ids.
    options = [f"--rootdir={directory}", "-p", "no:cacheprovider"]
    return Run(name, [str(file), *options], BARE)


def executed(*runs: Run) -> tuple[list[Ended], list[Rerun]]:
    """Execute the runs, and repeat their failed tests as `make e2e` does. The tests' ids are relative to the tests' directory."""
    ended = [execute(each) for each in runs]
    directory = Path(runs[0].arguments[0]).parent

    def in_directory(again: Run) -> Ended:
        test, *options = again.arguments
        return execute(
            Run(again.name, [str(directory / test), *options, f"--rootdir={directory}", "-p", "no:cacheprovider"], again.env)
        )

    return ended, run_again(ended, runs[0].env, in_directory)


def played(count: int, codes: Sequence[int]) -> tuple[list[Ended], list[Rerun]]:
    """Return a run with `count` failed tests, and the repetitions of these tests, which end with the exit codes `codes`."""
    outcomes = Outcomes(tuple(Outcome(f"t.py::test_{number}", "call", "failed", 1.0, "why") for number in range(count)))
    first = Ended(Run("many", [], {}), 1, [f"==== {count} failed, 7 passed in 1.00s ===="], outcomes)
    left = iter(codes)
    return [first], run_again([first], {}, lambda run: Ended(run, next(left), ["==== the end ===="], Outcomes()))


def test_a_test_that_passes_the_second_time_is_flaky_and_fails_nothing(
    tmp_path: Path, past: History, capfd: pytest.CaptureFixture[str]
) -> None:
    ended, again = executed(run(tmp_path, FAILS_AT_FIRST))
    report(ended, again, past)
    out = capfd.readouterr().out
    _, _, reported = out.partition("\nFLAKY ")
    assert reported.startswith(f"{again[0].test}: failed in the run 'cases', then passed alone")
    first, _, second = reported.partition("---- second output, alone")
    assert "seen before: False" in first and "'first' == 'try'" in first
    assert "seen before: True" in second
    assert out.endswith("==== 1 flaky, 1 passed ====\n")
    assert [list(each.failed.values()) for each in past.runs()] == [["flaky"]]


def test_an_error_of_a_fixture_that_does_not_come_again_is_flaky(
    tmp_path: Path, past: History, capfd: pytest.CaptureFixture[str]
) -> None:
    report(*executed(run(tmp_path, FAILS_IN_A_FIXTURE)), past)
    assert capfd.readouterr().out.endswith("==== 1 flaky, 1 passed ====\n")


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path, past: History, capfd: pytest.CaptureFixture[str]) -> None:
    ended, again = executed(run(tmp_path, FAILS_AT_FIRST), run(tmp_path, NEVER_PASSES, "never"))
    with pytest.raises(Failure, match=r"^failed: never \(exit code 1\)$"):
        report(ended, again, past)
    out = capfd.readouterr().out
    assert "\nFAILED TWICE " in out and "\nFLAKY " in out and out.endswith("==== 1 failed, 1 flaky, 1 passed ====\n")
    assert sorted(past.runs()[0].failed.values()) == ["failed", "flaky"]


@pytest.mark.parametrize(("count", "is_good"), [(MAX_FLAKY, True), (MAX_FLAKY + 1, False)])
def test_only_a_few_tests_may_be_flaky(count: int, is_good: bool, past: History) -> None:
    ended, again = played(count, [0] * count)
    if is_good:
        report(ended, again, past)
    else:
        with pytest.raises(Failure, match=r"^4 tests are flaky, at most 3 may be: t\.py::test_0, "):
            report(ended, again, past)
    assert past.runs()[0].totals == {"flaky": count, "passed": 7}
    assert past.seconds() == {"t.py": count}


def test_of_many_failures_only_some_are_run_again_and_the_others_fail_the_run(past: History) -> None:
    ended, again = played(MAX_RERUNS + 1, [0] * MAX_RERUNS)
    assert len(again) == MAX_RERUNS
    with pytest.raises(Failure, match="failed: many"):
        report(ended, again, past)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(Outcome("t.py::other", "setup", "skipped"), 1), (Outcome("u.py", "collect", "failed"), 1), (None, 2), (None, -9)],
    ids=["skipped", "not collected", "interrupted", "killed"],
)
def test_a_run_with_another_fault_beside_a_flaky_test_is_not_forgiven(outcome: Outcome | None, code: int, past: History) -> None:
    [first], again = played(1, [0])
    outcomes = Outcomes((*first.outcomes.all, *([outcome] if outcome else [])))
    with pytest.raises(Failure, match="failed: many"):
        report([Ended(first.run, code, first.words, outcomes)], again, past)


def test_a_file_that_cannot_be_collected_is_an_outcome(tmp_path: Path) -> None:
    ended = execute(run(tmp_path, "syntax error"))
    assert not ended.outcomes.is_decided_by_tests


def test_the_group_of_a_test_is_no_part_of_its_id(tmp_path: Path) -> None:
    lines = ['{"test": "t.py::test_a[x@y]@docs", "phase": "call", "outcome": "failed", "seconds": 1.0, "output": "o"}']
    lines += ['{"test": "t.py::test_b[x@y]", "phase": "call", "outcome": "passed", "seconds": 1.0}', '{"test": "cut o']
    file = tmp_path / "outcomes"
    file.write_text("\n".join(lines))
    assert [each.test for each in read(file).all] == ["t.py::test_a[x@y]", "t.py::test_b[x@y]"]
    assert read(tmp_path / "none") == Outcomes()


def test_with_workers_of_xdist_the_outcomes_are_the_same(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.xdist_group('g')\ndef test_bad():\n    assert 'this' == 'that'\n"
    one = run(tmp_path, text)
    ended = execute(Run(one.name, [*one.arguments, "-p", "xdist", "-n", "1", "--dist", "loadgroup"], one.env))
    [(test, output)] = ended.outcomes.failed.items()
    assert test.endswith("test_cases.py::test_bad") and "assert 'this' == 'that'" in output


def test_the_history_has_the_last_runs_and_a_table_of_what_failed_in_them(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    for number in range(RUNS + 5):
        failed = {"t.py::often": "flaky" if number % 2 else "failed"} | ({"t.py::old": "failed"} if number in (2, 7) else {})
        History(file, "here", f"2026-01-{number + 1:02}T10:00:00+00:00").add(failed, {"passed": 3})
    runs = History(file).runs()
    assert len(runs) == RUNS and runs[0].started.startswith("2026-01-06")
    assert [line.split() for line in table(runs)[1:]] == [
        ["10", "10", "2026-01-25", "t.py::often"],
        ["1", "0", "2026-01-08", "t.py::old"],
    ]


def test_stages_of_a_run_are_one_in_the_history(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    History(file, "here", "1").add({"a": "failed"}, {"passed": 3})
    History(file, "there", "2").add({}, {"passed": 9})
    assert History(file, "here", "1").add({"b": "flaky"}, {"passed": 4, "flaky": 1}).totals == {"passed": 7, "flaky": 1}
    assert History(file, "here", "3", continued=True).add({}, {"passed": 1}).totals == {"passed": 8, "flaky": 1}
    assert [each.failed for each in History(file).runs()] == [{"a": "failed", "b": "flaky"}, {}]


def test_a_damaged_history_is_none(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    file.write_text("[{]")
    assert table(History(file).runs()) == ["    no test failed in the last 0 runs"]
    History(file, "here", "1").add({}, {})
    assert len(History(file).runs()) == 1


@pytest.mark.parametrize(
    ("cores", "busy", "number"), [(2, 0.3, 4), (2, 1.4, 2), (2, 2.0, 2), (1, 0.0, 2), (4, 0.5, 7), (16, 1.0, 8)]
)
def test_workers_follow_the_cores_that_are_free(cores: int, busy: float, number: int) -> None:
    assert workers_for(cores, busy) == number


def test_a_core_is_busy_when_it_is_not_idle() -> None:
    assert busy_share((100, 1000), (150, 1200)) == 0.75


def test_what_yields_leaves_its_core_free_and_has_worked_nevertheless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(load, "_STAT", stat)
    counts = iter([(100, 100, 0, 700), (150, 250, 0, 900)])  # user, nice, system, idle

    def write(_: float = 0) -> None:
        stat.write_text(f"cpu {' '.join(map(str, next(counts)))} 0 0 0 0\n")

    write()
    monkeypatch.setattr(time, "sleep", write)
    assert load.busy_cores(2) == 2 * 50 / 400
    assert load.busy_seconds() == 400 / os.sysconf("SC_CLK_TCK")
    assert busy_share((100, 1000), (100, 1000)) == 0.0


USES_A_CORE = """
import subprocess, sys, time

def test_here():
    end = time.process_time() + 0.3
    while time.process_time() < end: ...

def test_in_a_process():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: ..."], check=True)

def test_does_nothing(): ...
"""


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["one process", "a worker of xdist"])
def test_the_seconds_of_cpu_of_a_test_are_apart_from_those_that_it_waits(tmp_path: Path, options: Sequence[str]) -> None:
    one = run(tmp_path, USES_A_CORE)
    ended = execute(Run(one.name, [*one.arguments, *options], one.env))
    used = {test.partition("::")[2]: cpu for test, cpu in ended.outcomes.cpu.items()}
    assert used["test_here"] >= 0.3 and used["test_in_a_process"] >= 0.3 > used["test_does_nothing"]
    assert ended.cpu >= sum(used.values())


def test_a_table_shows_the_seconds_of_cpu_and_of_waiting() -> None:
    outcomes = (
        Outcome("t.py::test_waits", "setup", "passed", 1.0, cpu=0.9),
        Outcome("t.py::test_waits", "call", "passed", 9.0, cpu=0.1),
        Outcome("t.py::test_computes", "call", "passed", 2.5, cpu=2.0),
    )
    ended = [
        Ended(Run("cases", [], {}), 0, [], Outcomes(outcomes), 7.0, 5.0),
        Ended(Run("lint", [], {}, ["ruff"]), 0, [], Outcomes(), 2.0, 3.0),
    ]
    assert [line.split() for line in costs.table(ended)][1:] == [
        ["cases", "7.0", "5.0", "12.5", "9.5", "2.0"],
        ["lint", "2.0", "3.0"],
    ]
    assert [line.split() for line in costs.most_costly(ended)] == [
        ["the", "tests", "with", "the", "most", "seconds", "of", "CPU"],
        ["2.0", "t.py::test_computes"],
        ["1.0", "t.py::test_waits"],
        ["the", "tests", "with", "the", "most", "seconds", "of", "waiting"],
        ["9.0", "t.py::test_waits"],
        ["0.5", "t.py::test_computes"],
    ]
