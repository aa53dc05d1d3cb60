"""More trials than slots: limits hold, namespaces share, and every trial completes with its own reward."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from multistep.api.common.base_model import API_VERSION
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import KIND, parse_status
from multistep.app.operator import App
from multistep.errors import ClusterError, Unavailable
from multistep.kube.cluster_protocols import ExecStream, Object
from multistep.kube.request_limit import MAX_IN_FLIGHT
from multistep.pods import pod_identity
from multistep.reconcile.queue.event_filter import EventFilter
from multistep.reconcile.queue.work_queue import WorkQueue
from multistep.reconcile.trial.reconciler import Reconciler
from multistep.settings import Settings
from multistep.telemetry.metrics import Metrics
from tests.support import forked
from tests.support.cluster_server import Load, client_of, kubeconfig, serve_cluster
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_runner import FakeRunner
from tests.support.fake_volume import FakeVolume
from tests.support.played import rewarded
from tests.support.reading import reads_here
from tests.support.virtual_time import in_virtual_time
from tests.support.world import READING

MANY = pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.long)])
FILES = {"instruction.md": "do it\n", "tests/test.sh": "true\n", "solution/solve.sh": "true\n"}
CROWD, FEW = "crowd", "few"
EPOCH = 1_700_000_000.0


def trial(namespace: str, number: int, **spec: Any) -> Object:
    task = {"inline": {"config": {"environment": {"docker_image": "img"}}, "files": FILES}}
    metadata = {"name": f"t{number}", "namespace": namespace, "generation": 1}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"task": task, **spec}}


def runner_of(pod: Object) -> FakeRunner:
    """Return a fake runner whose verifier writes the reward that ``reward_of`` assigns to the pod's trial."""
    results = {"1/task/verifier": rewarded(txt=str(reward_of(pod_identity.trial_of(pod) or ("", ""))))}
    return FakeRunner(pod["metadata"]["uid"], results=results, files={"/logs/agent": {"log.txt": b"agent"}})


def reward_of(key: tuple[str, str]) -> float:
    return int(key[1].removeprefix("t")) / 1000


def statuses(cluster: FakeCluster) -> dict[tuple[str, str], TrialStatus]:
    return {(key[1], key[2]): parse_status(each) for key, each in cluster.objects.items() if key[0] == KIND}


def waits_for_its_pod(status: TrialStatus) -> bool:
    """Return whether the trial waits for its turn, or for its pod to start."""
    return any(each.type == "Ready" and each.reason in ("Queued", "PodStarting") for each in status.conditions)


def assert_all_complete(cluster: FakeCluster, count: int) -> None:
    found = statuses(cluster)
    assert len(found) == count
    assert {key: (each.phase, each.rewards) for key, each in found.items()} == {
        key: ("Complete", {"reward": reward_of(key)}) for key in found
    }
    assert all(each.attempts == [] for each in found.values())
    assert len(cluster.runners) == count
    assert all(set(each.starts.values()) == {1} for each in cluster.runners.values())


# -- deterministic tests in virtual time


