"""Sweeps in a cluster in memory: trials are created in turn, suspended, stopped and counted; errors are reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from multistep.errors import ClusterError, Unavailable
from multistep.reconcile.sweep.reconcile_sweep import REJECTED_RETRY_SECONDS
from multistep.reconcile.sweep.sweep_run import STATUS_SECONDS
from tests.support.sweep_world import KEY, START, SweepWorld, assert_each_once, ended, sweep


async def test_a_sweep_makes_all_of_its_trials_and_ends_with_what_they_came_to() -> None:
    world = SweepWorld()
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
    assert [(each.name, each.counted) for each in world.status.agents] == [("a", 3), ("b", 4)]
    assert [each.mean for each in world.status.agents] == pytest.approx([0.2, 0.4])
    assert world.status.excluded == {"Infrastructure": 1}
    assert world.status.trials.model_dump(exclude_defaults=True) == {
        "total": 8, "created": 8, "finished": 8, "complete": 7, "failed": 1, "counted": 7,
    }  # fmt: skip
    assert world.status.pod_hours == 0.8
    assert len(world.trials) == 8 and world.most == 3
    assert_each_once(world)
    assert [each["reason"] for each in world.cluster.events] == ["SweepStarted", "SweepComplete"]


async def test_its_writes_are_one_creation_for_each_trial_and_few_of_the_status() -> None:
    world = SweepWorld(sweep(attempts=50, parallelism=100))
    await world.run()
    writes = [each.split()[0] for each in world.cluster.writes]
    assert writes.count("create") == 200 and set(writes) == {"create", "apply_status", "create_event"}
    assert writes.count("apply_status") <= 204
    lists = [each for each in world.faults.trace if each == "list MultiStepTrial"]
    assert len(lists) == 1


@pytest.mark.parametrize("later", [STATUS_SECONDS, -3600.0], ids=["later", "after a correction of the node's clock"])
async def test_numbers_that_change_often_are_written_now_and_then(later: float) -> None:
    world = SweepWorld(sweep(parallelism=8))
    while await world.reconcile() is not None:
        pass
    writes = world.cluster.writes.count("apply_status default/s")
    for trial in world.active[:4]:
        world.end(trial)
        assert await world.reconcile() == STATUS_SECONDS
    assert world.cluster.writes.count("apply_status default/s") == writes
    world.now += later
    assert await world.reconcile() is None
    assert world.status.trials.finished == 4


async def test_a_suspended_sweep_suspends_its_trials_and_later_resumes_only_these() -> None:
    world = SweepWorld()
    while await world.reconcile() is not None:
        pass
    theirs = world.active[1]
    world.cluster.put({**theirs, "spec": {**theirs["spec"], "suspend": True}})
    world.change(suspend=True)
    await world.reconcile()
    assert world.why == ("Suspended", "Suspended") and [each["spec"]["suspend"] for each in world.active] == [True] * 3
    world.end(world.active[0])
    await world.reconcile()
    assert len(world.trials) == 3
    world.change(suspend=False)
    await world.reconcile()
    assert [each["spec"].get("suspend", False) for each in world.active] == [True, False, False]
    assert not any("multistep.dev/suspended-by" in each["metadata"]["annotations"] for each in world.active)
    reasons = [each["reason"] for each in world.cluster.events]
    assert reasons == ["SweepStarted", "Suspended", "Resumed"]


async def test_the_next_trials_have_their_pods_ready_and_start_in_turn() -> None:
    world = SweepWorld(sweep(prestart=2))
    while await world.reconcile() is not None:
        pass
    early = [(each["spec"].get("suspend"), each["spec"].get("prestart")) for each in world.active]
    assert early == [(None, None)] * 3 + [(True, True)] * 2
    world.end(world.active[1])
    while await world.reconcile() == 0:
        pass
    assert [each["spec"].get("suspend") for each in world.active] == [None, None, None, True, True]
    assert world.status.trials.active == 5
    await world.run()
    assert world.why == ("Complete", "SweepComplete") and (world.most, world.most_at_work) == (5, 3)
    assert_each_once(world)


async def test_a_budget_that_is_spent_lets_those_that_are_ready_have_their_turn() -> None:
    world = SweepWorld(sweep(prestart=2, stopWhen={"podHours": 0.05}))
    await world.run()
    assert world.why == ("Failed", "BudgetSpent") and world.status.trials.created == 5
    assert not world.active and world.most_at_work == 3


async def test_at_its_deadline_its_trials_are_stopped_and_it_is_failed() -> None:
    world = SweepWorld(sweep(activeDeadlineSeconds=25))
    await world.run()
    assert world.why == ("Failed", "DeadlineExceeded")
    stopped = [each for each in world.trials if each["spec"].get("stop")]
    assert len(world.trials) == 5 and len(stopped) == 3
    assert world.status.excluded == {"User": 3}
    assert [(each["reason"], each["type"]) for each in world.cluster.events][1:] == [("DeadlineExceeded", "Warning")] * 2


def renewed_until(world: SweepWorld, end: float) -> None:
    """Renew the sweep's lease in each round, as its client does, until ``end`` seconds after START."""

    def renew() -> None:
        if world.now < START + end:
            found = world.cluster.objects["TrialSweep", *KEY]
            annotations = {"multistep.dev/renewal": str(world.now)}
            world.cluster.put({**found, "metadata": {**found["metadata"], "annotations": annotations}})

    world.each_round = renew


