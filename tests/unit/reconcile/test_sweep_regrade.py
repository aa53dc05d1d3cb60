"""Test a sweep that regrades another one: it starts when the other sweep has finished, and regrades the trials that count."""

from __future__ import annotations

from typing import Any, cast

import pytest

from multistep.api.sweep.sweep import parse_sweep
from multistep.engine.sweep.trial_manifests import SweepPlan, plan_sweep, trial_manifest
from multistep.kube.cluster_protocols import Cluster
from multistep.reconcile.sweep.decide_at_start import regraded_sweep
from multistep.reconcile.trial.source_checkpoints import GRACE_SECONDS, SOURCE_SECONDS
from tests.support.faults import Faults, Killed
from tests.support.in_part import in_part_or_whole, tried
from tests.support.sweep_world import KEY, START, SweepWorld, assert_each_once, ended, sweep

REGRADE = sweep(regrade={"sweep": "former"})


def former(phase: str, *retries: int) -> dict[str, Any]:
    held = {"type": phase, "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    metadata = {"name": "former", "namespace": KEY[0], "uid": "former-uid", "generation": 1}
    spec = {**sweep()["spec"], **({"retries": list(retries)} if retries else {})}
    return {**sweep(), "metadata": metadata, "spec": spec, "status": {"phase": phase, "conditions": [held]}}


@pytest.mark.parametrize("end", ["Complete", "Failed"])
async def test_it_waits_for_an_active_sweep_and_creates_no_trial_meanwhile(end: str) -> None:
    world = SweepWorld(manifest=REGRADE)
    world.cluster.put(former("Running"))
    assert [await world.reconcile() for _ in range(3)] == [SOURCE_SECONDS] * 3
    assert world.why == ("Pending", "SourceActive") and world.trials == []
    world.cluster.put(former(end))
    await world.run()
    assert_each_once(world)
    assert world.why == ("Complete", "SweepComplete")


async def test_it_can_be_stopped_while_it_waits() -> None:
    world = SweepWorld(manifest=REGRADE)
    world.cluster.put(former("Running"))
    await world.reconcile()
    world.change(stop=True)
    await world.reconcile()
    assert (world.why, world.trials) == (("Failed", "Stopped"), [])


@pytest.mark.parametrize(("age", "waits"), [(0.0, True), (GRACE_SECONDS, False)])
async def test_a_sweep_that_does_not_exist_is_awaited_shortly_as_it_may_be_created_later(age: float, waits: bool) -> None:
    """After the wait the sweep starts, because trials of a deleted sweep or their results may still exist."""
    created = {**REGRADE["metadata"], "creationTimestamp": "2023-11-14T22:13:20Z"}
    world = SweepWorld(manifest={**REGRADE, "metadata": created})
    world.now = START + age
    await world.reconcile()
    assert (world.trials == []) == waits
    await world.run()
    assert world.why == ("Complete", "SweepComplete")


def source_plan(*retries: int) -> tuple[Any, SweepPlan]:
    found = parse_sweep(former("Complete", *retries))
    return found, plan_sweep(found, found.spec.tasks)


def put_source(world: SweepWorld, numbers: dict[int, int], *retries: int, uid: str = "former-uid") -> SweepPlan:
    """Put the source sweep and trials of it into the cluster. numbers: by trial number, the argument with which ``ended`` returns
    the trial's status; retries: the source sweep's spec.retries."""
    found, its = source_plan(*retries)
    world.cluster.put(former("Complete", *retries))
    for number, status in numbers.items():
        made = trial_manifest(found, its, number)
        owners = [{**made["metadata"]["ownerReferences"][0], "uid": uid}]
        metadata = {**made["metadata"], "uid": f"former-{number}", "ownerReferences": owners}
        world.cluster.put({**made, "metadata": metadata, "status": ended(status)})
    return its


async def regraded(world: SweepWorld, its: SweepPlan) -> dict[int, int]:
    """Run the regrade. Return the number of the source's trial, by the number of the regrade's trial, where these differ."""
    await world.run()
    trials = [each for each in world.trials if "regrade" in each["spec"]]
    assert len(trials) == 8
    by_number = {int(each["metadata"]["labels"]["multistep.dev/number"]): each["spec"]["regrade"]["trial"] for each in trials}
    return {number: its.names.index(name) for number, name in by_number.items() if its.names.index(name) != number}


async def test_the_trial_that_counts_for_a_number_is_regraded() -> None:
    """Trial 4 has no score, but its second retry has one. Trial 5 and its retry have no score. Trial 2 has a score, which its retry
    does not replace. The retry of trial 3 is missing."""
    world = SweepWorld(manifest=REGRADE)
    its = put_source(world, {2: 2, 3: 4, 4: 4, 5: 4, 8: 4, 9: 1, 10: 4, 11: 1}, 4, 4, 5, 2, 3)
    assert await regraded(world, its) == {4: 9, 5: 10}


async def test_a_retry_that_the_source_did_not_create_is_not_regraded() -> None:
    """Any user who may create trials can write the source's labels and its UID as owner."""
    world = SweepWorld(manifest=REGRADE)
    its = put_source(world, {4: 4, 8: 4}, 4)
    forged = world.cluster.objects["MultiStepTrial", KEY[0], its.names[8]]
    metadata = {**forged["metadata"], "name": "forged", "uid": "forged-uid"}
    world.cluster.put({**forged, "metadata": metadata, "status": ended(1)})
    assert await regraded(world, its) == {4: 8}


async def test_a_retry_is_regraded_as_its_own_task_agent_and_attempt_also_if_the_numbers_differ() -> None:
    """In the source, trial 1 is the first attempt of agent b at task t. In the regrade, it is the second attempt of agent a."""
    world = SweepWorld(manifest=sweep(regrade={"sweep": "former"}, order="Tasks"))
    its = put_source(world, {1: 4, 5: 4, 8: 1, 9: 1}, 1, 5)
    await world.run()
    sources = {each["metadata"]["name"]: each["spec"]["regrade"]["trial"] for each in world.trials if "regrade" in each["spec"]}
    found = {name[2:7]: its.names.index(source) for name, source in sources.items()}
    assert found == {"t-a-1": 0, "t-b-1": 8, "u-a-1": 2, "u-b-1": 3, "t-a-2": 4, "t-b-2": 9, "u-a-2": 6, "u-b-2": 7}


async def test_only_trials_of_the_source_itself_are_regraded_if_it_exists() -> None:
    """Results of deleted trials of an earlier sweep of that name may still exist."""
    world = SweepWorld(manifest=REGRADE)
    world.cluster.put(former("Complete"))
    await world.run()
    assert {each["spec"]["regrade"]["sweepUID"] for each in world.trials} == {"former-uid"}
    gone = SweepWorld(manifest=REGRADE)
    await gone.run()
    assert len(gone.trials) == 8 and not [each for each in gone.trials if "sweepUID" in each["spec"]["regrade"]]


async def test_a_restarted_operator_regrades_no_trials_of_a_new_sweep_of_the_sources_name() -> None:
    world = SweepWorld(manifest=REGRADE)
    world.cluster.put(former("Complete"))
    await world.reconcile()
    again = former("Running")
    world.cluster.put({**again, "metadata": {**again["metadata"], "uid": "another-uid"}})
    world.sweeps = world.fresh()
    await world.run()
    assert {each["spec"]["regrade"]["sweepUID"] for each in world.trials} == {"former-uid"}
    assert_each_once(world)


async def test_retries_of_branches_are_not_regraded() -> None:
    world = SweepWorld(manifest=REGRADE)
    its = put_source(world, {4: 4, 8: 1}, 4)
    world.cluster.objects["MultiStepTrial", KEY[0], its.names[8]]["metadata"]["labels"]["multistep.dev/branch"] = "Own"
    assert await regraded(world, its) == {}


async def test_a_trial_that_a_user_labelled_as_a_retry_is_not_regraded() -> None:
    world = SweepWorld(manifest=REGRADE)
    its = put_source(world, {4: 4, 8: 1}, 4)
    known = world.cluster.objects["MultiStepTrial", KEY[0], its.names[8]]["metadata"]["annotations"]
    for attempt in ("3", "x"):
        known["multistep.dev/attempt"] = attempt
        assert (await regraded_sweep(cast(Cluster, world.cluster), parse_sweep(REGRADE), its)).counting == {}


async def test_retries_of_a_deleted_sweep_of_that_name_do_not_count() -> None:
    world = SweepWorld(manifest=REGRADE)
    its = put_source(world, {8: 1}, 4, uid="another")
    assert await regraded(world, its) == {}


@in_part_or_whole
async def test_wherever_the_operator_dies_the_same_trials_are_regraded(whole: bool) -> None:
    def world(faults: Faults) -> tuple[SweepWorld, SweepPlan]:
        made = SweepWorld(manifest=REGRADE, faults=faults)
        return made, put_source(made, {4: 4, 8: 1}, 4)

    calm, its = world(Faults())
    assert await regraded(calm, its) == {4: 8}
    for at in tried(range(1, len(calm.faults.trace) + 1), whole, every=9):
        hit, its = world(Faults().fail(at, Killed()))
        assert await regraded(hit, its) == {4: 8}, f"point {at}: {calm.faults.trace[at - 1]}"
        assert_each_once(hit)
