"""Test the branches of a sweep: which branches are planned, their numbers, the states from which they start, and that the sweep
finishes only after them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.sweep.sweep import SweepBranch, TrialSweep, parse_sweep
from multistep.api.trial.trial import parse_trial
from multistep.engine.sweep.next_sweep_action import next_sweep_action
from multistep.engine.sweep.next_trials import SweepLimits, TrialFacts, count_trials, numbers_to_create
from multistep.engine.sweep.plan_branches import (
    StepCheckpoints,
    TaskStates,
    cells_of,
    count_branches,
    count_missing_states,
    parse_record,
    record_text,
    states_of,
    step_checkpoints,
    unknown_steps,
)
from multistep.engine.sweep.sweep_status import branches_planned, started_status
from multistep.engine.sweep.trial_grid import Branch, Order, TrialCell, TrialGrid
from multistep.engine.sweep.trial_manifests import SweepPlan, plan_sweep, trial_manifest, with_branches
from multistep.errors import InvalidSpec
from tests.unit.engine.test_sweeps import NAMES

NOW = 1_700_000_000.0
STEPS = ["a", "b", "c"]
GRID = TrialGrid(["t", "u"], ["x", "y"], 3, branches=None)
GRIDS = st.builds(
    TrialGrid,
    st.lists(NAMES, min_size=1, max_size=3, unique=True),
    st.lists(NAMES, min_size=1, max_size=2, unique=True),
    st.integers(1, 3),
    st.sampled_from(["Attempts", "Tasks"]),
    st.none(),
)
BRANCHES = st.builds(SweepBranch, at=st.sampled_from([["each"], ["b"], ["c", "a"]]), attempts=st.integers(1, 3))
LEFT = st.builds(StepCheckpoints, st.sampled_from([[], STEPS, STEPS[:1]]), st.sets(st.sampled_from(STEPS)))


def left(**kept: list[str]) -> dict[int, StepCheckpoints]:
    """Return the checkpoints of the trials with attempt 1, by trial number. kept: names of the steps with one, by task and agent:
    the argument tx is for task t and agent x."""
    return {["tx", "ty", "ux", "uy"].index(name): StepCheckpoints(STEPS, steps) for name, steps in kept.items()}


def sweep(**spec: Any) -> TrialSweep:
    tasks: list[Any] = [{"name": name, "inline": {"config": {}}} for name in ("t", "u")]
    agents = [{"name": name, "agent": {"name": "nop"}} for name in ("x", "y")]
    metadata = {"name": "s", "namespace": "n", "uid": "sweep-uid", "generation": 1}
    found = {"tasks": tasks, "agents": agents, "attempts": 3, "parallelism": 100, "branch": {"attempts": 2}, **spec}
    return parse_sweep({"metadata": metadata, "spec": found})


def planned(found: TrialSweep, known: dict[int, StepCheckpoints]) -> SweepPlan:
    base = plan_sweep(found, found.spec.tasks)
    return with_branches(found, base, states_of(base.grid, known))


def test_a_trial_leaves_the_checkpoints_of_the_steps_after_which_it_continued() -> None:
    steps = [{"name": "a", "checkpoint": {"digest": "d"}}, {"name": "b", "checkpoint": {"missing": "TooLarge"}}]
    assert step_checkpoints(
        {"status": {"taskSteps": STEPS, "steps": [*steps, {"name": "c", "checkpoint": {"digest": "d"}}]}}
    ) == StepCheckpoints(STEPS, {"a"})
    assert step_checkpoints({}) == StepCheckpoints([], set())


def test_the_record_knows_the_steps_of_each_task_and_who_left_which_state() -> None:
    first, second = states_of(
        GRID, {**left(tx=["a"], ty=[]), GRID.number(0, 0, 2): StepCheckpoints(STEPS, ["a", "b"]), 1: StepCheckpoints([], [])}
    )
    assert (first.steps, first.sources(0, 1), first.sources(0, 2), first.sources(1, 1)) == (STEPS, [1, 2], [2], [])
    assert first.sources(0, 0) == []
    assert second == TaskStates([], [[0, 0, 0], [0, 0, 0]])


@given(GRIDS, st.data())
def test_the_record_is_read_as_it_was_written(grid: TrialGrid, data: st.DataObject) -> None:
    states = states_of(grid, data.draw(st.dictionaries(st.integers(0, grid.ordinary - 1), LEFT)))
    assert parse_record(record_text(states), grid) == states


@pytest.mark.parametrize("text", ["", "{}", "[]", '[{"steps": [], "left": [[0, 0, 0]]}, {"steps": [], "left": [[0]]}]'])
def test_a_text_that_is_no_record_of_the_sweep_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it has other tasks, agents or attempts|validation error"):
        parse_record(text, GRID)


def test_each_step_starts_from_both_states_and_the_first_one_from_the_image() -> None:
    states = states_of(GRID, left(tx=["a", "b"], uy=["a"]))
    found = cells_of(GRID, SweepBranch(), states)
    assert [(each.task, each.agent, each.branch) for each in found if each.task == 0] == [
        (0, 0, Branch("a", "Start")),
        (0, 0, Branch("b", "Own", after="a", source=1)),
        (0, 0, Branch("b", "Reference")),
        (0, 0, Branch("c", "Own", after="b", source=1)),
        (0, 0, Branch("c", "Reference")),
        (0, 1, Branch("a", "Start")),
        (0, 1, Branch("b", "Reference")),
        (0, 1, Branch("c", "Reference")),
    ]
    assert count_missing_states(GRID, SweepBranch(), states) == 2 + 3
    only = cells_of(GRID, SweepBranch(at=["b"]), states)
    assert {each.branch.step for each in only if each.branch} == {"b"}


def test_the_attempts_are_spread_over_the_trials_that_left_a_state() -> None:
    known = {GRID.number(0, 0, attempt): StepCheckpoints(STEPS, ["a"] if attempt != 2 else []) for attempt in (1, 2, 3)}
    found = cells_of(GRID, SweepBranch(at=["b"], attempts=5), states_of(GRID, known))
    own = [each for each in found if each.branch and each.branch.state == "Own"]
    assert [(each.attempt, each.branch and each.branch.source) for each in own] == [(1, 1), (2, 3), (3, 1), (4, 3), (5, 1)]


@pytest.mark.parametrize(("order", "attempts"), [("Attempts", [1, 1, 1, 1, 2, 2, 2, 2]), ("Tasks", [1, 2] * 4)])
def test_the_order_of_the_sweep_is_that_of_its_branches(order: Order, attempts: list[int]) -> None:
    grid = TrialGrid(["t"], ["x"], 1, order, None)
    found = cells_of(grid, SweepBranch(at=["b", "c"], attempts=2), states_of(grid, {0: StepCheckpoints(STEPS, ["a", "b"])}))
    assert [each.attempt for each in found] == attempts


def test_names_that_no_task_has_are_known() -> None:
    states = states_of(GRID, left(tx=[]))
    assert unknown_steps(SweepBranch(at=["b", "d"]), states) == ["d"]
    assert unknown_steps(SweepBranch(), states) == []


@given(GRIDS, BRANCHES, st.data())
def test_branches_are_numbered_after_the_ordinary_trials_and_all_names_differ(
    grid: TrialGrid, branch: SweepBranch, data: st.DataObject
) -> None:
    states = states_of(grid, data.draw(st.dictionaries(st.integers(0, grid.ordinary - 1), LEFT)))
    whole = replace(grid, branches=cells_of(grid, branch, states))
    assert len(whole) == grid.ordinary + count_branches(grid, branch, states)
    cells = [whole.cell(number) for number in range(len(whole))]
    assert [grid.cell(number) for number in range(grid.ordinary)] == cells[: grid.ordinary]
    assert [whole.number(each.task, each.agent, each.attempt) for each in cells[: grid.ordinary]] == list(range(grid.ordinary))
    assert all(each.branch is not None for each in cells[grid.ordinary :]) and len(set(cells)) == len(cells)
    names = [whole.trial_name("s", number) for number in range(len(whole))]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 63


def test_ordinary_trials_keep_checkpoints_and_branches_start_and_end_at_their_step() -> None:
    found = sweep(template={"spec": {"checkpoints": {"exclude": ["/cache"]}}})
    made = planned(found, left(tx=["a"]))
    specs = {number: trial_manifest(found, made, number) for number in range(len(made.grid))}
    assert specs[0]["spec"]["checkpoints"] == {"exclude": ["/cache"], "policy": "AfterStep", "keep": "WithResults"}
    start, own, reference = (specs[made.grid.ordinary + index] for index in range(3))
    assert "from" not in start["spec"] and "fromStep" not in start["spec"] and start["spec"]["toStep"] == "a"
    assert own["spec"]["from"] == {"trial": made.names[0], "step": "a"} and own["spec"]["toStep"] == "b"
    assert reference["spec"]["fromStep"] == reference["spec"]["toStep"] == "b"
    assert own["spec"]["checkpoints"] == {"exclude": ["/cache"]}
    assert [each["metadata"]["labels"]["multistep.dev/branch"] for each in (start, own, reference)] == ["Start", "Own", "Reference"]
    assert own["metadata"]["annotations"]["multistep.dev/step"] == "b"
    assert own["metadata"]["name"].startswith("s-t-x-b-own-1-")
    assert "multistep.dev/branch" not in specs[0]["metadata"]["labels"]
    for each in specs.values():
        parse_trial(each)


def test_the_branches_of_a_task_without_other_steps_are_whole_trials() -> None:
    found = sweep()
    made = planned(found, {0: StepCheckpoints(["task"], [])})
    assert not {"from", "fromStep", "toStep"} & trial_manifest(found, made, made.grid.ordinary)["spec"].keys()


def test_too_many_branches_are_refused() -> None:
    steps = [str(number) for number in range(13)]
    with pytest.raises(InvalidSpec, match=r"spec\.branch: 12 ordinary trials and 52000 branches are 52012 trials; a sweep may"):
        planned(sweep(branch={"attempts": 1000}), {number: StepCheckpoints(steps, []) for number in (0, 2)})


def done(number: int, reward: float = 1.0) -> TrialFacts:
    return TrialFacts(number, "Complete", reward)


def test_branches_are_planned_when_the_ordinary_trials_have_finished_and_the_sweep_ends_after_them() -> None:
    found = sweep(attempts=1)
    base = plan_sweep(found, found.spec.tasks)
    found = found.model_copy(update={"status": started_status(found, base, NOW)})
    finished = [done(number) for number in range(4)]
    early = next_sweep_action(found, base, 4, [*finished[:3], TrialFacts(3, "Active")], NOW)
    assert (early.plan_branches, early.status.phase) == (False, "Running")
    assert early.status.conditions[0].message == "4 of 4 trials were created; the branches follow when they have finished"
    due = next_sweep_action(found, base, 4, finished, NOW)
    assert (due.plan_branches, due.status.phase, due.create) == (True, "Running", range(4, 4))
    stopped = found.model_copy(update={"spec": found.spec.model_copy(update={"suspend": True})})
    assert not next_sweep_action(stopped, base, 4, finished, NOW).plan_branches
    states = states_of(base.grid, left(tx=["a"]))
    whole = with_branches(found, base, states)
    status = branches_planned(whole, states, "record", "sha256:1")
    assert (status.trials, status.missing, status.unknown) == (2 * (4 + 3), 2 + 3 - 2, [])
    found = found.model_copy(update={"status": found.status.model_copy(update={"branches": status})})
    after = next_sweep_action(found, whole, 4, finished, NOW)
    assert (after.plan_branches, after.create, after.status.trials.total) == (False, range(4, 18), 18)
    end = next_sweep_action(found, whole, 18, [*finished, *(done(number, 0.0) for number in range(4, 18))], NOW)
    assert (end.status.phase, end.status.trials.counted) == ("Complete", 18)
    assert [(each.mean, each.counted, each.finished) for each in end.status.agents] == [(1.0, 2, 2), (1.0, 2, 2)]


def test_a_sweep_that_halts_before_its_branches_are_planned_has_failed() -> None:
    found = sweep(attempts=1, stopWhen={"failures": {"Task": 0}})
    base = plan_sweep(found, found.spec.tasks)
    failed = [TrialFacts(number, "Failed", failure_class="Task") for number in range(4)]
    due = next_sweep_action(found, base, 4, failed, NOW)
    assert (due.plan_branches, due.status.phase, due.status.conditions[0].reason) == (False, "Failed", "TooManyFailures")


def test_a_finished_sweep_names_steps_that_no_task_has() -> None:
    found = sweep(attempts=1, branch={"at": ["x"]})
    base = plan_sweep(found, found.spec.tasks)
    states = states_of(base.grid, left(tx=["a"]))
    status = found.status.model_copy(update={"branches": branches_planned(base, states, "record", "sha256:1")})
    end = next_sweep_action(
        found.model_copy(update={"status": status}), with_branches(found, base, states), 4, [done(n) for n in range(4)], NOW
    )
    assert end.status.conditions[0].message == "4 of 4 trials count; no task has the steps 'x' of spec.branch.at"


@given(GRIDS, BRANCHES, st.integers(1, 5), st.data())
def test_a_sweep_with_branches_that_dies_anywhere_makes_each_trial_once(
    grid: TrialGrid, branch: SweepBranch, parallelism: int, data: st.DataObject
) -> None:
    cluster: dict[str, TrialFacts] = {}
    record, creations, now = "", 0, grid
    for _ in range(400):
        counts = count_trials(now, 0, list(cluster.values()), NOW)
        if counts.all_finished:
            break
        if counts.unplanned and counts.planned_finished:
            ends = {each.number: data.draw(LEFT) for each in cluster.values()}
            record = record or record_text(states_of(grid, ends))  # stored once: a restarted operator does not replace it
            if data.draw(st.booleans(), label="dies"):
                continue
            now = replace(grid, branches=cells_of(grid, branch, parse_record(record, grid)))
            continue
        for number in numbers_to_create(counts, SweepLimits(parallelism)):
            name = now.trial_name("s", number)
            if name not in cluster:
                cluster[name], creations = TrialFacts(number, "Active"), creations + 1
            if data.draw(st.booleans(), label="dies"):
                break
        for name in [name for name, each in cluster.items() if each.state == "Active"]:
            cluster[name] = done(cluster[name].number)
    expected = grid.ordinary + count_branches(grid, branch, parse_record(record, grid))
    assert creations == len(cluster) == expected


def test_cells_of_ordinary_trials_have_no_branch() -> None:
    assert GRID.cell(0) == TrialCell(0, 0, 1) and len(GRID) == 12