async def test_a_sweep_whose_client_renews_its_lease_comes_to_its_end() -> None:
    world = SweepWorld(sweep(lease={"seconds": 25}))
    renewed_until(world, end=10_000)
    await world.run()
    assert world.why == ("Complete", "SweepComplete") and world.now - START > 25


async def test_a_sweep_whose_client_dies_stops_its_trials_within_the_lease() -> None:
    world = SweepWorld(sweep(lease={"seconds": 25}, attempts=5))
    renewed_until(world, end=30)
    await world.run()
    assert world.why == ("Failed", "LeaseExpired") and not world.active
    assert [each["spec"].get("stop") for each in world.trials].count(True) == 3
    assert world.status.excluded["User"] == 3 and len(world.trials) < 20


async def test_with_a_spent_budget_no_trial_is_created_and_active_ones_finish() -> None:
    world = SweepWorld(sweep(stopWhen={"podHours": 0.15}))
    await world.run()
    assert world.why == ("Failed", "BudgetSpent")
    assert len(world.trials) == 4 and not [each for each in world.trials if each["spec"].get("stop")]


async def test_a_budget_that_is_raised_in_time_lets_it_continue() -> None:
    world = SweepWorld(sweep(stopWhen={"podHours": 0.15}), happens={3: lambda world: world.change(stopWhen={"podHours": 100})})
    await world.run()
    assert world.why == ("Complete", "SweepComplete") and len(world.trials) == 8


async def test_one_failure_too_many_of_a_class_ends_it() -> None:
    world = SweepWorld(sweep(stopWhen={"failures": {"Infrastructure": 0}}))
    await world.run()
    assert world.why == ("Failed", "TooManyFailures") and world.status.trials.created < 8


async def test_a_deleted_trial_is_reported_and_not_created_again() -> None:
    def delete(world: SweepWorld) -> None:
        world.cluster.remove("MultiStepTrial", "default", world.active[-1]["metadata"]["name"])

    world = SweepWorld(happens={2: delete, 3: delete})
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
    assert (world.status.trials.deleted, world.status.trials.finished, len(world.trials)) == (2, 6, 6)
    assert_each_once(world)


async def test_fewer_at_once_waits_for_some_to_end_and_more_is_created_at_once() -> None:
    world = SweepWorld(sweep(attempts=4), happens={2: lambda world: world.change(parallelism=1)})
    world.happens = {**world.happens, 6: lambda world: world.change(parallelism=9)}
    await world.run()
    assert world.why[0] == "Complete" and world.most == 9


