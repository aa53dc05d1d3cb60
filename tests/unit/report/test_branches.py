"""Branches in reports: passes are counted, excluded trials are not, and branches do not change the numbers of ordinary trials."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multistep.api.sweep.sweep import Scoring
from multistep.report.branches import branches_of
from multistep.report.files import csv_text, json_text, parquet_bytes, report_json
from multistep.report.html_page import report_page
from multistep.report.rows import TrialRow, trial_row
from multistep.report.summary import ReportedSweep, summarize
from tests.unit.report.samples import step, trial
from tests.unit.report.test_page import Document

ABOUT = ReportedSweep("nightly", "evals", datetime(2026, 1, 2, tzinfo=UTC), planned=4, phase="Running")
STEPS = ("z", "b", "c")


def ordinary(attempt: int, reached: int = 3, task: str = "t", agent: str = "mine") -> TrialRow:
    return trial_row(trial(task, agent, attempt, reward=0.5, steps=[step(name, 1.0) for name in STEPS[:reached]]))


def branch(
    name: str,
    state: str,
    attempt: int = 1,
    reward: float | None = 1.0,
    task: str = "t",
    scoring: Scoring | None = None,
    **fields: Any,
) -> TrialRow:
    """Return a branch that ran the step ``name`` after its kept steps. reward: the step's reward."""
    before = STEPS[: STEPS.index(name)]
    kept = [step(each, 1.0, trial="another") for each in before]
    made = trial(task, attempt=attempt, reward=0.5, steps=[*kept, step(name, reward)])
    own = {"score": reward, "passed": reward is not None and reward >= 1, "scoreRule": {"steps": 1, "strategy": "Mean"}}
    made = {**made, "status": {**made["status"], "taskSteps": [*before, name], **own, **fields}}
    made["metadata"] |= {"name": f"s-{task}-{name}-{state}-{attempt}", "labels": {"multistep.dev/branch": state}}
    made["metadata"]["annotations"]["multistep.dev/step"] = name
    if state == "Own":
        made["spec"]["from"] = {"trial": f"s-{task}-mine-{attempt % 2}", "step": before[-1]}
    return trial_row(made, scoring)


ROWS = [
    ordinary(1),
    ordinary(2, reached=2),
    *(branch("z", "Start", attempt) for attempt in (1, 2)),
    *(branch("b", "Own", attempt, reward) for attempt, reward in ((1, 1.0), (2, 0.0), (3, 0.5))),
    *(branch("b", "Reference", attempt) for attempt in (1, 2, 3)),
    *(branch("c", "Reference", attempt) for attempt in (1, 2)),
]


def test_a_step_has_its_trials_by_state_in_the_order_of_the_task() -> None:
    found = branches_of(ROWS)
    assert [(each.step, each.reached, each.ordinary) for each in found.steps] == [("z", 2, 2), ("b", 2, 2), ("c", 1, 2)]
    start, middle, end = found.steps
    assert start.start is not None and (start.start.passes, start.own, start.reference, start.difference) == (
        {1: 1.0, 2: 1.0}, None, None, None,
    )  # fmt: skip
    assert middle.own is not None and middle.reference is not None and middle.difference is not None
    assert (middle.own.passed, middle.own.counted, middle.own.sources) == (1, 3, 2)
    assert middle.own.passes == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3), 3: 1.0}
    assert middle.difference.value == pytest.approx(-2 / 3)
    assert [each.has_no_own_state for each in found.steps] == [False, False, True]
    assert end.difference is None


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({"reward": 0.99}, False),
        ({"reward": None}, None),
        ({"conditions": [], "score": None}, None),
        ({"failure": {"class": "Infrastructure", "reason": "PodDeleted"}, "score": None}, None),
        ({"failure": {"class": "Configuration", "reason": "SourceUnusable"}, "steps": [], "score": None}, None),
        ({"failure": {"class": "Agent", "reason": "AgentTimeoutError"}, "score": 0.0, "reward": None}, False),
        ({"failure": {"class": "Agent", "reason": "AgentTimeoutError"}}, True),
        ({"steps": [step("b", 0.2, gate=True)], "score": 0.2, "passed": True}, True),
    ],
)
def test_only_trials_that_count_are_passes_or_failures(changed: dict[str, Any], counts: bool | None) -> None:
    made = branch("b", "Reference", **changed)
    assert made.passed is counts
    group = branches_of([made]).steps[0].reference
    assert group is not None and (group.counted, group.passed) == (counts is not None, counts is True)


