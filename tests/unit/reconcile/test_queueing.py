"""Trials whose pods wait in a Kueue queue, reconciled in an in-memory cluster with a minimal Kueue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from multistep.kube.cluster_protocols import Cluster, Object
from multistep.sources.load.load_trial import LoadedTrial
from tests.support.faults import Faults, Killed
from tests.support.world import KEY, SEPARATE, START, World, manifest
from tests.support.wrapped_cluster import Wrapped

QUEUE = "kueue.x-k8s.io/queue-name"
GATE = {"name": "kueue.x-k8s.io/admission"}
SHORT = {"environment": {"docker_image": "img"}, "steps": [{"name": "a"}]}
STRIDE = 4  # every 4th crash point is tried; trying all would take a minute
EVICTED = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted", "message": "for others"}


class Kueue(Wrapped):
    """A cluster whose webhook gates each pod that names a queue."""

    async def create(self, pod: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        if pod["kind"] != "Pod" or dry_run:
            return await self.cluster.create(pod, dry_run=dry_run)
        labels = pod["metadata"]["labels"]
        if QUEUE not in labels:
            made = await self.cluster.create(pod)
            self.cluster.run_pod(KEY[0], pod["metadata"]["name"])
            return made
        metadata = {**pod["metadata"], "labels": {**labels, "kueue.x-k8s.io/managed": "true"}}
        return await self.cluster.create({**pod, "metadata": metadata, "spec": {**pod["spec"], "schedulingGates": [GATE]}})


def queued(
    spec: dict[str, Any] | None = None, config: Any = None, labels: Mapping[str, str] | None = None, **options: Any
) -> World:
    trial = manifest(spec, config)
    trial["metadata"]["labels"] = {QUEUE: "team", **(labels or {})}
    return World(trial=trial, pods_run=False, wrap=lambda cluster: cast(Cluster, Kueue(cluster)), **options)


def admit(world: World, name: str = "t-1") -> None:
    pod = world.cluster.objects["Pod", KEY[0], name]
    world.cluster.put({**pod, "spec": {**pod["spec"], "schedulingGates": []}})
    world.cluster.run_pod(KEY[0], name)


def suspended(world: World) -> str:
    return next((each.status for each in world.status.conditions if each.type == "Suspended"), "")


async def test_a_queued_trial_waits_visibly_and_its_deadline_with_it() -> None:
    world = queued({"activeDeadlineSeconds": 500})
    assert await world.reconcile() is None  # None: no timer is set, only an event requeues the trial
    waiting = "pod t-1 waits in the queue team until Kueue admits it"
    assert (world.status.phase, world.condition[1:], suspended(world)) == ("Pending", ("QueuedByKueue", waiting), "True")
    writes = world.status_writes
    world.now += 10_000
    assert await world.reconcile() is None
    assert world.status_writes == writes
    admit(world)
    await world.run()
    assert (world.condition[0], suspended(world), world.status.suspended_seconds) == ("Complete", "", 10_000)
    assert world.status.attempts == []


async def test_a_queued_trial_is_requeued_by_an_operator_that_was_just_started() -> None:
    world = queued()
    await world.reconcile()
    world.reconciler = world.fresh()
    assert await world.reconcile() is None and world.condition[1] == "QueuedByKueue"


async def test_a_trial_that_kueue_evicts_waits_in_the_queue_again() -> None:
    world = queued(durations={"a/agent": 100.0})
    await world.reconcile()
    admit(world)
    await world.reconcile()
    pod = world.cluster.objects["Pod", KEY[0], "t-1"]
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"  # the pod exists until Kueue removes its finalizer
    world.cluster.set_pod_status(KEY[0], "t-1", conditions=[EVICTED])
    await world.run(until=lambda: world.condition[1] == "QueuedByKueue")
    (lost,) = world.status.attempts
    assert (lost.reason, lost.message, world.status.pod_name) == (
        "EvictedByKueue",
        "WorkloadEvictedDueToPreempted: for others",
        "t-2",
    )
    admit(world, "t-2")
    await world.run()
    assert world.condition[0] == "Complete" and len(world.status.attempts) == 1


async def test_a_pod_that_was_queued_is_not_kept_for_ever() -> None:
    world = queued({"podCleanup": "Never"})
    await world.reconcile()
    admit(world)
    await world.run()
    assert (world.condition[0], world.pods) == ("Complete", [])


async def test_a_pod_that_was_queued_is_kept_for_as_long_as_the_spec_sets() -> None:
    world = queued({"podCleanup": "Never", "podTTLSecondsAfterFinished": 600})
    await world.reconcile()
    admit(world)
    await world.run(until=lambda: world.condition[0] == "Complete")
    done = world.now
    await world.reconcile()
    assert world.pods == ["t-1"]
    await world.run()
    assert (world.pods, world.now - done >= 600) == ([], True)


async def test_a_verifiers_pod_waits_in_no_queue_or_in_one_of_its_own() -> None:
    world = queued(config=SEPARATE)
    await world.reconcile()
    admit(world)
    await world.run()
    assert world.condition[0] == "Complete"

    world = queued({"activeDeadlineSeconds": 500}, SEPARATE, {"multistep.dev/verifier-queue": "judges"})
    await world.reconcile()
    admit(world)
    for step in range(3):
        name = f"t-1-v{step}"
        await world.run(until=lambda name=name: name in world.pods and world.condition[1] == "QueuedByKueue")  # type: ignore[misc]
        assert (world.status.phase, world.condition[2]) == (
            "Running",
            f"pod {name} waits in the queue judges until Kueue admits it",
        )
        world.now += 1000
        assert await world.reconcile() is None
        admit(world, name)
        await world.reconcile()
    await world.run()
    assert world.condition[0] == "Complete" and world.now >= START + 3000


async def test_a_queued_trial_that_is_suspended_gives_up_its_place_and_takes_another_later() -> None:
    world = queued()
    await world.reconcile()
    world.change_trial(suspend=True)
    await world.run()
    assert (world.status.phase, world.pods, world.condition[1]) == ("Suspended", [], "Released")
    world.change_trial(suspend=False)
    await world.reconcile()
    assert (world.condition[1], world.status.pod_name) == ("QueuedByKueue", "t-2")


async def played(faults: Faults, plans: dict[str, LoadedTrial]) -> World:
    """Run a trial to its end: Kueue admits its pod, evicts it once, and admits the pod of the next attempt."""
    spec = {"podCleanup": "Never", "activeDeadlineSeconds": 1000}
    world = queued(spec, SHORT, durations={"a/agent": 100.0}, faults=faults, plans=plans)

    async def until_queued(pod: str) -> None:
        await world.run(until=lambda: suspended(world) == "True" and world.status.pod_name == pod)

    await until_queued("t-1")
    world.now += 5000
    admit(world)
    await world.run(until=lambda: world.status.steps)
    world.cluster.set_pod_status(KEY[0], "t-1", conditions=[EVICTED])
    await until_queued("t-2")
    world.now += 5000
    admit(world, "t-2")
    await world.run()
    return world


def assert_ran_as_if_nothing_had_happened(world: World) -> None:
    assert (world.condition[0], world.pods) == ("Complete", []), world.condition
    assert [each.reason for each in world.status.attempts] == ["EvictedByKueue"]
    assert [step.rewards for step in world.status.steps] == [{"reward": 1}]
    assert world.status.suspended_seconds in range(10_000, 10_200)
    assert all(set(each.starts.values()) <= {1} for each in world.cluster.runners.values())


async def test_an_operator_that_dies_anywhere_loses_no_place_and_no_time_of_a_queued_trial() -> None:
    faults, plans = Faults(), dict[str, LoadedTrial]()
    assert_ran_as_if_nothing_had_happened(await played(faults, plans))
    points = len(faults.trace)
    assert points > 60
    for point in range(1, points + 1, STRIDE):
        assert_ran_as_if_nothing_had_happened(await played(Faults().fail(point, Killed()), plans))