async def test_a_name_of_another_owner_is_reported_and_awaited() -> None:
    world = SweepWorld()
    taken = await name_of(world, 1)
    world.cluster.put({"kind": "MultiStepTrial", "metadata": {"name": taken}, "spec": {}})
    assert await world.reconcile() == REJECTED_RETRY_SECONDS
    assert shown(world) == ["Running", "NameTaken"]
    conditions = {each.type: each for each in world.status.conditions}
    assert conditions["Stalled"].status == "True" and taken in conditions["Stalled"].message
    assert world.cluster.events[-1]["reason"] == "NameTaken"
    assert len(world.trials) == 1
    world.cluster.remove("MultiStepTrial", "default", taken)
    await world.run()
    assert world.why[0] == "Complete" and len(world.trials) == 8


def shown(world: SweepWorld) -> list[str | None]:
    return list(world.why)


async def name_of(world: SweepWorld, number: int) -> str:
    other = SweepWorld(world.manifest)
    await other.reconcile()
    return next(n for n, each in other_trials(other).items() if each["metadata"]["labels"]["multistep.dev/number"] == str(number))


def other_trials(world: SweepWorld) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in world.trials}


async def test_a_trial_that_is_refused_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SweepWorld()
    create = world.cluster.create

    async def refused(manifest: Any, **options: Any) -> Any:
        raise ClusterError("exceeded quota: trials=2", status=403, reason="Forbidden")

    monkeypatch.setattr(world.cluster, "create", refused)
    assert await world.reconcile() == REJECTED_RETRY_SECONDS
    assert shown(world) == ["Running", "TrialRefused"] and "exceeded quota" in world.status.conditions[0].message
    monkeypatch.setattr(world.cluster, "create", create)
    await world.run()
    assert world.why[0] == "Complete"


async def test_an_api_server_that_is_away_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SweepWorld()

    async def away(manifest: Any, **options: Any) -> Any:
        raise Unavailable("no answer")

    monkeypatch.setattr(world.cluster, "create", away)
    await world.reconcile()
    assert [str(each) for each in world.errors] == ["no answer"] and world.why == ("Pending", "SweepStarted")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"attempts": "many"}, "spec.attempts"),
        ({"agents": [{"name": "a", "agent": {"name": "nop"}}] * 2}, "names must be unique"),
        ({"attempts": 1000, "agents": [{"name": f"a{n}", "agent": {"name": "nop"}} for n in range(64)]}, "a sweep may have 50000"),
    ],
)
async def test_a_spec_that_cannot_be_run_is_failed_with_what_is_wrong(spec: dict[str, Any], message: str) -> None:
    world = SweepWorld(sweep(**spec))
    assert await world.reconcile() is None
    assert world.why == ("Failed", "InvalidSpec") and message in world.status.conditions[0].message
    assert world.trials == [] and await world.reconcile() is None


async def test_a_status_that_cannot_be_read_is_written_again() -> None:
    world = SweepWorld({**sweep(), "status": {"trials": 3}})
    await world.reconcile()
    assert world.why == ("Failed", "InvalidSpec")


async def test_when_its_time_has_come_it_is_deleted_with_all_of_its_trials() -> None:
    world = SweepWorld(sweep(ttlSecondsAfterFinished=100))
    while world.status.phase != "Complete":
        await world.reconcile()
        for each in world.active:
            world.end(each)
    assert await world.reconcile() == pytest.approx(100)
    world.now += 100
    assert await world.reconcile() is None
    assert world.cluster.objects == {}
    assert await world.reconcile() is None


async def test_a_change_after_its_end_is_noted() -> None:
    world = SweepWorld()
    await world.run()
    before = world.status
    world.change(parallelism=7)
    await world.reconcile()
    assert world.status.observed_generation == 2 and world.status.trials == before.trials


