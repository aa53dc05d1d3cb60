from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from multistep.engine.room import Room
from multistep.engine.status_size import to_json
from multistep.errors import CollectionCut
from multistep.kube.protocols import Cluster, Object
from multistep.kube.resources import TRIALS, Resource
from multistep.reconcile.requeue import Requeue
from multistep.reconcile.trial_context import SOON_SECONDS
from multistep.reconcile.trial_reconcile import TASK_GRACE_SECONDS
from multistep.store.volume import TrialKey, Volume
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_runner import FakeStream
from tests.support.fake_volume import FakeSpool, FakeVolume
from tests.support.played import FAULT
from tests.support.world import CONFIG, FILES, KEY, START, World, manifest

LONG = {"a/agent": 100.0, "b/verifier": 40.0, "c/agent": 200.0}
ALL = ["a", "b", "c"]


async def ran(**options: Any) -> World:
    world = World(**options)
    await world.run()
    return world


def listing(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


# -- a trial from its creation to its end


async def test_a_trial_of_short_phases_runs_to_its_end_at_once_in_one_session() -> None:
    world = await ran()
    status = world.status
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert [step.name for step in status.steps] == ALL
    assert [step.phase for step in status.steps] == ["Complete"] * 3
    assert [step.rewards for step in status.steps] == [{"reward": 1}, {"reward": 0.5, "style": 1}, {"reward": 0}]
    assert [step.gate for step in status.steps] == [True, None, None]
    assert (status.rewards, status.reward) == ({"reward": 0.5, "style": pytest.approx(1 / 3)}, "0.5")
    assert (status.attempt, status.pod_name, status.isolation, status.exception) == (1, "t-1", "Shared", None)
    assert (status.current_step, status.attempts) == (None, [])
    assert status.results == "http://127.0.0.1:8080/results/default/t/trial-uid"
    assert world.execs == 1
    assert world.errors == []
    assert world.pods == []  # deleted, as podCleanup is Always
    assert set(world.runner.starts.values()) == {1}


async def test_events_report_each_transition_once() -> None:
    world = await ran()
    assert [event["reason"] for event in world.cluster.events] == [
        "PodCreated",
        "StepStarted",
        *("StepCompleted", "StepStarted") * 2,
        "StepCompleted",
        "TrialComplete",
    ]


async def test_keys_that_nobody_reads_are_reported_once() -> None:
    typo = {**CONFIG, "steps": [{"name": "a", "min_rewards": 0.5}, {"name": "b"}, {"name": "c"}], "zzz\x1b": 1}
    world = await ran(trial=manifest(config=typo), durations=LONG, user=1000)  # the pod is created twice, the second time as root
    assert [event for event in world.cluster.events if event["reason"] == "UnknownKeys"] == [
        {
            "reason": "UnknownKeys",
            "note": 'ignored in task.toml: steps[0].min_rewards: did you mean min_reward?; "zzz?": unknown key',
            "type": "Warning",
            "action": "Reconcile",
        }
    ]


async def test_parts_of_a_task_that_are_ignored_are_an_event_by_name() -> None:
    config = {**CONFIG, "environment": {**CONFIG["environment"], "gpu_types": ["H100"], "skills_dir": "/s"}}
    world = await ran(trial=manifest(config=config))
    (note,) = [event["note"] for event in world.cluster.events if event["reason"] == "UnsupportedFeatures"]
    assert note.startswith("environment.gpu_types: is ignored") and "; environment.skills_dir: is ignored" in note


async def test_variables_that_no_template_uses_are_an_event_by_name() -> None:
    variables = [{"name": "LOST", "value": "x"}, {"name": "USED", "value": "y"}]
    agent = {"name": "oracle", "env": [{"name": "A", "value": "${USED}"}]}
    world = await ran(trial=manifest({"variables": variables, "agent": agent}))
    (note,) = [event["note"] for event in world.cluster.events if event["reason"] == "UnusedVariables"]
    assert note == ("spec.variables: no template of the task uses LOST; an agent receives the variables of spec.agent.env only")


async def test_the_first_of_very_many_unknown_keys_are_reported() -> None:
    world = await ran(trial=manifest(config={**CONFIG, **{f"x{number}": 1 for number in range(1000)}}))
    (note,) = [event["note"] for event in world.cluster.events if event["reason"] == "UnknownKeys"]
    assert note.count("unknown key") == 20


async def test_writes_are_few() -> None:
    for durations in ({}, LONG):
        world = await ran(durations=durations)
        assert world.status_writes <= 12 + 3 * len(ALL)


async def test_results_are_kept_before_the_trial_is_complete() -> None:
    world = await ran()
    assert list(world.kept.steps) == ALL
    assert json.loads(world.kept.files["result.json"])["verifier_result"]["rewards"]["reward"] == 0.5
    assert world.faults.trace.index("volume finish after") < len(world.faults.trace) - 1 - world.faults.trace[::-1].index(
        "apply_status default/t before"
    )


async def test_results_on_a_real_volume(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    world = await ran(volume=volume)
    volume.close()
    found = listing(tmp_path / "default/t/trial-uid")
    assert {"result.json", "config.json", "lock.json", "trial.log", "steps/a/agent/log.txt", "steps/c/artifacts/out"} <= found
    assert {f"steps/{step}/{name}" for step in ALL for name in ("agent", "verifier", "artifacts/manifest.json")} <= found
    top = {path for path in found if "/" not in path and not path.startswith(".")}
    assert top == {"result.json", "config.json", "lock.json", "trial.log", "steps"}
    assert world.status.results and world.status.results.startswith("http://127.0.0.1:8080/results/default/t/trial-uid/")


async def test_a_single_step_task_lifts_its_error_to_the_trial() -> None:
    files = {"instruction.md": "x", "tests/test.sh": "x", "solution/solve.sh": "x"}
    trial = manifest(config={"environment": {"docker_image": "img"}}, files=files)
    world = await ran(trial=trial, results={"task/verifier": {"timedOut": True}})
    assert world.status.exception and world.status.exception.type == "VerifierTimeoutError"
    assert (world.condition[0], world.status.rewards) == ("Complete", None)


async def test_an_environment_that_is_never_healthy_fails_the_trial() -> None:
    world = await ran(results={"/healthcheck": {"healthy": False}})
    assert world.condition[:2] == ("Failed", "EnvironmentFailed")
    assert world.status.exception and world.status.exception.type == "HealthcheckError"
    assert (world.status.steps, world.status.rewards) == ([], None)
    assert "exception.txt" in world.kept.files


async def test_an_upload_that_fails_for_good_fails_the_trial_and_keeps_what_was_reached() -> None:
    world = await ran(results={"b/begin": FAULT})
    assert world.condition[:2] == ("Failed", "EnvironmentFailed")
    assert [step.rewards for step in world.status.steps] == [{"reward": 1}, None]


# -- waiting


async def test_a_suspended_trial_waits_without_a_pod_and_continues_when_resumed() -> None:
    world = World(trial=manifest({"suspend": True}))
    await world.run()
    assert world.condition == ("Reconciling", "Suspended", "spec.suspend is true; set it to false to start")
    assert (world.status.phase, world.pods, world.status.attempt) == ("Suspended", [], None)
    world.change_trial(suspend=False)
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_missing_config_map_is_waited_for() -> None:
    files = {**FILES}
    trial = manifest({"variables": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "x"}}}]}, files=files)
    world = World(trial=trial)
    assert await world.reconcile() == 10
    assert world.condition[1] == "TaskUnavailable"
    assert "spec.variables[X]: ConfigMap 'late'" in world.condition[2]
    assert world.pods == []
    world.cluster.put({"kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"x": "1"}})
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_missing_bundle_is_waited_for_by_name() -> None:
    source = {"bundle": {"configMaps": ["parts-0"], "digest": "sha256:" + "0" * 64}}
    world = World(trial={**manifest(), "spec": {"task": source}})
    assert await world.reconcile() == 10
    assert world.condition[1:] == ("TaskUnavailable", "ConfigMap parts-0 does not exist: apply it together with the trial")


async def test_what_is_created_right_after_the_trial_is_waited_for_without_a_word() -> None:
    trial = manifest({"variables": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "x"}}}]})
    trial["metadata"]["creationTimestamp"] = datetime.fromtimestamp(START, UTC).isoformat()
    world = World(trial=trial)
    assert await world.reconcile() == SOON_SECONDS
    assert (world.status_writes, world.status.conditions) == (0, [])
    world.now += TASK_GRACE_SECONDS
    await world.reconcile()
    assert world.condition[1] == "TaskUnavailable"
    world.cluster.put({"kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"x": "1"}})
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_trial_whose_task_went_away_ends_at_its_deadline() -> None:
    variable = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x"}}}
    world = World(trial=manifest({"variables": [variable], "activeDeadlineSeconds": 100}), durations=LONG)
    world.cluster.put({"kind": "Secret", "metadata": {"name": "s"}, "data": {"x": "MQ=="}})
    await world.reconcile()
    world.cluster.remove("Secret", "default", "s")
    world.reconciler = world.fresh()  # it must read the Secret again
    await world.run(most=50)
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert world.now - START <= 102


async def test_no_session_is_opened_while_a_phase_is_known_to_run() -> None:
    world = World(durations={"a/agent": 100.0})
    await world.reconcile()
    assert (world.execs, world.status.current_step, world.status.steps[0].phase) == (1, "a", "Agent")
    for _ in range(20):
        world.now += 1
        await world.reconcile()
    assert world.execs == 1
    world.now += 60  # the fallback reconcile, should an event be lost
    await world.reconcile()
    assert world.execs == 2


async def test_a_result_that_waits_is_fetched_at_once() -> None:
    world = World(durations={"a/agent": 5.0})
    await world.reconcile()
    world.now += 5
    world.end_phases()
    assert not world.runner.ready
    await world.reconcile()
    assert (world.execs, world.condition[0]) == (2, "Complete")


async def test_nothing_is_written_when_nothing_changed() -> None:
    world = World(durations={"a/agent": 1000.0})
    await world.reconcile()
    writes = list(world.cluster.writes)
    for seconds in (1, 60, 120):
        world.now += seconds
        await world.reconcile()
    assert world.cluster.writes == writes
    await world.run()
    writes = list(world.cluster.writes)
    await world.reconcile(3)
    assert world.cluster.writes == writes


async def test_nothing_is_written_again_while_the_pod_is_starting() -> None:
    world = World(pods_run=False)
    await world.reconcile()
    world.pod_status(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}])
    await world.reconcile()
    assert world.condition == ("Reconciling", "Unschedulable", "0/1 nodes")
    writes = list(world.cluster.writes)
    for _ in range(5):
        world.now += 30
        await world.reconcile()
    assert world.cluster.writes == writes