class World:
    """A work queue, a reconciler and an in-memory cluster, in virtual time.

    refused: if n, one of n calls is answered with 429; if 0, none is. impossible: a namespace whose pods are never scheduled.
    """

    def __init__(self, *, starting_pods: int, open_execs: int, refused: int = 0, impossible: str = "") -> None:
        loop = asyncio.get_running_loop()
        self.time = loop.time
        self.metrics, self.event_filter, self.impossible = Metrics(), EventFilter(), impossible
        self.cluster = FakeCluster(make_runner=runner_of, pods_run=False, on_change=self._changed)
        edge = Shedding(self.cluster, refused)
        settings = Settings(starting_pods=starting_pods, exec_sessions=open_execs, linger_seconds=0.0, task_cache_dir=READING)
        self.edge, self.finished = edge, list[tuple[str, str]]()
        self.most_starting = 0
        self.reconciler = Reconciler(
            edge,
            FakeVolume(),  # type: ignore[arg-type]
            settings,
            self.metrics,
            clock=lambda: EPOCH + self.time(),
            wake=lambda key: self.queue.add(key),
        )
        reads_here(self.reconciler)
        self.queue = WorkQueue(self.reconciler.reconcile, workers=settings.reconcile_workers)
        self.queue.start()

    @property
    def starting(self) -> list[Object]:
        return [each for key, each in self.cluster.objects.items() if key[0] == "Pod" and each["status"]["phase"] == "Pending"]

    def _changed(self, type: str, found: Object) -> None:
        """Deliver a change to the operator as its watches do; schedule and start new pods."""
        kind, namespace, name = found["kind"], found["metadata"]["namespace"], found["metadata"]["name"]
        reported = None if type == "ADDED" else type
        if kind == KIND:
            if (found.get("status") or {}).get("phase") == "Complete" and (namespace, name) not in self.finished:
                self.finished.append((namespace, name))
            key = self.event_filter.trial(found, reported)
        else:
            if type == "ADDED":
                found["metadata"]["creationTimestamp"] = datetime.fromtimestamp(EPOCH + self.time(), UTC).isoformat()
                asyncio.get_running_loop().call_soon(self._schedule, namespace, name)
            heard = self.event_filter.pod({**found, "status": found.get("status") or {}}, reported)
            wanted = heard is not None and self.reconciler.on_pod_event(heard, reported) is not None
            key = heard.key if heard is not None and wanted else None
        if key is not None:
            self.queue.add(key)

    def _schedule(self, namespace: str, name: str) -> None:
        self.most_starting = max(self.most_starting, len(self.starting))
        if namespace == self.impossible:
            condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
            self.cluster.set_pod_status(namespace, name, conditions=[condition])
        else:
            asyncio.get_running_loop().call_later(2.0, self.cluster.run_pod, namespace, name)


