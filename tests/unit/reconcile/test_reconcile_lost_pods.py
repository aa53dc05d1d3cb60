"""A trial restarts after its pod was lost, and ends when a phase ended its own container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from multistep.errors import NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import PODS, TRIALS, Resource
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_runner import FakeRunner
from tests.support.played import rewarded
from tests.support.world import CONFIG, KEY, START, World, manifest
from tests.support.wrapped_cluster import Wrapped
from tests.unit.reconcile.reconciler_cases import ALL, LONG, ran

# -- lost pods


async def test_a_deleted_pod_is_replaced_and_the_attempt_on_record() -> None:
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    status = world.status
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert (status.attempt, status.pod_name) == (2, "t-2")
    (lost,) = status.attempts
    assert (lost.number, lost.pod_name, lost.reason, lost.message) == (
        1,
        "t-1",
        "PodDeleted",
        "pod t-1 was deleted by another client",
    )
    assert [step.name for step in lost.steps] == ["a", "b"]
    assert list(world.kept.earlier) == [1] and list(world.kept.steps) == ALL
    first, second = world.cluster.runners.values()
    assert {id[0] for id in first.starts} == {"1"} and {id[0] for id in second.starts} == {"2"}
    assert set(second.starts.values()) == {1}
    assert len(second.starts) == 39  # the second pod runs all phases, from step 1


async def test_after_the_last_retry_the_trial_fails_without_a_reward() -> None:
    world = World(durations=LONG, trial=manifest({"infrastructureRetries": 1}))
    for name in ("t-1", "t-2"):
        await world.run(until=lambda name=name: world.status.current_step == "b" and world.pods == [name])  # type: ignore[misc]
        world.cluster.remove("Pod", "default", name)
    await world.run()
    message = "pod t-2 was deleted by another client; this was attempt 2 of 2"
    assert world.condition == ("Failed", "PodDeleted", message)
    assert [each.number for each in world.status.attempts] == [1, 2]
    assert [step.name for step in world.status.attempts[1].steps] == ["a", "b"]
    assert (world.status.rewards, world.status.steps) == (None, [])
    reasons = [event["reason"] for event in world.cluster.events]
    assert reasons.count("PodDeleted") >= 2
    evidence = world.kept.evidence["predicate"]
    assert (evidence["outcome"], evidence["rewards"]) == ("Failed", None)
    assert [(each["number"], each["reason"]) for each in evidence["attempts"]] == [(1, "PodDeleted"), (2, "PodDeleted")]


async def test_an_evicted_pod_is_deleted_before_the_next_is_created() -> None:
    world = World(durations=LONG)
    await world.reconcile()
    world.pod_status(phase="Failed", reason="Evicted", message="The node was low on resource: memory. ")
    await world.run()
    assert world.status.attempts[0].reason == "Evicted"
    assert (world.condition[0], world.pods) == ("Complete", [])


@pytest.mark.parametrize("spec", [{}, {"podCleanup": "Never"}])
async def test_nothing_is_remembered_of_trials_that_are_finished(spec: dict[str, Any]) -> None:
    world = World(durations=LONG, trial=manifest(spec))
    await world.reconcile()
    assert len(world.reconciler.memory.hints) == 1
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    assert (world.status.attempt, len(world.reconciler.memory.hints)) == (2, 0)


async def test_nothing_is_remembered_of_trials_that_are_deleted_while_a_phase_runs() -> None:
    world = World(durations=LONG)
    await world.reconcile()
    assert len(world.reconciler.memory.hints) == 1
    world.cluster.remove("MultiStepTrial", *KEY)
    await world.reconcile()
    assert len(world.reconciler.memory.hints) == 0


async def test_attempts_back_off() -> None:
    world = World(durations=LONG, trial=manifest({"infrastructureRetries": 5}))
    waits = []
    for number in range(1, 5):
        await world.run(until=lambda number=number: world.pods == [f"t-{number}"])  # type: ignore[misc]
        world.cluster.remove("Pod", "default", f"t-{number}")
        waits.append(await world.reconcile())
    assert waits == [1, 2, 4, 8]


# -- phases that end their own container


async def test_a_phase_that_runs_out_of_memory_ends_the_trial_and_is_not_tried_again() -> None:
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "c")
    terminated = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    world.pod_status(phase="Failed", containerStatuses=[{"name": "main", "state": terminated}])
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete")
    last = world.status.steps[-1]
    assert last.exception and (last.name, last.exception.type, last.exception.phase) == ("c", "OutOfMemoryError", "agent")
    assert last.completion_time is not None
    assert world.status.rewards == {"reward": 0.75, "style": 0.5}  # the mean over the verified steps a and b
    assert (world.status.attempt, world.status.attempts) == (1, [])
    assert world.pods == []


@pytest.mark.parametrize(
    ("id", "phase"), [("a/setup", "setup"), ("a/agent", "agent"), ("b/agent", "agent"), ("b/verifier", "verifier")]
)
async def test_a_container_that_ends_soon_after_a_phase_started_is_that_phases_failure(id: str, phase: str) -> None:
    """The operator has read no record of the phase yet: only the broken exec session shows which phase was starting."""

    def end_container(_: Any) -> dict[str, Any]:
        terminated = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        world.pod_status(phase="Failed", containerStatuses=[{"name": "main", "state": terminated}])
        world.runner.streams[-1].break_now()
        return {}

    world = World(results={id: end_container})  # type: ignore[dict-item]
    await world.run()
    last = world.status.steps[-1]
    assert world.condition[0] == "Complete" and [type(each).__name__ for each in world.errors] == ["StreamLost"]
    assert last.exception and (last.name, last.exception.type, last.exception.phase) == (id[0], "OutOfMemoryError", phase)
    assert f"(phase {phase} of step {last.name})" in last.exception.message


async def test_a_gate_counts_though_the_container_ends_during_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_container(*_: Any) -> bytes:
        world.pod_status(phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": {"exitCode": 1}}}])
        world.runner.streams[-1].break_now()
        return b""

    monkeypatch.setattr(FakeRunner, "download", end_container)
    task = {**CONFIG, "steps": [{"name": "a", "min_reward": {"style": 0.5}}]}
    world = World(trial=manifest(config=task), results={"a/verifier": rewarded(json='{"reward": 1, "style": 0.4}')})
    await world.run()
    (step,) = world.status.steps
    assert (step.exception and step.exception.type, step.rewards) == ("ContainerKilledError", {"reward": 1, "style": 0.4})
    assert (step.gate, world.status.passed, world.status.outcome) == (False, False, "AgentError")


async def test_a_phase_that_fills_its_disk_is_not_tried_again() -> None:
    world = World(durations=LONG)
    await world.reconcile()
    world.pod_status(
        phase="Failed", reason="Evicted", message="Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
    )
    await world.run()
    exception = world.status.steps[0].exception
    assert exception and exception.type == "OutOfDiskError"
    assert (world.condition[0], world.status.attempt) == ("Complete", 1)


# -- creating the pod


async def test_an_image_whose_user_is_not_root_gets_a_pod_as_root() -> None:
    world = await ran(user=1000)
    assert world.condition[0] == "Complete"
    assert (world.status.pod_name, world.status.image_user, world.status.attempt) == ("t-1-root", "1000:1000", 1)
    first, second = world.cluster.runners.values()
    assert (dict(first.starts), set(second.starts.values())) == ({}, {1})
    assert (world.status.attempts, world.pods) == ([], [])


async def test_a_pod_template_that_chooses_the_user_is_believed() -> None:
    template = {"spec": {"securityContext": {"runAsUser": 1000}}}
    world = await ran(user=1000, trial=manifest({"environment": {"podTemplate": template}}))
    assert (world.condition[0], world.status.pod_name, world.status.image_user) == ("Complete", "t-1", None)


async def test_a_pod_of_another_owner_with_the_same_name_is_not_touched() -> None:
    world = World()
    foreign = world.cluster.put({"kind": "Pod", "metadata": {"name": "t-1"}, "spec": {}, "status": {"phase": "Running"}})
    await world.run()
    assert world.condition[:2] == ("Failed", "PodNameTaken")
    assert world.now >= START + 60
    assert world.cluster.objects["Pod", "default", "t-1"] == foreign
    assert world.cluster.runners == {}


async def test_the_pod_of_a_former_trial_of_this_name_is_waited_for() -> None:
    world = World()
    owner = {"uid": "former", "controller": True, "kind": "MultiStepTrial", "name": "t"}
    world.cluster.put({"kind": "Pod", "metadata": {"name": "t-1", "ownerReferences": [owner]}, "spec": {}, "status": {}})
    await world.reconcile()
    assert world.condition[1] == "PodNameTaken"
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    assert world.condition[0] == "Complete"


async def test_an_image_that_cannot_be_had_fails_the_trial() -> None:
    world = World(pods_run=False)
    await world.reconcile()
    state = {"waiting": {"reason": "ErrImagePull", "message": "img: not found"}}
    world.pod_status(containerStatuses=[{"name": "main", "state": state}])
    await world.run()
    assert world.condition[:2] == ("Failed", "ImageNotFound")
    assert world.status.exception and world.status.exception.type == "EnvironmentStartError"


# -- answers that do not show that a pod was lost


@dataclass
class Unserved(Wrapped):
    """A cluster that answers one read of an object of this kind with a 404 without a reason, as a proxy does whose API server is
    away."""

    unserved: Resource | None = None

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        if resource == self.unserved:
            self.unserved = None
            raise NotFound("404 page not found", status=404)
        return await self.cluster.get(resource, namespace, name)


@pytest.mark.parametrize("resource", [TRIALS, PODS], ids=["trial", "pod"])
async def test_a_404_that_is_not_the_api_servers_deletes_nothing(resource: Resource) -> None:
    unserved = list[Unserved]()

    def wrap(cluster: FakeCluster) -> Cluster:
        unserved.append(Unserved(cluster))
        return cast(Cluster, unserved[0])

    world = World(durations=LONG, wrap=wrap, events="dropped")
    await world.run(until=lambda: world.status.current_step == "b")
    unserved[0].unserved = resource
    assert await world.reconcile() is not None, "the trial is reconciled again"
    await world.run()
    assert unserved[0].unserved is None
    assert world.condition[0] == "Complete" and world.status.attempts == []
