"""A sweep's branches in the simulated cluster: planned once, from a record that outlives the trials from which it was created."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.reconcile.sweep import decide_at_start as record_branches
from tests.support.sweep_world import KEY, SweepWorld, assert_each_once, sweep

ONE = [{"name": "a", "agent": {"name": "nop"}}]
BRANCHED = sweep(agents=ONE, attempts=2, branch={"at": ["each"], "attempts": 2})
ORDINARY = 4


def branches(world: SweepWorld) -> dict[str, list[dict[str, Any]]]:
    """Return the specs of the branches, by the kind of state from which they start: Start, Own or Reference."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in world.trials:
        if state := each["metadata"]["labels"].get("multistep.dev/branch"):
            found.setdefault(state, []).append(each["spec"])
    return found


def record(world: SweepWorld) -> Any:
    ((key, found),) = [(key, each) for key, each in world.cluster.objects.items() if key[0] == "ConfigMap"]
    return key, found


async def test_a_sweep_runs_its_branches_when_the_ordinary_trials_have_finished() -> None:
    world = SweepWorld(manifest=BRANCHED)
    await world.run()
    assert_each_once(world)
    assert world.why == ("Complete", "SweepComplete")
    found = branches(world)
    # There are two branches per step and state. Steps a of both tasks start from the image. Steps b and c start from the agent's
    # state and from the reference state, except that step c of task u has no agent's state: the task's ordinary trials ended in
    # step b.
    assert {state: len(specs) for state, specs in found.items()} == {"Start": 4, "Own": 6, "Reference": 8}
    assert {(spec["from"]["step"], spec["toStep"]) for spec in found["Own"]} == {("a", "b"), ("b", "c")}
    sources = {spec["from"]["trial"] for spec in found["Own"]}
    names = {each["metadata"]["name"] for each in world.trials if "multistep.dev/branch" not in each["metadata"]["labels"]}
    assert sources == names and len(names) == ORDINARY
    status = world.status
    assert (status.trials.total, status.trials.created) == (22, 22)
    assert status.branches is not None and (status.branches.trials, status.branches.missing) == (18, 1)
    assert status.branches.config_map == record(world)[0][2]
    assert sum(each.finished for each in status.agents) == ORDINARY


async def test_deleted_trials_change_nothing_once_the_branches_are_planned() -> None:
    def delete_ordinary(world: SweepWorld) -> None:
        for each in world.trials:
            if "multistep.dev/branch" not in each["metadata"]["labels"]:
                world.cluster.remove("MultiStepTrial", KEY[0], each["metadata"]["name"])
        world.sweeps = world.fresh()

    world = SweepWorld(manifest=BRANCHED, happens={ORDINARY + 3: delete_ordinary})
    await world.run()
    assert_each_once(world)
    assert world.why == ("Complete", "SweepComplete")
    assert (world.status.trials.total, world.status.trials.created, world.status.trials.deleted) == (22, 22, ORDINARY)


async def test_a_deleted_record_is_created_again_from_the_trials() -> None:
    records = []

    def delete(world: SweepWorld) -> None:
        key, found = record(world)
        records.append(found["data"])
        world.cluster.remove(*key)
        world.sweeps = world.fresh()

    world = SweepWorld(manifest=BRANCHED, happens={ORDINARY + 3: delete})
    await world.run()
    assert_each_once(world)
    assert (world.why, world.status.trials.total) == (("Complete", "SweepComplete"), 22)
    assert [record(world)[1]["data"]] == records


async def reconciled(world: SweepWorld, ended: int) -> None:
    """Reconcile until ``ended`` trials have finished and no reconcile is due at once."""
    while world.ended < ended:
        await world.reconcile()
        while world.active and world.ended < ended:
            world.end(world.active[0])
    while await world.reconcile() == 0.0:
        pass


