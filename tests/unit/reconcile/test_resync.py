"""The resync finds missed watch events by listing, and ignores events that are only late."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from multistep.kube.shard import Shard
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.cluster.resync import GRACE_SECONDS, REVISIT_SECONDS, STALLED_AFTER, Resync
from multistep.reconcile.queue.event_filter import EventFilter
from multistep.settings import Settings
from multistep.telemetry.metrics import Metrics
from tests.support.cluster_contract import make_pod, make_trial
from tests.support.fake_cluster import FakeCluster
from tests.support.sweep_world import sweep


class Watched:
    """A cluster, and a watch of it that reports only what the test delivers."""

    def __init__(self) -> None:
        self.cluster, self.event_filter, self.metrics = FakeCluster(), EventFilter(), Metrics()
        self.added: list[Key] = []
        self.slept: list[float] = []
        self.meanwhile: list[Any] = []  # events that arrive while the resync waits for late events
        self.now = 0.0
        self.resync = Resync(
            self.cluster,
            self.event_filter,
            lambda _, key: self.added.append(key),
            self.metrics,
            shard=Shard(),
            sleep=self._sleep,
            clock=lambda: self.now,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        while self.meanwhile:
            self.send(*self.meanwhile.pop(0))

    def send(self, body: Any, type: str = "MODIFIED") -> None:
        (self.event_filter.pod if body["kind"] == "Pod" else self.event_filter.trial)(body, type)

    def change(self, kind: str, name: str) -> Any:
        found = self.cluster.objects[kind, "default", name]
        return self.cluster.put({**found, "status": {**found.get("status", {}), "changed": found["metadata"]["resourceVersion"]}})

    def missed(self, kind: str) -> float:
        return self.metrics.registry.get_sample_value("multistep_missed_watch_events_total", {"kind": kind}) or 0.0


@pytest.fixture
async def watched() -> Watched:
    """Return a cluster with a trial and its pod, which the watch has reported."""
    watched = Watched()
    trial = await make_trial(watched.cluster, "default", "t")
    await make_pod(watched.cluster, "default", "p", trial)
    label(watched.cluster)
    for kind, name in (("MultiStepTrial", "t"), ("Pod", "p")):
        watched.send(watched.cluster.objects[kind, "default", name], "ADDED")
    return watched


def label(cluster: FakeCluster) -> None:
    pod = cluster.objects["Pod", "default", "p"]
    pod["metadata"]["labels"] = {"multistep.dev/trial": "t"}
    for owner in pod["metadata"]["ownerReferences"]:
        assert owner["kind"] == "MultiStepTrial"


async def test_where_the_watch_saw_everything_nothing_is_found(watched: Watched) -> None:
    await watched.resync.compare()
    assert (watched.added, watched.resync.finding, watched.slept) == ([], "", [GRACE_SECONDS])


@pytest.mark.parametrize(("kind", "name", "label"), [("MultiStepTrial", "t", "trial"), ("Pod", "p", "pod")])
async def test_a_change_that_was_missed_requeues_its_trial_at_once(
    watched: Watched, kind: str, name: str, label: str, caplog: pytest.LogCaptureFixture
) -> None:
    watched.change(kind, name)
    await watched.resync.compare()
    assert watched.added == [("default", "t")]
    assert watched.resync.finding == f"no watch reported 1 change, {label}/default/{name} among them"
    assert watched.missed(label) == 1
    assert watched.resync.finding in caplog.text
    await watched.resync.compare()
    assert (watched.added, watched.resync.finding) == ([("default", "t")], "")


async def test_one_that_was_missed_is_reconciled(watched: Watched) -> None:
    await make_trial(watched.cluster, "default", "new")
    await watched.resync.compare()
    assert watched.added == [("default", "new")]


async def test_a_deletion_that_was_missed_is_reconciled_and_no_error(watched: Watched) -> None:
    watched.cluster.remove("Pod", "default", "p")
    await watched.resync.compare()
    assert (watched.added, watched.resync.finding) == ([("default", "t")], "")
    assert ("pod", "default", "p") not in watched.event_filter.known()


async def test_what_is_reported_while_it_waits_is_only_late(watched: Watched) -> None:
    changed = watched.change("Pod", "p")
    watched.meanwhile = [(changed,), (watched.change("Pod", "p"),)]
    await watched.resync.compare()
    assert (watched.added, watched.resync.finding) == ([], "")


@pytest.mark.parametrize("known", [False, True])
async def test_what_comes_and_goes_while_it_waits_was_observed(watched: Watched, known: bool) -> None:
    """The resync lists the trial; while it waits for late events, the trial's DELETED event arrives."""
    trial = await make_trial(watched.cluster, "default", "brief")
    if known:
        watched.send(trial, "ADDED")
        trial = watched.change("MultiStepTrial", "brief")
    watched.meanwhile = [(trial, "MODIFIED"), (trial, "DELETED")]
    await watched.resync.compare()
    assert (watched.added, watched.resync.finding) == ([], "")


async def test_after_a_finding_the_next_comparison_comes_sooner(watched: Watched) -> None:
    assert watched.resync.pause_seconds(300.0) == 300.0
    watched.change("Pod", "p")
    await watched.resync.compare()
    assert watched.resync.pause_seconds(300.0) == 150.0
    await watched.resync.compare()
    assert watched.resync.pause_seconds(300.0) == 300.0