async def test_a_trial_that_is_being_deleted_is_left_alone() -> None:
    world = World(trial={**manifest(), "metadata": {**manifest()["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert await world.reconcile() is None
    assert world.cluster.writes == []


async def test_a_trial_that_is_gone_is_nobodys_business() -> None:
    world = World()
    world.cluster.remove("MultiStepTrial", *KEY)
    assert await world.reconcile() is None
    assert world.errors == []


# -- the deadline


async def test_at_its_deadline_a_trial_fails_with_what_it_had() -> None:
    world = await ran(trial=manifest({"activeDeadlineSeconds": 150}), durations=LONG)
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert START + 150 <= world.now <= START + 152
    assert [step.rewards for step in world.status.steps] == [{"reward": 1}, {"reward": 0.5, "style": 1}, None]
    assert (world.status.rewards, world.pods) == (None, [])
    result = json.loads(world.kept.files["result.json"])
    assert result["verifier_result"] is None
    assert result["exception_info"]["exception_type"] == "DeadlineExceeded"


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
    assert len(second.starts) == 35  # from step 1


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
    assert len(world.reconciler.hints) == 1
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    assert (world.status.attempt, len(world.reconciler.hints)) == (2, 0)


async def test_nothing_is_remembered_of_trials_that_are_deleted_while_a_phase_runs() -> None:
    world = World(durations=LONG)
    await world.reconcile()
    assert len(world.reconciler.hints) == 1
    world.cluster.remove("MultiStepTrial", *KEY)
    await world.reconcile()
    assert len(world.reconciler.hints) == 0


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
    assert world.status.rewards == {"reward": 0.75, "style": 0.5}  # of the verified steps
    assert (world.status.attempt, world.status.attempts) == (1, [])
    assert world.pods == []


@pytest.mark.parametrize(
    ("id", "phase"), [("a/setup", "setup"), ("a/agent", "agent"), ("b/agent", "agent"), ("b/verifier", "verifier")]
)
async def test_a_container_that_ends_soon_after_a_phase_started_is_that_phases_failure(id: str, phase: str) -> None:
    """No record of the phase exists yet: only the broken session shows which phase it was."""

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


async def test_a_pod_of_somebody_else_with_the_same_name_is_not_touched() -> None:
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


# -- invalid specs


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"agent": {"name": "nobody"}}, "spec.agent.name"),
        ({"agent": {"name": "command"}}, "command"),
        ({"task": {"inline": {"config": {"steps": 5}}}}, "steps"),
        ({"task": {"inline": {"config": {"steps": [{"name": "a"}]}}}}, "steps/a"),
        ({"task": {"inline": {"config": {**CONFIG, "environment": {"os": "windows"}}, "files": FILES}}}, "environment.os"),
        ({"environment": {"podTemplate": {"spec": {"hostPID": True}}}}, "spec.environment.podTemplate.spec.hostPID"),
        ({"task": {"inline": {"config": {}, "files": {"../x": ""}}}}, "spec.task.inline.files"),
    ],
)
async def test_an_invalid_spec_fails_by_the_name_of_the_field(spec: dict[str, Any], named: str) -> None:
    trial = manifest()
    world = await ran(trial={**trial, "spec": {**trial["spec"], **spec}})
    assert world.condition[:2] == ("Failed", "InvalidSpec")
    assert named in world.condition[2]
    assert world.status.exception is not None
    assert world.pods == []
    writes = list(world.cluster.writes)
    await world.reconcile(2)
    assert world.cluster.writes == writes