@pytest.mark.parametrize(("policy", "counts"), [("Report", True), ("Zero", False), ("Exclude", None)])
def test_evidence_of_tampering_counts_as_the_sweep_says(policy: Any, counts: bool | None) -> None:
    evidence = [{"attempt": 1, "step": "b", "kind": "TestHook", "detail": "/conftest.py"}]
    assert branch("b", "Own", scoring=Scoring(tampering=policy), tampering=evidence).passed is counts


def test_excluded_and_active_trials_are_counted_apart() -> None:
    lost = branch("b", "Own", 2, failure={"class": "Infrastructure", "reason": "PodDeleted"}, score=None)
    (found,) = branches_of([branch("b", "Own"), lost, branch("b", "Own", 3, conditions=[]), branch("b", "Reference")]).steps
    assert found.own is not None
    assert (found.own.trials, found.own.counted, found.own.active, found.own.excluded) == (3, 1, 1, 1)


def test_a_label_that_is_no_state_makes_no_branch() -> None:
    assert branch("b", "Reference").branch == "Reference"
    assert branch("b", "Mine").branch == ""


def test_the_agents_difference_is_over_tasks_that_weigh_the_same() -> None:
    rows = [
        each
        for task, reward in (("t", 0.0), ("u", 1.0), ("v", 0.0))
        for each in (
            ordinary(1, task=task),
            branch("b", "Own", 1, reward, task=task),
            branch("b", "Own", 2, reward, task=task),
            branch("b", "Reference", task=task),
        )
    ]
    (found,) = branches_of(rows).agents
    assert (found.agent, found.difference.estimate.tasks) == ("mine", 3)
    assert found.difference.estimate.value == pytest.approx(-2 / 3)
    assert branches_of(ROWS).agents == []


def test_means_steps_and_durations_are_of_the_ordinary_trials() -> None:
    without, found = summarize(ROWS[:2]), summarize(ROWS)
    assert (found.standings, found.tasks, found.durations) == (without.standings, without.tasks, without.durations)
    assert len(found.rows) == len(ROWS)
    assert "1 of 3 branched steps have no trials from the agent's own state: no trial left one" in found.warnings


def test_tasks_without_branches_are_named_if_others_have_some() -> None:
    rows = [*ROWS, *(ordinary(1, task=f"x{number}") for number in range(5))]
    assert "these tasks have no branches: x0, x1, x2 and 2 more" in summarize(rows).warnings
    assert not summarize(rows[-5:]).warnings


def test_files_have_columns_of_branches_only_if_there_are_some() -> None:
    plain, whole = (json.loads(json_text(report_json(ABOUT, summarize(rows)))) for rows in (ROWS[:2], ROWS))
    assert "branches" not in plain and not {"branch", "step", "step_number", "source"} & plain["trials"][0].keys()
    assert [each["step"] for each in whole["branches"]["steps"]] == ["z", "b", "c"]
    assert whole["branches"]["steps"][1]["difference"]["value"] == pytest.approx(-2 / 3)
    assert not {"branch", "step", "step_number", "source"} & set(csv_text(ROWS[:2]).splitlines()[0].split(","))
    lines = list(csv.DictReader(io.StringIO(csv_text(ROWS))))
    assert [(each["step"], each["source"]) for each in lines if each["branch"] == "Own"][:2] == [
        ("b", "s-t-mine-1"),
        ("b", "s-t-mine-0"),
    ]
    tables = [pq.read_table(pa.BufferReader(parquet_bytes(rows))).column_names for rows in (ROWS[:2], ROWS)]
    assert set(tables[1]) - set(tables[0]) == {"branch", "step", "step_number", "source"}


def test_the_page_has_a_section_of_branches_only_if_there_are_some() -> None:
    assert "branches" not in Document(report_page(ABOUT, summarize(ROWS[:2]))).all("id")
    found = Document(report_page(ABOUT, summarize(ROWS)))
    assert "branches" in found.all("id") and "#branches" in found.all("href")
    assert "mine b own of 2 trials, 2 of 2 reached the step 1 of 3 0.333 0.667 1.000 0 -0.667" in found.text
    assert "mine c own 1 of 2 reached the step no trial left a state - mine c reference 2 of 2 1.000 1.000 - 0 -" in found.text
    assert "s-t-b-Own-1 step b, own state" in found.text


def test_the_page_shows_the_difference_over_tasks() -> None:
    rows = [*ROWS, *(replace(each, task="u", trial=f"{each.trial}-u") for each in ROWS)]
    assert "mine over 2 tasks, paired by task: -0.667, p 0.500" in " ".join(report_page(ABOUT, summarize(rows)).split())