@pytest.mark.parametrize(("interval", "comparisons"), [(40.0, STALLED_AFTER), (5.0, 28), (600.0, STALLED_AFTER)])
async def test_a_watch_that_is_behind_for_longer_than_its_timeout_is_stalled_until_it_is_not(
    watched: Watched, interval: float, comparisons: int
) -> None:
    for _ in range(comparisons):
        assert not watched.resync.stalled
        watched.change("MultiStepTrial", "t")
        await watched.resync.compare()
        watched.now += watched.resync.pause_seconds(interval)
    assert watched.resync.stalled
    await watched.resync.compare()
    assert not watched.resync.stalled


async def test_after_the_store_was_restored_from_an_older_copy_everything_is_requeued_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trial u did not change, but is requeued: the version that the operator remembers may be missing in the restored store."""
    watched, restored = Watched(), []
    watched.resync._restored = lambda: restored.append(True)
    for name in ("t", "u"):
        watched.send(await make_trial(watched.cluster, "default", name), "ADDED")
    copy = watched.cluster.backup()
    watched.send(watched.change("MultiStepTrial", "t"))
    watched.cluster.restore_backup(copy)
    await watched.resync.compare()
    assert (sorted(watched.added), restored) == ([("default", "t"), ("default", "u")], [True])
    assert "the version of trial/default/t went back" in caplog.text
    watched.added.clear()
    await watched.resync.compare()
    assert (watched.added, restored) == ([], [True])


async def test_a_change_that_a_watch_of_a_restored_store_misses_is_found_though_its_version_is_older() -> None:
    watched = Watched()
    watched.send(await make_trial(watched.cluster, "default", "t"), "ADDED")
    copy = watched.cluster.backup()
    for _ in range(9):
        watched.send(watched.change("MultiStepTrial", "t"))
    watched.cluster.restore_backup(copy)
    await watched.resync.compare()
    watched.added.clear()
    watched.change("MultiStepTrial", "t")
    await watched.resync.compare()
    assert watched.added == [("default", "t")]


async def test_an_older_version_that_a_new_list_of_the_watch_reports_shows_that_the_store_was_restored(watched: Watched) -> None:
    restored: list[bool] = []
    watched.resync._restored = lambda: restored.append(True)
    copy = watched.cluster.backup()
    watched.send(watched.change("MultiStepTrial", "t"))
    watched.cluster.restore_backup(copy)
    watched.send(watched.cluster.objects["MultiStepTrial", "default", "t"])
    await watched.resync.compare()
    assert (watched.added, restored) == ([("default", "t")] * 2, [True]), "the trial and its pod"
    await watched.resync.compare()
    assert restored == [True]


async def test_every_unfinished_trial_is_reconciled_now_and_then_whatever_it_waits_for() -> None:
    watched = Watched()
    for name in ("t", "u", "v"):
        watched.send(await make_trial(watched.cluster, "default", name), "ADDED")
    finished = watched.cluster.objects["MultiStepTrial", "default", "v"]
    watched.send(watched.cluster.put({**finished, "status": {"phase": "Complete"}}))
    while watched.now < 2 * REVISIT_SECONDS:
        await watched.resync.compare()
        watched.now += 30
    counts = Counter(name for _, name in watched.added)
    assert counts.keys() == {"t", "u"} and all(1 <= count <= 2 for count in counts.values()) and not watched.resync.finding


async def test_an_unfinished_sweep_is_requeued_by_every_resync_and_a_finished_one_is_not() -> None:
    found: list[tuple[str, Key]] = []
    cluster, events = FakeCluster(), EventFilter()
    resync = Resync(
        cluster, events, lambda kind, key: found.append((kind, key)), Metrics(), shard=Shard(), sleep=lambda _: asyncio.sleep(0)
    )
    events.sweep(cluster.put(sweep()), "ADDED")
    for _ in range(2):
        await resync.compare()
    assert found == 2 * [("sweep", ("default", "s"))] and not resync.finding
    found.clear()
    events.sweep(cluster.put({**sweep(), "status": {"phase": "Complete"}}), "MODIFIED")
    await resync.compare()
    assert found == []


def test_what_a_pod_or_the_store_is_gets_asked_within_a_minute() -> None:
    """The minute includes jitter (20 %) and the time for which the resync waits for late events."""
    assert Settings().resync_seconds * 1.2 + GRACE_SECONDS <= 60


async def test_everything_is_every_trial_once(watched: Watched) -> None:
    await make_trial(watched.cluster, "default", "another")
    await watched.resync.everything()
    assert sorted(watched.added) == [("default", "another"), ("default", "t")]


async def test_only_the_namespaces_that_are_watched_are_listed() -> None:
    watched = Watched()
    await make_trial(watched.cluster, "default", "t")
    await make_trial(watched.cluster, "theirs", "t")
    resync = Resync(
        watched.cluster,
        watched.event_filter,
        lambda _, key: watched.added.append(key),
        watched.metrics,
        shard=Shard(namespaces=["theirs", "nobodys"]),
    )
    await resync.everything()
    assert watched.added == [("theirs", "t")]


async def test_of_sweeps_and_trials_it_is_reported_which_was_missed() -> None:
    found: list[tuple[str, Key]] = []
    cluster, metrics = FakeCluster(), Metrics()
    resync = Resync(
        cluster,
        EventFilter(),
        lambda kind, key: found.append((kind, key)),
        metrics,
        shard=Shard(),
        sleep=lambda _: asyncio.sleep(0),
    )
    await make_trial(cluster, "default", "t")
    cluster.put(sweep())
    await resync.everything()
    assert found == [("trial", ("default", "t")), ("sweep", ("default", "s"))]
    found.clear()
    await resync.compare()
    assert found == [("trial", ("default", "t")), ("sweep", ("default", "s"))]
    assert metrics.registry.get_sample_value("multistep_missed_watch_events_total", {"kind": "sweep"}) == 1