# -- after the trial has finished

POLICIES = [  # spec, whether a step fails, seconds the pod and the trial are retained (None: forever)
    ({}, False, 0, None),
    ({}, True, 0, None),
    ({"podCleanup": "OnSuccess"}, False, 0, None),
    ({"podCleanup": "OnSuccess"}, True, None, None),
    ({"podCleanup": "Never"}, False, None, None),
    ({"podTTLSecondsAfterFinished": 30}, False, 30, None),
    ({"ttlSecondsAfterFinished": 50}, False, 0, 50),
    ({"podTTLSecondsAfterFinished": 30, "ttlSecondsAfterFinished": 50}, False, 30, 50),
    ({"podCleanup": "Never", "ttlSecondsAfterFinished": 50}, False, 50, 50),  # the pod is deleted with the trial
    ({"podTTLSecondsAfterFinished": 90, "ttlSecondsAfterFinished": 50}, True, 50, 50),
]


@pytest.mark.parametrize(("spec", "fails", "pod_stays", "trial_stays"), POLICIES)
async def test_what_stays_after_the_end(
    spec: dict[str, Any], fails: bool, pod_stays: float | None, trial_stays: float | None
) -> None:
    world = World(trial=manifest(spec), results={"c/verifier": {"captures": {}}} if fails else {})
    gone: dict[str, float] = {}

    def note() -> None:
        if not world.pods:
            gone.setdefault("pod", world.now - START)
        if ("MultiStepTrial", *KEY) not in world.cluster.objects:
            gone.setdefault("trial", world.now - START)

    await world.run(until=note)
    assert (gone.get("pod"), gone.get("trial")) == (pod_stays, trial_stays)


