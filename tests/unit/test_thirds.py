"""How the long tests are split into thirds, and which third CI runs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hack.lanes import Run, execute
from hack.stages import Failure
from hack.thirds import ALL, Choice, Turn, balanced, chosen, third_of
from tests.support.nested import BARE

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "hack/long_seconds.json").read_text())


def test_each_test_is_in_one_third_and_a_file_of_the_cluster_in_one_as_a_whole() -> None:
    tests = [f"tests/unit/test_{number}.py::test" for number in range(30)]
    assert {third_of(each) for each in tests} == set(ALL) and [third_of(each) for each in tests] == [
        third_of(each) for each in tests
    ]
    assert len({third_of(f"tests/e2e/test_new.py::test_{number}") for number in range(30)}) == 1
    assert len({third_of(f"tests/unit/test_new.py::test_{number}") for number in range(30)}) == 3


def test_the_thirds_take_about_the_same_time() -> None:
    assert balanced({"a": 5.0, "b": 4.0, "c": 3.0, "d": 3.0, "e": 2.0}) == {"a": 1, "b": 2, "c": 3, "d": 3, "e": 2}
    found = balanced(RECORDED)
    sums = [sum(RECORDED[key] for key in RECORDED if found[key] == third) for third in ALL]
    assert max(sums) - min(sums) <= max(RECORDED.values())


def test_what_the_recorded_seconds_name_exists() -> None:
    assert [each for each in RECORDED if not (ROOT / each.partition("::")[0]).exists()] == []


def test_three_green_runs_in_a_row_run_all_thirds_and_a_red_one_comes_again(tmp_path: Path) -> None:
    turn = Turn(tmp_path / "cache/third")
    seen: list[int] = []
    for _ in ALL:
        choice = turn.choice(commits=7)
        assert turn.choice(commits=8).third == choice.third or not seen
        seen.append(choice.third)
        turn.passed(choice.third)
    assert sorted(seen) == list(ALL)
    assert turn.choice(commits=7) == Choice(seen[0], f"third {seen[2]} was the last that passed on this machine")


def test_machines_that_keep_nothing_take_turns_by_commits(tmp_path: Path) -> None:
    turn = Turn(tmp_path / "third")
    assert [turn.choice(commits).third for commits in range(4)] == [1, 2, 3, 1]
    assert turn.choice(4).shown.endswith(": none has passed on this machine yet, and HEAD has 4 first-parent commits")
    turn.file.write_text("damaged")
    assert turn.choice(5).third == 3


def test_a_third_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("") == Choice() and chosen("").options == ()
    assert chosen("2/3").options == ("--third=2",)
    monkeypatch.setattr(Turn, "choice", lambda turn, commits: Choice(1, f"{commits > 0}"))
    assert chosen("turn") == Choice(1, "True")
    for wrong in ("4/3", "0/3", "1/2", "1", "all"):
        with pytest.raises(Failure, match=f"LONG is '{wrong}'; it must be 1/3, 2/3, 3/3, or `turn`"):
            chosen(wrong)


def test_thirds_together_select_each_test_once(tmp_path: Path) -> None:
    file = tmp_path / "test_many.py"
    file.write_text("import pytest\n@pytest.mark.parametrize('n', range(12))\ndef test(n): ...\n")
    ran: list[str] = []
    for third in ALL:
        ended = execute(
            Run(
                "third",
                [str(file), "-q", f"--rootdir={tmp_path}", "-p", "no:cacheprovider", f"--third={third}"],
                BARE,
            )
        )
        ran += ended.outcomes.seconds
    assert len(ran) == len(set(ran)) == 12


CI = """#!/bin/sh
echo "make $*" >> "$LOG"
case "$*" in "$FAILS"*) exit 1;; esac
"""


@pytest.mark.parametrize(("fails", "code"), [("nothing", 0), ("test-long", 1), ("test", 1)])
def test_ci_runs_a_third_after_make_test_also_if_that_failed(fails: str, code: int, tmp_path: Path) -> None:
    make = tmp_path / "make"
    make.write_text(CI)
    make.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(tmp_path / "log"), "FAILS": fails}
    done = subprocess.run([ROOT / ".ci/run"], env=env, check=False, cwd=tmp_path)
    assert done.returncode == code
    assert (tmp_path / "log").read_text() == "make test\nmake test-long LONG=turn\n"
