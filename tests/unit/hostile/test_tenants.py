"""Labels, annotations, owners and statuses, whatever users write into them, end no task of the operator: an error stays with its
object."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multistep.api.common.base_model import API_VERSION
from multistep.app.operator import App
from multistep.app.route_events import EventRouter
from multistep.kube.client import ClusterClient
from multistep.kube.lease import Lease
from multistep.reconcile.queue.event_filter import EventFilter
from multistep.reconcile.queue.work_queue import WorkQueue
from multistep.settings import Settings
from tests.support.cluster_contract import make_trial
from tests.support.fake_cluster import FakeCluster
from tests.support.sweep_world import SweepWorld
from tests.support.world import World

OFTEN = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
LABELS = [
    "attempt", "number", "retry-of", "sweep", "trial", "task", "agent", "shard", "role", "pod", "branch", "network",
]  # fmt: skip
TIMES = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:60Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59+00:00", "", "no time"]
VALUES = st.sampled_from(["oops", "", "0", "-1", "9" * 60, "1e9", "NaN", "s", "t", "٣", "a/b"]) | st.text(max_size=20)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**20) | st.floats() | VALUES | st.sampled_from(TIMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(VALUES, inner, max_size=3),
    max_leaves=6,
)
times = st.sampled_from(TIMES)
labels = st.dictionaries(st.sampled_from([f"multistep.dev/{each}" for each in LABELS]) | VALUES, VALUES, max_size=6)
owners = st.lists(
    st.fixed_dictionaries(
        {
            "apiVersion": st.sampled_from([API_VERSION, "v1", "multistep.dev/v9"]),
            "kind": st.sampled_from(["MultiStepTrial", "TrialSweep", "Pod"]),
            "name": st.sampled_from(["t", "s", "other"]),
            "uid": st.sampled_from(["trial-uid", "sweep-uid", "other-uid"]),
        },
        optional={"controller": st.booleans()},
    ),
    max_size=3,
)
terminated = st.fixed_dictionaries(
    {"exitCode": st.integers(-1, 300)},
    optional={"reason": VALUES, "message": VALUES, "startedAt": times, "finishedAt": times},
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["main", "agent-host", "egress", "multistep-install", "service-db", "x"])},
        optional={
            "state": st.fixed_dictionaries(
                {}, optional={"running": st.fixed_dictionaries({"startedAt": times}), "terminated": terminated}
            ),
            "lastState": st.fixed_dictionaries({}, optional={"terminated": terminated}),
            "restartCount": st.integers(0, 9),
            "ready": st.booleans(),
            "imageID": VALUES,
        },
    ),
    max_size=3,
)
conditions = st.lists(
    st.fixed_dictionaries(
        {"type": VALUES | st.sampled_from(["Complete", "Failed", "PodScheduled", "DisruptionTarget"]), "status": VALUES},
        optional={"lastTransitionTime": times, "reason": VALUES, "message": VALUES},
    ),
    max_size=3,
)
pod_statuses = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Failed"]),
        "containerStatuses": containers,
        "initContainerStatuses": containers,
        "conditions": conditions,
    },
)
steps = st.lists(
    st.dictionaries(st.sampled_from(["name", "startTime", "rewards", "exception", "usage", "gate"]), json_values), max_size=2
)
statuses = st.dictionaries(
    st.sampled_from(["attempt", "score", "scoreRule", "rewards", "usage", "failure", "tampering", "resumed", "completionTime"]),
    json_values,
    max_size=4,
).flatmap(lambda found: st.builds(lambda c, s, p: {**found, "conditions": c, "steps": s, "phase": p}, conditions, steps, VALUES))


def written(kind: str, name: str, status: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects of a kind, as a user may write them."""
    metadata = st.fixed_dictionaries(
        {
            "name": st.just(name),
            "namespace": st.just("default"),
            "uid": st.sampled_from([f"{name}-uid", "other-uid"]),
            "resourceVersion": st.sampled_from(["1", "7", "x"]),
            "labels": labels,
            "annotations": st.dictionaries(VALUES, VALUES, max_size=2),
            "ownerReferences": owners,
        },
        optional={"creationTimestamp": times},
    )
    version = "v1" if kind == "Pod" else API_VERSION
    return st.fixed_dictionaries(
        {"apiVersion": st.just(version), "kind": st.just(kind), "metadata": metadata, "spec": st.just({}), "status": status}
    )


