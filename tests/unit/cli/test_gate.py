"""Test `multistep gate` with an in-memory cluster: verdicts, exit codes, the Markdown summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Invoke
from tests.unit.cli.fakes import CliCluster
from tests.unit.cli.test_sweep_report import put

Scores = dict[tuple[str, str], list[float | str | None]]


def scores(of_task: float, tasks: int = 10, agent: str = "mine", spread: float = 0.001) -> Scores:
    """Return the scores of a sweep of one agent. spread: by how much the score of a task is higher than that of the one before."""
    return {(f"t{number}", agent): [of_task + number * spread] for number in range(tasks)}


@pytest.mark.parametrize(
    ("candidate", "code", "verdict"), [(0.8, 0, "better"), (0.5, 0, "no worse"), (0.3, 1, "worse")], ids=["better", "same", "worse"]
)
def test_the_exit_code_is_that_of_the_verdict(
    invoke: Invoke, cluster: CliCluster, candidate: float, code: int, verdict: str
) -> None:
    put(cluster, "candidate", scores(candidate))
    put(cluster, "main", scores(0.5, spread=0.002))
    result = invoke("gate", "candidate", "--against", "main")
    assert (result.exit_code, result.stdout.split(":")[0]) == (code, verdict), result.stderr


def test_too_few_tasks_exit_with_a_code_of_their_own_and_say_how_many_are_needed(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "candidate", scores(0.3, tasks=3))
    put(cluster, "main", scores(0.5, tasks=3))
    result = invoke("gate", "candidate", "--against", "main", "-o", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["verdict"], found["need"]) == (5, "NotEnoughData", {"attempts": None, "tasks": 6})


def test_equal_scores_in_few_tasks_are_not_enough_and_the_output_says_how_many_are(invoke: Invoke, cluster: CliCluster) -> None:
    for name in ("candidate", "main"):
        put(cluster, name, scores(0.5))
    result = invoke("gate", "candidate", "--against", "main")
    assert (result.exit_code, result.stdout.split(":")[0]) == (5, "not enough data"), result.stderr
    assert "about 183 tasks would" in result.stdout


def test_excluded_tasks_of_the_candidate_are_named_as_the_reason(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "candidate", {**scores(0.5), **{(f"t{number}", "mine"): ["Infrastructure"] for number in range(6, 10)}})
    put(cluster, "main", scores(0.5, spread=0.002))
    result = invoke("gate", "candidate", "--against", "main")
    assert (result.exit_code, result.stdout.split(":")[0]) == (5, "not enough data"), result.stderr
    assert "The candidate's trials of 4 tasks are all excluded" in result.stdout


def test_a_tolerated_drop_passes(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "candidate", scores(0.45))
    put(cluster, "main", scores(0.5, spread=0.002))
    assert invoke("gate", "candidate", "--against", "main").exit_code == 1
    assert invoke("gate", "candidate", "--against", "main", "--max-drop", "0.1").exit_code == 0


def test_the_summary_is_appended_and_shows_names_without_markup(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    put(cluster, "candidate", scores(0.3, agent="<img src=x>|`a`"))
    put(cluster, "main", scores(0.5, agent="b"))
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    invoke("gate", "candidate", "--against", "main", "--markdown", file)
    text = file.read_text()
    assert text.startswith("before\n### Gate: worse\n")
    assert "| candidate | `candidate/<img src=x>\\|'a'` |" in text
    assert "| difference of the mean score | -0.200 |" in text


def test_a_sweep_that_has_not_finished_is_rejected(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "candidate", {**scores(0.5), ("t0", "mine"): [None]})
    put(cluster, "main", scores(0.5))
    result = invoke("gate", "candidate", "--against", "main")
    assert (result.exit_code, "candidate/mine: 1 of 10 trials have not finished" in result.stderr) == (2, True), result.stderr


def test_a_gate_of_several_agents_asks_for_one(invoke: Invoke, cluster: CliCluster) -> None:
    for name, spread in (("candidate", 0.001), ("main", 0.002)):
        put(cluster, name, {**scores(0.5, spread=spread), **scores(0.6, agent="other")})
    assert "name it, as SWEEP/AGENT" in invoke("gate", "candidate", "--against", "main").stderr
    assert invoke("gate", "candidate/mine", "--against", "main/mine").exit_code == 0


@pytest.mark.parametrize("drop", ["-0.1", "nan", "inf"])
def test_a_tolerance_that_is_none_is_rejected(invoke: Invoke, cluster: CliCluster, drop: str) -> None:
    put(cluster, "a", scores(0.5))
    result = invoke("gate", "a", "--against", "a", "--max-drop", drop)
    assert (result.exit_code, "--max-drop" in result.stderr) == (2, True)
