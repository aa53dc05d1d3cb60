"""The API server's store is put back from an older copy: trials go on, and whatever they wait for is shown and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from multistep.api.trial.trial import KIND
from multistep.errors import Conflict, NotFound, Unavailable
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.reconcile.queue.error_outcome import END_SECONDS, REPORT_SECONDS
from multistep.reconcile.queue.work_queue import WorkQueue
from multistep.reconcile.trial.reconciler import Reconciler
from multistep.sources.reader.read_messages import ReadAnswer, ReadOrder
from multistep.telemetry.metrics import Metrics
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_volume import FakeVolume
from tests.support.reading import read_here
from tests.support.virtual_time import in_virtual_time
from tests.support.world import FILES, SETTINGS, World, manifest
from tests.support.wrapped_cluster import Wrapped

LONG = {"a/agent": 100.0, "b/agent": 100.0}


@dataclass
class Forgetful(Wrapped):
    """A cluster whose nodes do not know some pods that the API server has. unknown: UIDs of these pods."""

    unknown: set[str] = field(default_factory=set)

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> Any:
        if self.cluster.objects["Pod", namespace, pod]["metadata"]["uid"] in self.unknown:
            raise NotFound(f"exec in pod {namespace}/{pod}: pod does not exist (HTTP 404)", status=404)
        return await self.cluster.open_exec(namespace, pod, container, argv)


def forgetful(unknown: set[str], **options: Any) -> World:
    return World(durations=LONG, wrap=lambda cluster: cast(Cluster, Forgetful(cluster, unknown)), **options)


def pod_uids(world: World) -> list[str]:
    return [each["metadata"]["uid"] for (kind, _, _), each in world.cluster.objects.items() if kind == "Pod"]


async def test_a_trial_whose_pod_ended_after_the_copy_was_made_starts_again() -> None:
    """Its status and its pod are back, but the node has no such pod. Regression: it was tried twice a second, without an end and
    with the reason that the status happened to have."""
    unknown = set[str]()
    world = forgetful(unknown)
    await world.run(until=lambda: world.status.current_step == "a")
    copy = world.cluster.backup()
    await world.run()
    rewards = world.status.rewards
    world.cluster.restore_backup(copy)
    unknown.update(pod_uids(world))
    world.reconciler, restored, before = world.fresh(), world.now, world.reconciles
    await world.run(until=lambda: world.now > restored + 2 * REPORT_SECONDS)
    assert world.condition[:2] == ("Reconciling", "ConnectionLost") and "pod does not exist" in world.condition[2]
    await world.run()
    assert world.condition[0] == "Complete" and world.status.rewards == rewards
    assert [each.reason for each in world.status.attempts] == ["PodUnknown"]
    assert world.reconciles - before < 40, "with back-off"


async def test_a_pod_that_its_node_does_not_know_at_the_deadline_is_not_the_agents_doing() -> None:
    unknown = set[str]()
    world = forgetful(unknown, trial=manifest({"activeDeadlineSeconds": 90}))
    await world.run(until=lambda: world.status.current_step == "a")
    unknown.update(pod_uids(world))
    world.reconciler = world.fresh()
    await world.run()
    assert (world.status.phase, world.status.score) == ("Failed", None), world.condition
    assert world.status.failure is not None and world.status.failure.class_ == "Infrastructure"


async def test_a_kubelet_that_restarts_costs_no_attempt() -> None:
    unknown = set[str]()
    world = forgetful(unknown)
    await world.run(until=lambda: world.status.current_step == "a")
    unknown.update(pod_uids(world))
    world.reconciler, before = world.fresh(), world.now
    await world.run(until=lambda: world.now > before + 60)
    unknown.clear()
    await world.run()
    assert (world.condition[0], world.status.attempts) == ("Complete", [])
    assert [step.rewards for step in world.status.steps][:1] == [{"reward": 1}]


async def test_objects_that_change_at_each_try_are_shown_and_end_the_trial_after_a_bounded_time() -> None:
    """Regression: the status kept the reason of an earlier wait for ever."""

    @dataclass
    class Changing(Wrapped):
        async def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
            if manifest["kind"] == "Pod":
                self.cluster.faults.point("changed")
                raise Conflict("the quota was changed", status=409, reason="Conflict")
            return await self.cluster.create(manifest, dry_run=dry_run)

    world = World(wrap=lambda cluster: cast(Cluster, Changing(cluster)))
    start = world.now
    await world.run(until=lambda: world.now > start + REPORT_SECONDS + 1, most=2000)
    assert world.condition == ("Reconciling", "ReconcileFailed", "the quota was changed")
    await world.run(most=2000)
    assert world.condition[:2] == ("Failed", "ReconcileFailed")
    assert END_SECONDS <= world.now - start < END_SECONDS + 10
    assert world.status.failure is not None and world.status.failure.class_ == "Infrastructure"


@dataclass
class SlowToWrite(Wrapped):
    """A cluster whose API server takes 30 s for each write of a status, and then does not answer, as just after a restore."""

    async def apply_status(self, *_: Any, **__: Any) -> Object:
        await asyncio.sleep(30.0)
        raise Unavailable("etcdserver: request timed out", status=504)


@in_virtual_time
async def test_the_tasks_of_a_namespace_are_read_while_writes_of_its_trials_statuses_fail() -> None:
    """Regression: four trials stood at TaskFetching for as long as this lasted. Each slot for a read was granted while its trial
    wrote that it is queued, and was released unused when that write had failed."""
    cluster, read = FakeCluster(pods_run=False), list[str]()
    for number in range(4):
        made = manifest(files={**FILES, "tests/number": str(number)})  # a task of its own
        cluster.put({**made, "metadata": {**made["metadata"], "name": f"t{number}", "uid": f"uid-{number}"}})
    copy = cluster.backup()
    cluster.put({**cluster.objects[KIND, "default", "t0"], "status": {"phase": "Running"}})
    cluster.restore_backup(copy)

    async def slowly(order: ReadOrder) -> ReadAnswer:
        await asyncio.sleep(1.0)
        read.append(order.path)
        return await read_here(order)

    queue: WorkQueue
    reconciler = Reconciler(
        cast(Cluster, SlowToWrite(cluster)), cast(Any, FakeVolume()), SETTINGS, Metrics(), wake=lambda key: queue.add(key)
    )
    reconciler.reader._read = slowly
    queue = WorkQueue(reconciler.reconcile, workers=8)
    queue.start()
    for number in range(4):
        queue.add(("default", f"t{number}"))
        await asyncio.sleep(0.3)
    await asyncio.sleep(180.0)
    assert len(read) == 4
    await queue.stop()
    await reconciler.reads.stop()