pods = written("Pod", "p", pod_statuses)
trials = written("MultiStepTrial", "forged", statuses)
sweeps = written("TrialSweep", "forged", statuses)
types = st.sampled_from(["ADDED", "MODIFIED", "DELETED", None])


async def nothing(_: object) -> Any:
    return None


WORLD: list[World] = []  # shared by the examples of a test, because metrics take long to create
SWEEPS: list[SweepWorld] = []


def router(world: World) -> EventRouter:
    queue = WorkQueue(nothing, workers=1)
    held = cast(Lease, SimpleNamespace(held=True))
    SWEEPS[:] = SWEEPS or [SweepWorld()]
    return EventRouter(
        held, EventFilter(), world.metrics, queue=queue, sweep_queue=queue, reconciler=world.reconciler, sweeps=SWEEPS[0].sweeps
    )


@OFTEN
@given(events=st.lists(st.tuples(pods | trials | sweeps, types), max_size=4))
async def test_no_event_of_an_object_raises(events: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    WORLD[:] = WORLD or [World()]
    routed = router(WORLD[0])
    for found, type in events:
        handle = {"Pod": routed.pod_event, "MultiStepTrial": routed.trial_event, "TrialSweep": routed.sweep_event}[found["kind"]]
        handle(found, type)
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_an_event_that_cannot_be_read_requeues_its_object(caplog: pytest.LogCaptureFixture) -> None:
    routed = router(World())
    added: list[Any] = []
    routed.enqueue = lambda key, seconds=0.0: added.append(key)  # type: ignore[method-assign]
    broken = {"kind": "MultiStepTrial", "metadata": {"namespace": "default", "name": "t", "generation": 1}, "status": 7}
    routed.trial_event(broken, "MODIFIED")
    assert added == [("default", "t")] and "default/t cannot be read" in caplog.text


@OFTEN
@given(found=st.lists(pods, max_size=3), forged=trials)
async def test_a_new_leader_counts_pods_and_trials_whatever_they_are(found: list[Any], forged: Any) -> None:
    cluster = FakeCluster()
    for index, each in enumerate(found):
        metadata = {**each["metadata"], "name": f"p{index}", "labels": {**each["metadata"]["labels"], "multistep.dev/trial": "t"}}
        cluster.put({**each, "metadata": metadata})
    cluster.put(forged)
    app = object.__new__(App)
    WORLD[:] = WORLD or [World()]
    app.settings, world = Settings(models=[]), WORLD[0]
    app.shard, app.reconciler = world.reconciler.shard, world.reconciler
    await app._count_starting_pods(cast(ClusterClient, cluster))
    await app._count_active_trials(cast(ClusterClient, cluster))


async def test_the_attempt_label_that_ended_the_operator(tmp_path: Path) -> None:
    world = World()
    owner = {"apiVersion": API_VERSION, "kind": "MultiStepTrial", "name": "t", "uid": "trial-uid", "controller": True}
    metadata = {
        "name": "forged", "namespace": "default", "ownerReferences": [owner],
        "labels": {"multistep.dev/attempt": "oops", "multistep.dev/trial": "t"},
    }  # fmt: skip
    world.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": {"phase": "Pending"}})
    app = object.__new__(App)
    app.settings, app.shard, app.reconciler = Settings(), world.reconciler.shard, world.reconciler
    await app._count_starting_pods(cast(ClusterClient, world.cluster))
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(forged=trials)
async def test_a_forged_trial_with_a_sweeps_label_and_owner_stops_no_sweep(forged: Any) -> None:
    world = SweepWorld()
    owner = {"apiVersion": API_VERSION, "kind": "TrialSweep", "name": "s", "uid": "sweep-uid", "controller": True}
    metadata = {
        **forged["metadata"], "uid": "forged-uid", "ownerReferences": [owner],
        "labels": {**forged["metadata"]["labels"], "multistep.dev/sweep": "s"},
    }  # fmt: skip
    await make_trial(world.cluster, "default", "another")
    world.cluster.put({**forged, "metadata": metadata, "status": {**forged["status"], "phase": "Complete"}})
    await world.run()
    assert (world.status.phase, world.status.trials.total, world.status.trials.finished) == ("Complete", 8, 8)
    assert world.errors == []