async def test_its_record_stays_when_its_trials_are_deleted_after_its_end() -> None:
    world = SweepWorld()
    await world.run()
    before = world.status
    for each in world.trials:
        world.cluster.remove("MultiStepTrial", "default", each["metadata"]["name"])
    await world.reconcile()
    world.sweeps = world.fresh()
    await world.reconcile()
    assert world.status == before


async def test_one_that_is_being_deleted_makes_nothing() -> None:
    found = sweep()
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world = SweepWorld(found)
    assert await world.reconcile() is None
    assert world.trials == []


async def test_trials_of_a_former_sweep_of_the_same_name_are_not_counted_and_hold_it_up_until_they_are_gone() -> None:
    former = SweepWorld()
    await former.run()
    world = SweepWorld(sweep() | {"metadata": {**sweep()["metadata"], "uid": "another"}})
    for each in former.trials:
        world.cluster.put(each)
    assert await world.reconcile() == REJECTED_RETRY_SECONDS
    assert (world.why, world.status.trials.created) == (("Running", "NameTaken"), 0)


async def test_a_name_that_an_orphan_has_is_reported_with_the_commands_to_delete_or_adopt_it() -> None:
    world = SweepWorld()
    taken = await name_of(world, 0)
    world.cluster.put({"kind": "MultiStepTrial", "metadata": {"name": taken}, "spec": {}})
    await world.reconcile()
    message = world.status.conditions[0].message
    assert "kubectl -n default delete multisteptrials -l multistep.dev/sweep=s" in message
    patch = json.loads(message.partition("-p '")[2].rpartition("'")[0])
    orphan = world.cluster.objects["MultiStepTrial", "default", taken]
    number = {"multistep.dev/number": "0", "multistep.dev/sweep": "s"}
    world.cluster.put({**orphan, "status": ended(0), "metadata": {**orphan["metadata"], **patch["metadata"], "labels": number}})
    await world.run()
    assert world.why[0] == "Complete" and (world.status.trials.complete, world.made[taken]) == (7, 1)


async def test_a_trial_that_names_the_sweep_by_its_uid_is_adopted() -> None:
    world = SweepWorld()
    taken = await name_of(world, 0)
    reference = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "s", "uid": "sweep-uid"}
    metadata = {"name": taken, "labels": {"multistep.dev/number": "0", "multistep.dev/sweep": "s"}, "ownerReferences": [reference]}
    world.cluster.put({"kind": "MultiStepTrial", "metadata": metadata, "spec": {}})
    await world.run()
    assert world.why[0] == "Complete" and len(world.trials) == 8
    assert world.cluster.objects["MultiStepTrial", "default", taken]["metadata"]["ownerReferences"] == [
        {**reference, "controller": True}
    ]


@pytest.mark.parametrize("number", ["0", "7", "99", "oops"])
async def test_a_forged_trial_is_not_counted_and_reported_once(number: str) -> None:
    world = SweepWorld()
    reference = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "s", "uid": "sweep-uid", "controller": True}
    labels = {"multistep.dev/number": number, "multistep.dev/sweep": "s"}
    metadata = {"name": "forged", "labels": labels, "ownerReferences": [reference]}
    world.cluster.put({"kind": "MultiStepTrial", "metadata": metadata, "spec": {}, "status": ended(2)})
    await world.run()
    assert (world.why[0], world.status.trials.total, world.status.trials.finished) == ("Complete", 8, 8)
    assert [each["note"] for each in world.cluster.events if each["reason"] == "ForeignTrials"] == [
        "1 trial claims to be of this sweep, which did not create it (forged); not counted"
    ]


