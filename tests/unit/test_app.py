"""The whole operator without kopf: standby, leader, health checks, shutdown, and loss of the lease."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from multistep.api.common.base_model import API_VERSION
from multistep.api.trial.trial import KIND
from multistep.app.background_tasks import repeat, retry_until_success
from multistep.app.hold_lease import LOST_LEASE_EXIT_CODE
from multistep.app.kopf_handlers import Stopping
from multistep.app.operator import App
from multistep.errors import NotLeading, StoreError, Unavailable
from multistep.kube.lease import Lease, Replica
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, Requeue
from multistep.settings import Settings
from multistep.store.files.trial_key import TrialKey
from tests.support.cluster_contract import make_trial
from tests.support.fake_cluster import FakeCluster
from tests.support.signing_keys import write_keys
from tests.support.sweep_world import ended, sweep


class FakeClient(FakeCluster):
    """A fake cluster that an App can use as its API client. away: whether writes of the Lease fail."""

    namespace = "multistep-system"
    away = False
    connected: list[dict[str, Any]]  # keyword arguments of each Client.connect

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def replace(self, manifest: Any) -> Any:
        if self.away:
            raise Unavailable("connection refused")
        return await super().replace(manifest)


class Operator:
    """An App on a fake cluster. worked: keys that it reconciled; ended: exit codes with which it ended the process."""

    def __init__(self, cluster: FakeClient, results: Path, lease_seconds: float) -> None:
        self.ended: list[int] = []
        self.worked: list[tuple[str, str]] = []
        settings = Settings(
            results_dir=results,
            listen_host="127.0.0.1",
            results_port=0,
            metrics_port=0,
            lease_seconds=lease_seconds,
            stop_seconds=9,
            pod_name="us",
        )
        self.app = App(settings, end=self.ended.append)
        self.cluster = cluster

    async def start(self) -> None:
        await self.app.start()
        self.app.queue._work = self._work

    async def _work(self, key: tuple[str, str]) -> Requeue:
        self.worked.append(key)
        return AT_NEXT_EVENT

    async def ask(self, path: str) -> tuple[int, str]:
        """Return status code and text of /healthz or /readyz, without a network request."""
        well, text = await {"/healthz": self.app.health.live, "/readyz": self.app.health.ready}[path]()
        return (200 if well else 503), text

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.fixture
async def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Operator]:
    """Yield an operator that was not started yet. Its parameter is `lease_seconds`, by default a minute."""
    cluster = FakeClient()
    cluster.connected = []

    async def connect(**options: Any) -> FakeClient:
        cluster.connected.append(options)
        return cluster

    monkeypatch.setattr("multistep.app.operator.ClusterClient.connect", connect)
    operator = Operator(cluster, tmp_path, getattr(request, "param", 60))  # a busy machine must not make it lose the lease
    yield operator
    await operator.app.stop()


def test_a_key_that_cannot_sign_stops_the_operator_at_its_start(tmp_path: Path) -> None:
    settings = Settings(results_dir=tmp_path, results_signing_key_file=tmp_path / "none")
    with pytest.raises(StoreError, match=r"the key that signs evidence, .*/none, cannot be used"):
        App(settings)
    private, public = write_keys(tmp_path)
    signer = App(settings.model_copy(update={"results_signing_key_file": private})).signer
    assert signer is not None and signer.public == public.read_bytes()


def other(cluster: FakeCluster) -> Lease:
    """Return the leader lease as used by another replica."""
    return Lease(cluster, Replica("other"), namespace="multistep-system", name="multistep", seconds=3)


async def test_a_leader_reconciles_every_trial_and_each_event(operator: Operator) -> None:
    await make_trial(operator.cluster, "default", "t")
    await operator.start()
    await operator.until(lambda: operator.worked == [("default", "t")])
    operator.app.events.enqueue(("default", "new"))
    await operator.until(lambda: operator.worked[1:] == [("default", "new")])


OWNER = {"apiVersion": API_VERSION, "kind": KIND, "name": "t", "uid": "u", "controller": True}
POD: dict[str, Any] = {"metadata": {"namespace": "default", "name": "t-1", "uid": "p", "ownerReferences": [OWNER]}}


async def test_the_pod_of_a_finished_trial_causes_no_reconcile(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    trial: Any = {"metadata": {"namespace": "default", "name": "t", "uid": "u", "generation": 1}}
    operator.app.events.trial_event(trial, "ADDED")
    await operator.until(lambda: operator.worked == [("default", "t")])
    for phase, reconciled in (("Complete", ["later"]), ("Running", ["later", "t"])):
        operator.worked.clear()
        operator.app.events.trial_event({**trial, "status": {"phase": phase}}, "MODIFIED")
        operator.app.events.pod_event(POD, "DELETED")
        operator.app.events.enqueue(("default", "later"))
        await operator.until(lambda: ("default", "later") in operator.worked)
        assert sorted(name for _, name in operator.worked) == reconciled


CREATING = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-11-22T14:00:00Z"}}}]}


async def test_status_changes_of_a_starting_pod_cause_no_reconcile_until_it_runs(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    operator.app.events.pod_event({**POD, "status": {"phase": "Pending"}}, "ADDED")
    operator.app.events.pod_event({**POD, "status": CREATING}, "MODIFIED")
    assert ("default", "t") not in operator.app.queue._timers
    operator.app.events.enqueue(("default", "later"))
    await operator.until(lambda: operator.worked == [("default", "later")])
    operator.app.events.pod_event({**POD, "status": RUNNING}, "MODIFIED")
    await operator.until(lambda: operator.worked == [("default", "later"), ("default", "t")])


async def test_a_pod_that_becomes_ready_causes_no_reconcile_and_one_that_becomes_unready_causes_one(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)

    def report(ready: str) -> None:
        conditions = [{"type": "Ready", "status": ready}]
        operator.app.events.pod_event({**POD, "status": {**RUNNING, "conditions": conditions}}, "MODIFIED")

    report("False")
    await operator.until(lambda: operator.worked == [("default", "t")])
    report("True")
    operator.app.events.enqueue(("default", "later"))
    await operator.until(lambda: operator.worked == [("default", "t"), ("default", "later")])
    report("False")
    await operator.until(lambda: operator.worked[2:] == [("default", "t")])


async def test_a_pod_that_was_unschedulable_causes_a_reconcile_soon_after_it_starts(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    operator.app.events.pod_event({**POD, "spec": {"schedulingGates": [{"name": "x"}]}, "status": {"phase": "Pending"}}, "ADDED")
    await operator.until(lambda: operator.worked == [("default", "t")])
    operator.app.events.pod_event({**POD, "status": CREATING}, "MODIFIED")
    await operator.until(lambda: operator.worked == 2 * [("default", "t")])


async def test_writes_of_the_operator_are_fenced_and_those_of_its_lease_are_not(operator: Operator) -> None:
    await operator.start()
    work, lease = operator.cluster.connected
    assert "check" not in lease
    await operator.until(lambda: operator.app.lease.held)
    work["check"]()
    operator.app.lease._held_until = -1.0
    with pytest.raises(NotLeading):
        work["check"]()


@pytest.mark.parametrize("operator", [15], indirect=True)  # a standby tries again after a 15th of it
async def test_one_that_stands_by_works_at_nothing_until_it_leads(operator: Operator) -> None:
    leader = other(operator.cluster)
    await leader.attempt()
    await make_trial(operator.cluster, "default", "t")
    await operator.start()
    operator.app.events.enqueue(("default", "t"))
    await operator.until(lambda: operator.app.lease.holder == str(leader.replica))
    code, shown = await operator.ask("/readyz")
    assert (code, operator.worked, operator.app.queue.depth) == (200, [], 0)
    assert f"[+] lease: standby; held by {leader.replica}" in shown
    await leader.release()
    await operator.until(lambda: operator.worked == [("default", "t")])


async def test_readiness_lists_the_checks(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    code, shown = await operator.ask("/readyz")
    names = [line.split()[1] for line in shown.splitlines()[:-1]]
    assert (code, names, shown.splitlines()[-1]) == (200, ["api:", "watches:", "results:", "lease:", "shard:"], "ok")
    assert "[+] shard: trials without a label multistep.dev/shard, in all namespaces" in shown
    assert "[+] lease: held by this replica, us_" in shown
    assert (await operator.ask("/healthz"))[0] == 200


async def test_readiness_shows_what_is_wrong(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    operator.app.resync.stalled, operator.app.resync.finding = True, "no watch reported 2 changes"
    operator.app.volume.root.rename(operator.app.volume.root.with_name("gone"))
    operator.app.lease._answered_at -= 100
    operator.app.lease.last_error = "connection refused"
    code, shown = await operator.ask("/readyz")
    assert code == 503
    api, watches, results, lease, _, last = shown.splitlines()
    assert api == "[-] api: the API server did not answer: connection refused"
    assert watches == "[-] watches: repeatedly: no watch reported 2 changes"
    assert results.startswith("[-] results: results directory")
    assert (lease[:4], last) == ("[+] ", "not ok")


async def test_one_missed_event_leaves_the_replica_ready(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    operator.app.resync.finding = "no watch reported 2 changes"
    code, text = await operator.ask("/readyz")
    assert (code, text.splitlines()[1]) == (200, "[+] watches: no watch reported 2 changes")


async def test_the_results_check_does_not_queue_behind_unpacking(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    release = threading.Event()
    busy = [asyncio.create_task(operator.app.volume.disk.threads.run(release.wait)) for _ in range(8)]
    try:
        code, text = await operator.ask("/readyz")
    finally:
        release.set()
        await asyncio.gather(*busy)
    assert (code, text.splitlines()[2]) == (200, "[+] results: writable")


async def test_a_task_that_died_makes_it_unhealthy(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    await operator.start()

    async def die() -> None:
        raise RuntimeError("a bug")

    operator.app.tasks.start("something", die())
    await operator.until(lambda: "something ended" in caplog.text)
    code, shown = await operator.ask("/healthz")
    assert code == 503
    assert "[-] tasks: the background task something ended unexpectedly; see the log" in shown


async def test_watches_that_are_stalled_make_it_unhealthy(operator: Operator) -> None:
    await operator.start()
    operator.app.resync.stalled, operator.app.resync.finding = True, "no watch reported 2 changes"
    code, shown = await operator.ask("/healthz")
    assert code == 503
    assert "[-] watches: repeatedly: no watch reported 2 changes" in shown


@pytest.mark.parametrize("operator", [3], indirect=True)
async def test_a_leader_whose_lease_cannot_be_renewed_ends_its_process(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    await operator.start()
    await operator.app.lease.acquired.wait()
    operator.cluster.away = True
    await operator.until(lambda: operator.ended)
    assert operator.ended == [LOST_LEASE_EXIT_CODE]
    assert "lost the leader lease; exiting: " in caplog.text and "does not hold the lease multistep-system/multistep" in caplog.text
    operator.cluster.away = False


async def test_one_that_is_stopped_lets_its_reconcile_finish_and_hands_over(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    ended = asyncio.Event()

    async def reconcile(_: object) -> Requeue:
        await asyncio.sleep(0.2)
        operator.app.lease.check()  # the replica still leads while its reconcile finishes
        ended.set()
        return AT_NEXT_EVENT

    operator.app.queue._work = reconcile
    operator.app.events.enqueue(("default", "t"))
    await operator.until(lambda: operator.app.queue._busy)
    stopping = asyncio.create_task(operator.app.stop())
    await asyncio.sleep(0)
    assert "[-] lease: stopping" in (await operator.ask("/readyz"))[1]
    await stopping
    assert ended.is_set() and operator.ended == []
    following = other(operator.cluster)
    await following.attempt()
    assert following.held


async def test_what_the_leader_does_now_and_then_continues_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Exception | None] = [Unavailable("away"), RuntimeError("a bug"), None]
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not outcomes:
            raise asyncio.CancelledError

    async def work() -> None:
        if (error := outcomes.pop(0)) is not None:
            raise error

    monkeypatch.setattr("multistep.app.background_tasks.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await repeat("a chore", lambda: 100.0, work)
    assert len(pauses) == 4 and all(80 <= each <= 120 for each in pauses)
    outcomes[:] = [Unavailable("away"), None, RuntimeError("not reached")]
    await retry_until_success("something", work)
    assert len(outcomes) == 1


async def test_metrics_and_probes_are_served_on_one_port_and_results_on_another(
    operator: Operator, unused_tcp_port_factory: Callable[[], int]
) -> None:
    metrics, results = unused_tcp_port_factory(), unused_tcp_port_factory()
    operator.app.settings = operator.app.settings.model_copy(update={"metrics_port": metrics, "results_port": results})
    await operator.start()
    key = TrialKey("default", "t", "u")
    (operator.app.volume.root / "default" / "t" / "u" / "steps").mkdir(parents=True)
    stored = f"results/{key}/{operator.app.volume.access.token(key)}"
    shown, codes = dict[tuple[int, str], str](), dict[tuple[int, str], int]()
    async with aiohttp.ClientSession() as session:
        for port in (metrics, results):
            for path in ("healthz", "readyz", "metrics", stored):
                async with session.get(f"http://127.0.0.1:{port}/{path}") as response:
                    codes[port, path] = response.status
                    shown[port, path] = (await response.read()).decode()
    assert {place for place, code in codes.items() if code != 404} == {
        (metrics, "healthz"),
        (metrics, "readyz"),
        (metrics, "metrics"),
        (results, stored),
    }
    assert "[+] tasks: lease, work, resync, orphans running" in shown[metrics, "healthz"]
    assert "lease: " in shown[metrics, "readyz"]
    assert "\nmultistep_leading " in shown[metrics, "metrics"]


async def test_the_first_signal_asks_for_an_orderly_end_and_the_second_ends_at_once(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("multistep.app.kopf_handlers.os._exit", ended.append)
    await operator.start()
    stop = asyncio.Event()
    stopping = Stopping(operator.app, stop)
    stopping.on_signal(signal.SIGTERM)
    assert ended == []
    stopping.on_signal(signal.SIGTERM)
    assert ended == [143]
    await stop.wait()
    assert operator.app._stopping


async def test_a_leader_reconciles_every_sweep_and_one_whose_trials_changed(operator: Operator) -> None:
    operator.cluster.put(sweep(parallelism=1))
    await operator.start()
    await operator.until(lambda: len(trials(operator)) == 1)
    [first] = trials(operator)
    assert operator.app.sweeps.cache.entry(("default", "s"), "sweep-uid", "", finished=False).trials
    operator.app.events.trial_event(operator.cluster.put({**first, "status": ended(0)}), "MODIFIED")
    await operator.until(lambda: len(trials(operator)) == 2)


async def test_a_sweep_that_came_or_whose_trials_were_missed_is_reconciled(operator: Operator) -> None:
    await operator.start()
    await operator.until(lambda: operator.app.lease.held)
    made = operator.cluster.put(sweep(parallelism=1))
    operator.app.events.sweep_event(made, "ADDED")
    await operator.until(lambda: len(trials(operator)) == 1)
    [first] = trials(operator)
    operator.cluster.remove("MultiStepTrial", "default", first["metadata"]["name"])
    operator.app.events.missed("trial", ("default", first["metadata"]["name"]))
    await operator.until(lambda: len(trials(operator)) == 1 and trials(operator) != [first])
    operator.app.events.missed("sweep", ("default", "s"))
    operator.cluster.remove("TrialSweep", "default", "s")
    operator.app.events.sweep_event(made, "DELETED")
    assert 'multistep_sweeps{phase="Running"} 0.0' in operator.app.metrics.render().decode()


def trials(operator: Operator) -> list[Any]:
    return [each for each in operator.cluster.objects.values() if each["kind"] == "MultiStepTrial"]
