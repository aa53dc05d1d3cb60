"""Other clients write to the trial, other operators have other shards, and exec sessions are limited."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import joined
from multistep.engine.journal.results_limits import Headroom
from multistep.engine.status.status_size import to_json
from multistep.errors import CollectionCut
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import TRIALS, Resource
from multistep.reconcile.queue.work_queue import Requeue
from multistep.store.files.trial_key import TrialKey
from tests.support.fake_runner import FakeRunner, FakeStream, Json
from tests.support.fake_volume import FakeSpool, FakeVolume
from tests.support.world import KEY, World, manifest
from tests.support.wrapped_cluster import Wrapped
from tests.unit.reconcile.reconciler_cases import LONG, ran

# -- concurrent writes by other clients


@dataclass
class Stale(Wrapped):
    """A cluster that returns an earlier version of the trial."""

    trial: Object

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self.trial if resource == TRIALS else await self.cluster.get(resource, namespace, name)


async def test_a_write_by_another_client_is_requeued() -> None:
    world = World(durations={"a/agent": 10.0})
    await world.reconcile()
    stale = world.fresh()

    old = world.object
    world.change_trial(activeDeadlineSeconds=1000)
    world.now += 10
    world.end_phases()
    stale.cluster = cast(Cluster, Stale(world.cluster, old))
    assert await stale.reconcile(KEY) == Requeue(0.5)
    assert world.status.phase == "Running"
    await world.run()
    assert world.condition[0] == "Complete"
    assert set(world.runner.starts.values()) == {1}


async def test_the_status_read_back_is_the_status_written() -> None:
    world = await ran(durations=LONG)
    assert to_json(world.status) == world.object["status"]


async def test_a_broken_session_is_tried_again_and_counted() -> None:
    world = World()
    break_first = world.cluster.open_exec

    async def open_exec(*args: Any) -> Any:
        stream = await break_first(*args)
        if len(world.runner.streams) == 1:
            cast(FakeStream, stream)._received_left = 5
        return stream

    world.cluster.open_exec = open_exec  # type: ignore[assignment, method-assign]
    await world.run()
    assert [type(error).__name__ for error in world.errors] == ["StreamLost"]
    assert world.metrics.registry.get_sample_value("multistep_exec_session_failures_total", {"cause": "stream"}) == 1
    assert (world.execs, world.condition[0]) == (2, "Complete")


# -- shards


async def test_a_trial_of_another_shard_is_left_alone() -> None:
    trial = manifest()
    trial["metadata"]["labels"] = {"multistep.dev/shard": "a"}
    world = await ran(trial=trial)
    assert (world.cluster.writes, world.status.phase) == ([], None)


def give_to(world: World, shard: str) -> None:
    """Change the trial's shard label."""
    trial = world.object
    trial["metadata"]["labels"] = {"multistep.dev/shard": shard} if shard else {}
    world.cluster.put(trial)


def operator_of(world: World, shard: str) -> None:
    """Replace the world's operator by one of this shard."""
    world.settings = {"shard": shard}
    world.reconciler = world.fresh()


async def test_a_trial_that_another_operator_started_waits_until_it_is_given_back() -> None:
    world = World(durations=LONG)
    await world.reconcile()
    give_to(world, "a")
    written = len(world.cluster.writes)
    await world.reconcile()
    assert len(world.cluster.writes) == written
    operator_of(world, "a")
    execs = world.execs
    await world.reconcile()
    assert world.condition[:2] == ("Reconciling", "ShardChanged") and "multistep.dev/shard: away" in world.condition[2]
    assert world.execs == execs
    give_to(world, "")
    operator_of(world, "")
    await world.run()
    assert (world.condition, world.status.attempt) == (("Complete", "TrialComplete", "ran 3 steps"), 1)


async def test_a_trial_that_another_operator_started_restarts_when_its_pod_is_deleted() -> None:
    world = World(durations=LONG)
    await world.reconcile()
    give_to(world, "a")
    operator_of(world, "a")
    await world.reconcile()
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    assert (world.condition, world.status.attempt) == (("Complete", "TrialComplete", "ran 3 steps"), 2)


async def test_pods_have_their_trials_shard() -> None:
    trial = manifest()
    trial["metadata"]["labels"] = {"multistep.dev/shard": "a", "other": "b"}
    world = World(trial=trial, settings={"shard": "a"}, durations=LONG)
    await world.reconcile()
    labels = world.cluster.objects["Pod", "default", "t-1"]["metadata"]["labels"]
    assert labels["multistep.dev/shard"] == "a" and "other" not in labels


# -- exec sessions: when they open, and what they fetch


async def test_a_session_is_kept_for_a_phase_that_started_in_it_and_not_for_one_that_was_found_running() -> None:
    world = World(durations={"a/agent": 100_000.0}, settings={"linger_seconds": 3.0})
    waited = []
    for _ in range(2):
        wait = await world.reconcile()
        assert wait is not None
        waited.append([each["timeoutSeconds"] for each in world.runner.requests if each["op"] == "wait"][-1])
        world.now += wait
    assert waited == [3.0, 0.0]