async def test_a_trial_with_a_changed_number_is_no_trial_of_the_sweep() -> None:
    world = SweepWorld()
    while await world.reconcile() is not None:
        pass
    odd = world.active[0]
    world.cluster.put(
        {**odd, "metadata": {**odd["metadata"], "labels": {**odd["metadata"]["labels"], "multistep.dev/number": "7"}}}
    )
    await world.reconcile()
    world.now += STATUS_SECONDS
    await world.reconcile()
    assert await name_of(world, 0) == odd["metadata"]["name"]
    assert world.status.trials.deleted >= 1
    assert_each_once(world, parallelism=4)


async def test_a_sweep_of_another_shard_is_left_alone() -> None:
    found = sweep()
    found["metadata"]["labels"] = {"multistep.dev/shard": "theirs"}
    world = SweepWorld(found)
    assert await world.reconcile() is None
    assert world.cluster.writes == []


async def started(world: SweepWorld) -> bytes:
    """Let the sweep create its first trials; return a backup of the cluster's store."""
    while await world.reconcile() is not None:
        pass
    assert len(world.active) == 3
    return world.cluster.backup()


async def test_a_sweep_whose_store_is_restored_from_an_older_copy_creates_the_lost_trials_again_and_completes() -> None:
    """The restored store lacks trials that the operator remembers: the operator creates them again, without a restart."""
    world = SweepWorld()
    copy = await started(world)
    for trial in world.active:
        world.end(trial)
        world.now += STATUS_SECONDS
        await world.reconcile()
    assert world.status.trials.created == 6
    world.cluster.restore_backup(copy)
    world.ended = 0
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
    assert world.status.trials.model_dump(exclude_defaults=True)["finished"] == len(world.trials) == 8
    assert world.status.excluded == {"Infrastructure": 1}


async def test_a_finished_sweep_whose_store_is_restored_from_an_older_copy_runs_its_trials_to_their_end_again() -> None:
    world = SweepWorld()
    copy = await started(world)
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
    world.cluster.restore_backup(copy)
    world.ended = 0
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
    assert world.status.trials.model_dump(exclude_defaults=True)["finished"] == len(world.trials) == 8
    assert world.status.excluded == {"Infrastructure": 1}


async def test_a_sweep_whose_cost_budget_is_spent_is_suspended_until_the_budget_is_raised() -> None:
    world = SweepWorld(sweep(budget={"costUSD": 1}))
    while await world.reconcile() is not None:
        pass
    refused = world.active[0]
    start = datetime.fromtimestamp(world.now + 1, UTC).isoformat()
    attempt = {"number": 1, "reason": "SweepBudgetSpent", "steps": [{"name": "a", "startTime": start, "usage": {"costUSD": 0.75}}]}
    world.cluster.put({**refused, "status": {"phase": "Pending", "attempt": 2, "attempts": [attempt]}})
    await world.reconcile()
    assert world.why == ("Suspended", "CostBudgetSpent")
    assert world.status.cost_usd == 0.75
    assert [each["spec"].get("suspend") for each in world.active] == [True] * 3
    world.now += 60
    world.change(budget={"costUSD": 5})
    await world.reconcile()
    assert world.status.phase == "Running"
    assert [each["spec"].get("suspend") for each in world.active] == [None] * 3
    reasons = [each["reason"] for each in world.cluster.events]
    assert reasons == ["SweepStarted", "CostBudgetSpent", "Resumed"]
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
    assert_each_once(world)


async def test_a_stopped_sweep_stops_its_trials_and_is_failed_and_continues_with_retries() -> None:
    world = SweepWorld(happens={2: lambda world: world.change(stop=True)})
    await world.run()
    assert world.why == ("Failed", "Stopped") and not world.active
    assert world.status.trials.created < 8 and world.status.excluded["User"] > 0
    stopped = [int(each["metadata"]["labels"]["multistep.dev/number"]) for each in world.trials if each["spec"].get("stop")]
    world.change(stop=False, retries=stopped)
    await world.run()
    assert world.why == ("Complete", "SweepComplete") and len(world.trials) == 11
    assert world.status.trials.retried == 3 and "User" not in world.status.excluded
    assert_each_once(world)