async def test_without_the_record_and_the_trials_it_was_made_from_nothing_else_is_created(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = SweepWorld(manifest=BRANCHED)
    await reconciled(world, ORDINARY)
    before = {each["metadata"]["name"] for each in world.trials}
    world.cluster.remove(*record(world)[0])
    for name in [each for each in before if "-own-" not in each]:
        world.cluster.remove("MultiStepTrial", KEY[0], name)
    world.sweeps = world.fresh()
    assert await world.reconcile() == 10.0
    assert {each["metadata"]["name"] for each in world.trials} <= before
    assert "the record of the planned branches was deleted, and trials changed since" in caplog.text
    assert not [key for key in world.cluster.objects if key[0] == "ConfigMap"]


@pytest.mark.parametrize(
    ("change", "logged"),
    [
        ({"metadata": {"ownerReferences": []}}, "exists, but this sweep did not create it: delete it"),
        ({"immutable": None}, "exists, but this sweep did not create it: delete it"),
        ({"data": {"states": "[]"}}, "is damaged: delete it: it has other tasks"),
    ],
)
async def test_a_record_that_is_not_the_sweeps_delays_its_branches_until_it_is_deleted(
    change: dict[str, Any], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    planned = SweepWorld(manifest=BRANCHED)
    await planned.run()
    key, found = record(planned)
    world = SweepWorld(manifest=BRANCHED)
    world.cluster.put({**found, **change, "metadata": {**found["metadata"], **change.get("metadata", {})}})
    await reconciled(world, ORDINARY)
    assert (world.status.branches, logged in caplog.text) == (None, True)
    world.cluster.remove(*key)
    await world.run()
    assert_each_once(world)
    assert (world.why, world.status.trials.total) == (("Complete", "SweepComplete"), 22)


async def test_a_record_that_changed_after_the_branches_were_planned_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    world = SweepWorld(manifest=BRANCHED)
    await reconciled(world, ORDINARY)
    _, found = record(world)
    world.cluster.put({**found, "data": {"states": found["data"]["states"].replace("3", "1")}})
    world.sweeps = world.fresh()
    assert await world.reconcile() == 10.0
    assert "does not have the branches that were planned: delete it" in caplog.text


async def test_no_branches_are_planned_while_an_ordinary_trial_is_active_that_the_operator_does_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = SweepWorld(manifest=BRANCHED, events="dropped")
    await world.reconcile()
    for each in world.active:
        world.end(each)
        world.sweeps.cache.observe(world.cluster.objects["MultiStepTrial", KEY[0], each["metadata"]["name"]])
    await world.fresh().reconcile(KEY)  # another process creates the last ordinary trial
    assert [world.status.trials.created, len(world.active)] == [ORDINARY, 1]
    assert await world.reconcile() == 10.0
    assert (world.status.branches, "has not finished" in caplog.text) == (None, True)
    await world.run()
    assert_each_once(world)
    assert (world.why, world.status.trials.total) == (("Complete", "SweepComplete"), 22)


async def test_branches_are_planned_at_once_if_the_last_ordinary_trial_was_created_and_finished_by_another_process() -> None:
    world = SweepWorld(manifest=BRANCHED, events="dropped")
    await world.reconcile()
    for each in world.active:
        world.end(each)
        world.sweeps.cache.observe(world.cluster.objects["MultiStepTrial", KEY[0], each["metadata"]["name"]])
    before = world.cluster.objects["TrialSweep", *KEY]
    await world.fresh().reconcile(KEY)
    world.end(world.active[0])
    world.cluster.put(before)  # the other process lost its lease before it wrote the status
    assert await world.reconcile() == 0.0
    await world.reconcile()
    assert world.status.branches is not None


async def test_too_many_branches_fail_the_sweep_and_its_results_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.engine.sweep.trial_manifests.MAX_TRIALS", 21)
    world = SweepWorld(manifest=BRANCHED)
    await world.run()
    assert world.why == ("Failed", "InvalidSpec")
    assert world.status.conditions[0].message.startswith("spec.branch: 4 ordinary trials and 18 branches are 22 trials")
    assert len(world.trials) == ORDINARY and world.status.agents[0].finished == ORDINARY


async def test_a_record_that_no_config_map_can_hold_fails_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_branches, "MAX_BYTES", 10)
    world = SweepWorld(manifest=BRANCHED)
    await world.run()
    assert world.why == ("Failed", "InvalidSpec")
    assert "the record of the steps has more than 10 bytes: use several sweeps" in world.status.conditions[0].message


async def test_trials_of_others_with_the_sweeps_label_leave_no_states() -> None:
    def forge(world: SweepWorld) -> None:
        victim = world.trials[0]
        metadata = {**victim["metadata"], "name": "forged", "ownerReferences": []}
        world.cluster.put({**victim, "metadata": metadata, "status": {"taskSteps": ["x"]}})
        world.cluster.put({**victim, "metadata": {**victim["metadata"], "name": "renamed"}, "status": {"taskSteps": ["x"]}})

    world = SweepWorld(manifest=BRANCHED, happens={1: forge})
    await reconciled(world, ORDINARY)
    assert '"x"' not in record(world)[1]["data"]["states"]