@pytest.mark.parametrize(
    ("queued", "changed", "sessions"),
    [(False, False, 1), (True, False, 2), (False, True, 2)],
    ids=["alone", "other trials are queued", "the trial's spec changed"],
)
async def test_a_session_is_kept_longer_for_a_phase_unless_there_is_other_work(
    queued: bool, changed: bool, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent phase finishes during the third wait request. If there is no other work, the session stays open until then. The
    status shows the agent phase from the second wait request on."""
    world, shown = World(durations={"a/agent": 5.0}, settings={"linger_seconds": 12.0}), list[str | None]()
    known = FakeRunner._known

    def third(runner: FakeRunner, op: str, id: str) -> Json:
        if (op, id) == ("wait", "1/a/agent"):
            shown.append(world.status.steps[-1].phase if world.status.steps else None)
            if len(shown) == 3:
                runner.end(id)
        return known(runner, op, id)

    monkeypatch.setattr(FakeRunner, "_known", third)
    monkeypatch.setattr(world.reconciler.trials.driver, "_sessions_queued", lambda: queued)
    monkeypatch.setattr(world.reconciler.trials.driver, "_changed", lambda _: changed)
    await world.run()
    assert world.condition[0] == "Complete" and world.execs == sessions
    assert shown[1:] == (["Agent", "Agent"] if sessions == 1 else [])


async def test_a_session_near_its_timeout_is_not_kept_for_a_phase() -> None:
    """A session that is still open at its timeout breaks, which counts as a failed session and delays the trial."""
    world = World(durations={"a/agent": 100_000.0}, settings={"linger_seconds": 4.0, "exec_session_seconds": 3.5})
    await world.reconcile()
    waited = [each["id"] for each in world.runner.requests if each["op"] == "wait"]
    assert waited.count("1/a/agent") == 1 and world.errors == []


async def test_short_steps_that_share_a_session_end_at_the_trials_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(trial=manifest({"activeDeadlineSeconds": 100}), settings={"linger_seconds": 30.0})
    known = FakeRunner._known

    def takes_a_minute(runner: FakeRunner, op: str, id: str) -> Json:
        world.now += 60.0 if op == "wait" and id.endswith("/agent") else 0.0
        return known(runner, op, id)

    monkeypatch.setattr(FakeRunner, "_known", takes_a_minute)
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded") and "1/c/agent" not in world.runner.starts


async def test_a_phase_that_takes_long_is_visited_less_and_less() -> None:
    """No event arrives while the phase runs; each wait is about as long as the phase has run so far."""
    world = World(durations={"a/agent": 100_000.0})
    waits = []
    for _ in range(12):
        wait = await world.reconcile()
        assert wait is not None
        waits.append(wait)
        world.now += wait
    assert 60.0 <= waits[0] <= 66.0
    assert all(later >= earlier * 0.9 for earlier, later in itertools.pairwise(waits))
    assert all(3600.0 <= wait <= 3960.0 for wait in waits[-3:])


async def test_a_file_beyond_the_limits_is_not_asked_for_and_the_status_names_its_source() -> None:
    world = World(files={"/logs/artifacts": {"huge": b"x" * 5000, "small": b"y"}})
    assert isinstance(world.volume, FakeVolume)
    world.volume.room_bytes = 1000
    await world.run()
    assert world.condition[1] == "TrialComplete" and world.status.steps[0].rewards == {"reward": 1}
    downloads = [each for each in world.runner.requests if each["op"] == "download"]
    assert [each["sources"][2].get("sent") for each in downloads] == [["huge"]] * 3
    assert [step.artifacts and step.artifacts.incomplete for step in world.status.steps] == [["2/huge"]] * 3
    result = json.loads(world.kept.files["result.json"])
    assert [step["artifacts_incomplete"] for step in result["step_results"]] == [["2/huge"]] * 3


async def test_a_collection_that_is_cut_off_is_kept_as_far_as_it_came_and_noted_in_another_session() -> None:
    class Cutting(FakeVolume):
        @asynccontextmanager
        async def spool(
            self, key: TrialKey, max_bytes: int | None = None, headroom: Headroom | None = None
        ) -> AsyncIterator[FakeSpool]:
            yield CutSpool()

    class CutSpool(FakeSpool):
        async def write(self, data: bytes) -> None:
            raise CollectionCut("it has more bytes than that")

    world = World(volume=Cutting())
    await world.run()
    assert world.errors == [] and world.condition[1] == "TrialComplete"
    assert [step.artifacts and step.artifacts.incomplete for step in world.status.steps] == [["it has more bytes than that"]] * 3
    assert world.execs == 4  # one session for the trial, and a new one after each of three broken-off collections


async def test_a_session_ends_at_its_timeout_and_gives_its_slot_back() -> None:
    world = World(settings={"exec_session_seconds": 0.05})
    world.cluster.open_exec = forever  # type: ignore[method-assign, assignment]
    await world.reconcile(4)
    assert any("timeout of 0.05 s" in str(each) for each in world.errors)


async def forever(*_: object) -> object:
    await asyncio.Event().wait()
    return None


@pytest.mark.parametrize("phase", ["a/agent", "a/setup"])
async def test_a_key_that_a_phase_prints_is_in_no_status_no_event_and_no_line_of_the_log(
    phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = "sk-hunter2-hunter2"
    agent = {"name": "command", "command": ["x"], "env": [{"name": "API_KEY", "value": key}]}
    world = World(trial=manifest({"agent": agent}), results={phase: {"exitCode": 1, "tail": f"my key is {key}"}})
    with caplog.at_level("DEBUG"):
        await world.run()
    assert world.status.steps[0].exception is not None
    assert key not in json.dumps(joined(TrialStatus, world.object["status"])) and key not in caplog.text
    assert world.cluster.events and key not in json.dumps(world.cluster.events)