class Shedding:
    """A slow cluster that rejects one of ``one_of`` calls (0: none) and counts open exec sessions.

    The rejected calls are drawn, with a fixed seed: every n-th call could be the same one of each reconcile of the last trials.

    quota: highest number of pods in a namespace, or 0 for no quota; over_quota: number of creations that the quota rejected.
    """

    def __init__(self, cluster: FakeCluster, one_of: int) -> None:
        self._cluster = cluster
        self._one_of = one_of
        self.quota, self.over_quota = 0, 0
        self._drawn = random.Random(0)
        self.open_execs = self.most_execs = self.refused = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._cluster, name)

        async def shed(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.01)
            if self._one_of and self._drawn.random() < 1 / self._one_of:
                self.refused += 1
                raise Unavailable("too many requests", status=429, retry_after=7.0)
            return await call(*args, **kwargs)

        return shed

    async def create(self, pod: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        namespace = pod["metadata"]["namespace"]
        if (
            pod["kind"] == "Pod"
            and self.quota
            and sum(key[:2] == ("Pod", namespace) for key in self._cluster.objects) >= self.quota
        ):
            await asyncio.sleep(0.01)
            self.over_quota += 1
            raise ClusterError(f"pods {pod['metadata']['name']} is forbidden: exceeded quota: few", status=403, reason="Forbidden")
        return cast(Object, await self.__getattr__("create")(pod, dry_run=dry_run))

    async def open_exec(self, *args: Any) -> ExecStream:
        stream = await self.__getattr__("open_exec")(*args)
        self.open_execs += 1
        self.most_execs = max(self.most_execs, self.open_execs)
        close, receive = stream.close, stream.receive

        async def slowly() -> bytes:
            await asyncio.sleep(0.1)
            return bytes(await receive())

        async def closed() -> None:
            self.open_execs -= not stream.closed
            await close()

        stream.close, stream.receive = closed, slowly
        return stream  # type: ignore[no-any-return]


@MANY
@in_virtual_time
async def test_many_trials_keep_to_the_bounds_and_share_them(count: int) -> None:
    world = World(starting_pods=10, open_execs=8)
    for number in range(count):
        world.cluster.put(trial(CROWD if number < count - 5 else FEW, number))
    async with asyncio.timeout(3600):
        while len(world.finished) < count:
            await asyncio.sleep(10)
    assert_all_complete(world.cluster, count)
    assert (world.most_starting, world.edge.most_execs) == (10, 8)
    assert max(world.finished.index((FEW, f"t{number}")) for number in range(count - 5, count)) < 30
    starts, execs = world.reconciler.admission.starts, world.reconciler.admission.execs
    assert (starts.held, starts.waiting, execs.held, execs.waiting, world.queue.depth) == (0, 0, 0, 0, 0)
    await world.queue.stop()


@pytest.mark.parametrize("count", [120, pytest.param(500, marks=pytest.mark.long)])
@in_virtual_time
async def test_many_trials_wait_for_a_small_quota_and_only_one_asks_again(count: int) -> None:
    world = World(starting_pods=50, open_execs=48)
    world.edge.quota = 5
    for number in range(count):
        world.cluster.put(trial(CROWD, number))
    quotas = world.reconciler.admission.quotas
    await asyncio.sleep(5)
    assert quotas.waiting > count / 2
    assert all(reasons(world, key) == {"QuotaExceeded"} for key in quotas._kinds)
    async with asyncio.timeout(24 * 3600):
        while len(world.finished) < count:
            await asyncio.sleep(1)
    assert_all_complete(world.cluster, count)
    assert world.edge.over_quota < 2 * count  # a try every ten seconds would cause ten times as many rejections
    assert max(writes(world, (CROWD, f"t{number}")) for number in range(count)) <= 12
    assert quotas.waiting == 0
    await world.queue.stop()


@MANY
@in_virtual_time
async def test_everything_completes_though_one_of_seven_calls_is_refused(count: int) -> None:
    world = World(starting_pods=10, open_execs=8, refused=7)
    for number in range(count):
        world.cluster.put(trial(CROWD, number))
    async with asyncio.timeout(24 * 3600):
        while len(world.finished) < count:
            await asyncio.sleep(10)
    assert_all_complete(world.cluster, count)
    assert (world.most_starting, world.edge.most_execs) == (10, 8)
    assert world.edge.refused > 2 * count
    await world.queue.stop()


@in_virtual_time
async def test_a_namespace_of_impossible_pods_stops_no_other_and_is_slowed_down_itself() -> None:
    world = World(starting_pods=5, open_execs=8, impossible=CROWD)
    for number in range(100):
        world.cluster.put(trial(CROWD, number))
    await asyncio.sleep(10)
    assert len(world.starting) == 5
    started = world.time()
    for number in range(100, 120):
        world.cluster.put(trial(FEW, number))
    while len(world.finished) < 20:
        await asyncio.sleep(1)
    assert world.time() - started < 20  # pods start five at a time and take two seconds
    await asyncio.sleep(55)
    assert len(world.starting) == 10  # after a minute, the first five pods have released their slots to five more
    await world.queue.stop()


@in_virtual_time
async def test_a_trial_that_is_queued_for_long_reports_it_once() -> None:
    world = World(starting_pods=1, open_execs=8, impossible=CROWD)
    world.cluster.put(trial(CROWD, 0))
    await asyncio.sleep(1)
    world.cluster.put(trial(CROWD, 1))
    key = (CROWD, "t1")
    await asyncio.sleep(28)
    assert [reasons(world, key), writes(world, key)] == [{"PodStarting"}, 1]
    await asyncio.sleep(20)
    assert [reasons(world, key), writes(world, key)] == [{"Queued"}, 2]
    await asyncio.sleep(20)  # the first pod has held its slot for a minute
    assert reasons(world, key) == {"Unschedulable"}
    await world.queue.stop()


@in_virtual_time
async def test_a_deadline_ends_the_wait_for_a_turn() -> None:
    world = World(starting_pods=1, open_execs=8, impossible=CROWD)
    world.cluster.put(trial(CROWD, 0))
    await asyncio.sleep(1)
    world.cluster.put(trial(CROWD, 1, activeDeadlineSeconds=40))
    await asyncio.sleep(45)
    assert reasons(world, (CROWD, "t1")) == {"DeadlineExceeded"}
    await world.queue.stop()


async def test_pods_that_start_when_the_operator_starts_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.kube.requests.pause_seconds", lambda *_: 0.0)
    cluster = FakeCluster(pods_run=False)
    for number in range(4):
        found = await cluster.create(trial(CROWD, number))
        owner = {"apiVersion": API_VERSION, "kind": KIND, "name": f"t{number}", "uid": found["metadata"]["uid"]}
        labels = {pod_identity.LABEL_TRIAL: f"t{number}"}
        metadata = {"name": f"t{number}-1", "namespace": CROWD, "labels": labels, "ownerReferences": [owner]}
        metadata["creationTimestamp"] = datetime.now(UTC).isoformat()
        await cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    cluster.run_pod(CROWD, "t3-1")
    app = App(Settings(results_dir=tmp_path))
    app.reconciler = Reconciler(cluster, app.volume, app.settings, app.metrics)
    async with serve_cluster(cluster, Load(capacity=64)) as url, client_of(url) as client:
        await app._count_starting_pods(client)
        assert app.reconciler.admission.starts.held == 3
    async with client_of("http://127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await app._count_starting_pods(client)
    app.volume.close()


def reasons(world: World, key: tuple[str, str]) -> set[str]:
    return {each.reason for each in statuses(world.cluster)[key].conditions if each.type == "Ready" or each.status == "True"}


def writes(world: World, key: tuple[str, str]) -> int:
    return world.cluster.writes.count(f"apply_status {key[0]}/{key[1]}")


# -- the operator as a process, and a slow API server that rejects many requests

STARTING_PODS, EXEC_SESSIONS = 20, 32


@asynccontextmanager
async def operator(url: str, path: Path, **more: str) -> AsyncIterator[None]:
    """Run the operator in its own process. path/log contains its log. more: further settings, by variable."""
    (path / "results").mkdir()
    settings = {
        "KUBECONFIG": str(kubeconfig(url, path / "kubeconfig")),
        "MULTISTEP_RESULTS_DIR": str(path / "results"),
        "MULTISTEP_LISTEN_HOST": "127.0.0.1",
        "MULTISTEP_RESULTS_PORT": "0",
        "MULTISTEP_METRICS_PORT": "0",
        "MULTISTEP_STARTING_PODS": str(STARTING_PODS),
        "MULTISTEP_EXEC_SESSIONS": str(EXEC_SESSIONS),
    }
    program = await asyncio.to_thread(forked.start, forked.OPERATOR, (), os.environ | settings | more, path / "log", path / "log")
    try:
        yield
    finally:
        program.signal(signal.SIGTERM)
        await asyncio.to_thread(program.exit_code)


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.long)])
async def test_many_trials_complete_while_the_api_server_is_slow_and_refuses_much(tmp_path: Path, count: int) -> None:
    # No pod runs before all trials wait for their turn, so that the turns decide the order, and not how fast this machine is.
    may_run = asyncio.Event()
    cluster, load = FakeCluster(make_runner=runner_of, pods_run=False), Load(capacity=16, pods_may_run=may_run)
    async with serve_cluster(cluster, load) as url, operator(url, tmp_path), asyncio.timeout(550):
        while load.watches < 2:
            await asyncio.sleep(0.1)
        for number in range(count):
            cluster.put(trial(CROWD if number < count - 5 else FEW, number))
        while not all(waits_for_its_pod(each) for each in statuses(cluster).values()):
            await asyncio.sleep(0.5)
        may_run.set()
        while len(load.completed) < count or any(key[0] == "Pod" for key in cluster.objects):
            await asyncio.sleep(0.5)
    assert_all_complete(cluster, count)
    # The trials of FEW were created last, so their pods would be the last ones if the namespaces did not take turns.
    assert load.pods_asked[: count // 2].count(FEW) >= 5
    assert load.most_starting <= STARTING_PODS and load.most_execs <= EXEC_SESSIONS
    assert load.max_in_flight <= MAX_IN_FLIGHT
    assert load.most_refused_per_second <= 2 * MAX_IN_FLIGHT  # the operator retries a rejected request only after Retry-After
    assert len(load.asked) * 0.02 < load.refused < len(load.asked) * 0.25
    assert "Traceback" not in (tmp_path / "log").read_text()