# -- concurrent writes by others


@dataclass
class Stale:
    """A cluster that returns an earlier version of the trial."""

    cluster: FakeCluster
    trial: Object

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self.trial if resource == TRIALS else await self.cluster.get(resource, namespace, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


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
    """Let the operator of this shard reconcile from now on."""
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


# -- exec sessions


async def test_a_session_is_kept_for_a_phase_that_started_in_it_and_not_for_one_that_was_found_running() -> None:
    world = World(durations={"a/agent": 100_000.0}, settings={"linger_seconds": 3.0})
    waited = []
    for _ in range(2):
        wait = await world.reconcile()
        assert wait is not None
        waited.append([each["timeoutSeconds"] for each in world.runner.requests if each["op"] == "wait"][-1])
        world.now += wait
    assert waited == [3.0, 0.0]


async def test_a_phase_that_takes_long_is_visited_less_and_less() -> None:
    """No event reports the end of the first phase; each wait is as long as the phase has run so far."""
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
        async def spool(self, key: TrialKey, max_bytes: int | None = None, room: Room | None = None) -> AsyncIterator[FakeSpool]:
            yield CutSpool()

    class CutSpool(FakeSpool):
        async def write(self, data: bytes) -> None:
            raise CollectionCut("it has more bytes than that")

    world = World(volume=Cutting())
    await world.run()
    assert world.errors == [] and world.condition[1] == "TrialComplete"
    assert [step.artifacts and step.artifacts.incomplete for step in world.status.steps] == [["it has more bytes than that"]] * 3
    assert world.execs == 4  # one extra session for each step


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
    assert key not in json.dumps(world.object["status"]) and key not in caplog.text
    assert world.cluster.events and key not in json.dumps(world.cluster.events)
