"""The order in which `make e2e` runs tests, and which ones it repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from hack import deployment, end_to_end, load
from hack.deployment import Cluster
from hack.end_to_end import in_order
from hack.lanes import Ended, Run
from hack.outcomes import Outcome, Outcomes
from hack.thirds import Choice
from localkube import targets
from tests.support.nested import BARE

LOST = "tests/e2e/test_logs.py::test_lost"


class FakePytest:
    """Replaces runs of pytest: records each run, and reports one failed test for the run named "side by side"."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.reported: list[tuple[Any, ...]] = []

    def execute(self, run: Run) -> Ended:
        self.runs.append(run)
        is_bad = run.name == "side by side"
        outcomes = Outcomes((Outcome(LOST, "call", "failed", 1.0, "lost"),)) if is_bad else Outcomes()
        return Ended(run, int(is_bad), ["==== 1 failed, 2 passed ====" if is_bad else "==== 1 passed ===="], outcomes)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.runs]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakePytest:
    found = FakePytest()
    target = create_autospec(targets.Local, instance=True)
    cluster = Cluster(target, "kubectl", {})
    monkeypatch.setattr(Cluster, "environment", {"CLUSTER": "played"})
    monkeypatch.setattr(deployment, "deploy", lambda *_: cluster)
    monkeypatch.setattr(deployment, "deployed", lambda *_: cluster)
    monkeypatch.setattr(end_to_end, "environment", dict)
    monkeypatch.setattr(end_to_end, "execute", found.execute)
    monkeypatch.setattr(end_to_end, "_files_of_tests", lambda *_: ["tests/e2e/test_leader.py"])
    monkeypatch.setattr(load, "workers", lambda: 3)
    monkeypatch.setattr(end_to_end, "report", lambda *arguments: found.reported.append(arguments))
    return found


def test_failures_are_run_again_after_all_others_and_rights_are_judged_last(fake: FakePytest) -> None:
    end_to_end.run()
    assert sorted(fake.names[:3]) == ["leader", "side by side", "simulated"] and fake.names[3:] == ["again", "rights"]
    again = fake.runs[3]
    assert again.arguments[0] == LOST
    by_name = {each.name: each for each in fake.runs}
    side_by_side = by_name["side by side"].arguments
    assert side_by_side[side_by_side.index("-n") + 1] == "3"
    assert side_by_side[side_by_side.index("-m") + 1] == f"not alone and {end_to_end._EACH_RUN}"
    assert by_name["leader"].arguments[:4] == ["tests/e2e/test_leader.py", "-v", "-m", f"alone and {end_to_end._EACH_RUN}"]
    [(ended, second)] = fake.reported
    assert len(ended) == 4 and [(each.test, each.is_flaky) for each in second] == [(LOST, True)]


def apart() -> Ended:
    """Return the run of the long tests that need no cluster."""
    return Ended(Run("long", [], {}), 0, [], Outcomes())


def test_long_tests_run_the_same_way_and_belong_to_the_run_before(fake: FakePytest) -> None:
    end_to_end.run_long(2, apart, Choice())
    assert sorted(fake.names[:3]) == ["leader", "side by side", "simulated"] and fake.names[3:] == ["again", "rights"]
    by_name = {each.name: each.arguments for each in fake.runs}
    assert by_name["leader"] == ["tests/e2e/test_leader.py", "-v", "-m", "alone and long"]
    assert by_name["side by side"][by_name["side by side"].index("-m") + 1] == "not alone and long"
    assert by_name["rights"][:3] == ["tests/rights", "-m", ""]
    [(ended, _, past)] = fake.reported
    assert past.continued and ended[0].run.name == "long"


def test_of_a_third_of_the_long_tests_rights_count_with_those_of_the_others(
    fake: FakePytest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_to_end, "_USED", tmp_path)
    end_to_end.run_long(2, apart, Choice(2, "turn"))
    assert all("--third=2" in each.arguments for each in fake.runs if each.name in ("leader", "side by side"))
    rights = [each for each in fake.runs if each.name == "rights"]
    for third in (1, 3):
        (tmp_path / f"{third}.json").touch()
    end_to_end.run_long(2, apart, Choice(2, "turn"))
    rights += [each for each in fake.runs[len(fake.runs) // 2 :] if each.name == "rights"]
    assert [each.arguments[2] for each in rights] == [end_to_end._EACH_RUN, ""]
    assert {each.env["MULTISTEP_TEST_USED"] for each in rights} == {str(tmp_path / "2.json")}


def test_files_with_tests_alone_are_found_and_none_is_no_failure(tmp_path: Path) -> None:
    for name, mark in (("a", "alone"), ("b", "long")):
        (tmp_path / f"test_{name}.py").write_text(f"import pytest\n@pytest.mark.{mark}\ndef test_x(): ...\ndef test_y(): ...\n")
    options = (str(tmp_path), f"--rootdir={tmp_path}", "-p", "no:cacheprovider")
    assert end_to_end._files_of_tests((*options, "-m", "alone"), BARE) == ["test_a.py"]
    assert end_to_end._files_of_tests((*options, "-m", "agents"), BARE) == []
    (tmp_path / "test_c.py").write_text("syntax error")
    assert end_to_end._files_of_tests((*options, "-m", "alone"), BARE) == ["tests/e2e"]


def test_the_longest_file_comes_first_and_a_new_one_before_it() -> None:
    files = ["a.py", "b.py", "new.py", end_to_end._FIRST]
    assert in_order(files, {"a.py": 3.0, "b.py": 40.0, end_to_end._FIRST: 1.0}) == [end_to_end._FIRST, "new.py", "b.py", "a.py"]
