"""Test which failure class in a trial's status results from which failure in the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MethodType, SimpleNamespace
from typing import Any, cast

import pytest

from multistep.api.trial.status import TrialFailure
from multistep.errors import ClusterError
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import PODS, Resource
from multistep.reconcile.trial import run_sessions
from multistep.settings import ModelLimit
from tests.support.fake_runner import FakeRunner, FakeStream
from tests.support.world import KEY, SEPARATE, START, World, manifest
from tests.support.wrapped_cluster import Wrapped
from tests.unit.reconcile.scenarios import HOSTED, HOSTED_OPTIONS

LONG = {"a/agent": 100.0, "b/agent": 100.0, "b/verifier/verifier": 100.0}


@dataclass
class Refusing(Wrapped):
    """A cluster that rejects some pods. refusals: for each pod name, the errors of the next attempts to create it."""

    refusals: dict[str, list[ClusterError]] = field(default_factory=dict)

    async def create(self, pod: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        if pod["kind"] == "Pod" and not dry_run and (left := self.refusals.get(pod["metadata"]["name"])):
            raise left.pop(0)
        return await self.cluster.create(pod, dry_run=dry_run)


def refusing(refusals: dict[str, list[ClusterError]], **options: Any) -> World:
    return World(wrap=lambda cluster: cast(Cluster, Refusing(cluster, refusals)), **options)


DENIED = 'pods "t-1" is forbidden: ValidatingAdmissionPolicy p with binding b denied request: unwanted'
QUOTA = 'pods "t-1" is forbidden: exceeded quota: none'
INVALID = 'Pod "t-1" is invalid: spec.nodeSelector'


def no(message: str, status: int = 403) -> ClusterError:
    return ClusterError(f"create pod: {message}", status=status)


@pytest.mark.parametrize("status", [403, 422, 400])
async def test_a_pod_that_a_policy_denies_is_tried_for_a_minute_and_then_the_trial_fails(status: int) -> None:
    world = refusing({"t-1": [no(DENIED, status)] * 100})
    await world.reconcile()
    assert (world.status.phase, world.condition[1]) == ("Pending", "PodForbidden")
    before = world.now
    await world.run()
    assert world.condition == ("Failed", "PodForbidden", f"create pod: {DENIED}")
    assert 60 <= world.now - before < 75
    assert world.status.failure == TrialFailure(class_="Infrastructure", reason="PodForbidden")
    assert (world.status.rewards, world.status.attempts, world.pods) == (None, [], [])


async def test_a_trial_whose_pod_exceeds_a_quota_leaves_its_models_slot_to_others() -> None:
    limited = {"agent_host_image": "agent-host", "models": [ModelLimit(model="openai/m", max_active=1)]}
    world = refusing({"t-1": [no(QUOTA)]}, trial=manifest(HOSTED), **{**HOSTED_OPTIONS, "settings": limited})
    slots = world.reconciler.admission.model_slots
    await world.reconcile()
    assert (world.condition[1], slots.active("openai/m")) == ("QuotaExceeded", 0)
    await world.run(until=lambda: world.status.current_step == "a")
    assert slots.active("openai/m") == 1


async def test_what_is_forbidden_for_a_moment_and_a_quota_that_is_full_for_long_do_no_harm() -> None:
    world = refusing({"t-1": [no(QUOTA)] * 200 + [no(DENIED)] + [no(QUOTA)] * 2})
    await world.run(until=lambda: world.now > 1_700_000_000.0 + 1000)
    assert (world.status.phase, world.condition[1]) == ("Pending", "QuotaExceeded")
    await world.run()
    assert world.condition[0] == "Complete" and world.status.failure is None


async def test_a_verifiers_pod_that_a_policy_denies_has_its_minute_from_when_it_was_wanted() -> None:
    world = refusing({"t-1-v0": [no(DENIED)] * 100}, trial=manifest(config=SEPARATE), durations={"a/agent": 500.0})
    await world.run(until=lambda: world.status.verifier)
    wanted = world.now
    await world.run()
    assert world.condition[:2] == ("Failed", "PodForbidden") and 60 <= world.now - wanted < 75


async def test_what_can_be_no_pod_is_the_tasks_fault() -> None:
    world = refusing({"t-1": [no(INVALID, 422)]})
    await world.run()
    assert world.condition[:2] == ("Failed", "InvalidSpec") and "spec.nodeSelector" in world.condition[2]
    assert world.status.failure == TrialFailure(class_="Task", reason="InvalidSpec")
    labels = {"agent": "oracle", "outcome": "Excluded", "reason": "InvalidSpec", "class": "Task"}
    assert world.metrics.registry.get_sample_value("multistep_trials_finished_total", labels) == 1


@pytest.mark.parametrize(
    ("id", "result", "wanted", "outcome"),
    [
        ("b/agent", {"exitCode": None, "timedOut": True}, ("Agent", "AgentTimeoutError", "b"), "AgentError"),
        ("b/verifier", {"captures": {}}, ("Verifier", "RewardFileNotFoundError", "b"), "VerifierError"),
        ("a/setup", {"exitCode": 3}, ("Task", "RuntimeError", "a"), "Excluded"),
    ],
)
async def test_a_complete_trial_reports_what_ended_it_and_metrics_count_it(
    id: str, result: dict[str, Any], wanted: tuple[str, str, str], outcome: str
) -> None:
    world = World(results={id: result})
    await world.run()
    failure = world.status.failure
    assert world.condition[0] == "Complete" and failure and (failure.class_, failure.reason, failure.step) == wanted
    labels = {"agent": "oracle", "outcome": outcome, "reason": wanted[1], "class": wanted[0]}
    assert world.metrics.registry.get_sample_value("multistep_trials_finished_total", labels) == 1


async def test_a_lost_attempt_is_counted_by_a_reason_of_the_table_only() -> None:
    world = World(durations=LONG)
    await world.reconcile()
    world.pod_status(phase="Failed", reason="OutOfexample.com/gpu", message="no")
    await world.run()
    assert [each.reason for each in world.status.attempts] == ["OutOfexample.com/gpu"]
    assert world.metrics.registry.get_sample_value("multistep_attempts_failed_total", {"reason": "Other"}) == 1


# -- restarted containers

RESTARTED = {"name": "main", "restartCount": 1, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("last", "attempts", "exception"),
    [
        ({"exitCode": 255, "reason": "Unknown"}, ["ContainerRestarted"], None),
        (None, ["ContainerRestarted"], None),
        ({"exitCode": 2, "reason": "Error"}, [], "ContainerKilledError"),
        ({"exitCode": 137, "reason": "OOMKilled"}, [], "OutOfMemoryError"),
    ],
)
async def test_a_container_started_again_in_its_pod_is_judged_by_the_end_of_the_former(
    last: dict[str, Any] | None, attempts: list[str], exception: str | None
) -> None:
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    world.pod_status(containerStatuses=[{**RESTARTED, "lastState": {"terminated": last} if last else {}}])
    await world.run()
    assert world.condition[0] == "Complete" and [each.reason for each in world.status.attempts] == attempts
    last_step = world.status.steps[-1].exception
    assert (last_step and last_step.type) == exception


async def test_another_container_in_the_pod_is_a_restart() -> None:
    """The operator compares container IDs, because the restart count may be lost with the container."""
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    world.runner.records.clear()
    world.pod_status(containerStatuses=[{"name": "main", "state": {"running": {}}, "containerID": "containerd://another"}])
    await world.run()
    assert world.condition[0] == "Complete" and [each.reason for each in world.status.attempts] == ["ContainerRestarted"]
    first, second = world.cluster.runners.values()
    assert set(first.starts.values()) == set(second.starts.values()) == {1}


@pytest.mark.parametrize("left", [{}, {"1//healthcheck": {}}])
async def test_a_runner_without_records_of_what_was_done_in_the_same_container_is_an_agents(left: dict[str, Any]) -> None:
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    records = world.runner.records
    for id in [each for each in records if each not in left]:
        del records[id]
    started = world.now
    await world.run()
    assert world.condition[:2] == ("Failed", "Tampered") and 60 <= world.now - started < 240
    assert world.status.failure == TrialFailure(class_="Agent", reason="Tampered", step="b")
    assert world.status.score == 0
    assert (world.status.rewards, world.status.attempts, world.pods) == (None, [], [])


async def test_a_runner_that_changes_the_rewards_of_a_completed_step_is_an_agents() -> None:
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    verified = world.runner.records["1/a/verifier"]
    captures = {path: each and {**each, "base64": "Ny4w"} for path, each in verified["result"]["captures"].items()}
    verified["result"] = {**verified["result"], "captures": captures}
    await world.run()
    assert world.condition[:2] == ("Failed", "Tampered") and "step a" in world.condition[2]
    assert world.status.failure == TrialFailure(class_="Agent", reason="Tampered", step="b")
    assert world.status.score == 0


# -- exec sessions that a process in the container kills


async def test_an_agent_that_kills_exec_sessions_fails_within_minutes_and_is_not_retried() -> None:
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    world.runner.killed = 10**6
    world.now += 100  # the agent's phase has finished; until its result is read, the pod is unready
    world.end_phases()
    started = world.now
    await world.run()
    assert world.condition[:2] == ("Failed", "ExecSessionsKilled") and 90 <= world.now - started < 180
    assert world.status.failure == TrialFailure(class_="Agent", reason="ExecSessionsKilled", step="b")
    assert world.status.score == 0
    assert (world.status.rewards, world.status.attempts) == (None, [])


async def test_exec_sessions_that_are_killed_before_the_first_step_are_no_agents_doing_and_no_0() -> None:
    def kill_sessions(_: Any) -> dict[str, Any]:
        world.runner.killed = 10**6
        return {}

    world = World(results={"/prepare": kill_sessions})  # type: ignore[dict-item]
    await world.run()
    assert world.condition[:2] == ("Failed", "ExecSessionsKilled")
    assert world.status.failure == TrialFailure(class_="Task", reason="ExecSessionsKilled")
    assert (world.status.score, world.status.outcome, world.status.tampering) == (None, "Excluded", [])


@pytest.mark.parametrize("killed", [1, 4])
async def test_exec_sessions_that_are_killed_for_a_moment_change_nothing(killed: int) -> None:
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    world.runner.killed = killed
    await world.run()
    assert world.condition[0] == "Complete" and world.status.failure is None


async def test_streams_that_break_without_a_status_are_the_agents_doing_only_at_the_deadline() -> None:
    world = World(durations=LONG, trial=manifest({"activeDeadlineSeconds": 3000}))
    await world.run(until=lambda: world.status.current_step == "b")

    def broken(self: FakeRunner, **_: Any) -> FakeStream:
        return FakeStream(self, break_after_received=0)

    world.runner.stream = MethodType(broken, world.runner)  # type: ignore[method-assign]
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded") and world.now - START >= 3000
    assert (world.status.score, world.status.tampering) == (0, [])


# -- readiness probes that fail although no result is waiting


class Unready(Wrapped):
    """A cluster whose pods' readiness probes always fail, as if a process flooded the probes' port."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        found = await self.cluster.get(resource, namespace, name)
        if resource == PODS:
            found["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        return found


async def test_a_result_is_fetched_within_a_minute_though_the_probe_always_fails() -> None:
    long = {"a/agent": 2000.0, "b/agent": 30.0}
    world = World(durations=long, settings={"poll_seconds": 300.0}, wrap=lambda cluster: cast(Cluster, Unready(cluster)))
    world.events = "dropped"
    await world.run()
    agents = [(each.completion_time - each.start_time).total_seconds() for each in world.status.steps if each.completion_time]  # type: ignore[operator]
    assert world.condition[0] == "Complete" and agents[0] < 2100 and agents[1] < 60
    assert world.reconciles < 120


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"activeDeadlineSeconds": 5}, "spec.activeDeadlineSeconds"),
        ({"containers": [{"name": "main", "restartPolicy": "Always"}]}, "containers[main].restartPolicy"),
        ({"containers": [{"name": "main", "restartPolicyRules": [{}]}]}, "containers[main].restartPolicyRules"),
    ],
)
async def test_a_pod_template_may_not_end_or_restart_the_container_by_itself(template: dict[str, Any], named: str) -> None:
    world = World(trial=manifest({"environment": {"podTemplate": {"spec": template}}}))
    await world.run()
    assert world.condition[:2] == ("Failed", "InvalidSpec") and named in world.condition[2]


# -- slow operations and unreadable data


async def test_the_time_of_a_collection_is_that_of_the_download_and_not_of_its_note(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 7))
    monkeypatch.setattr(run_sessions, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    world = World()
    await world.run()
    assert [each.seconds and each.seconds.artifacts for each in world.status.steps] == [7, 7, 7]


@pytest.mark.parametrize("part", ["spec", "status"])
async def test_a_finished_trial_that_cannot_be_read_as_a_whole_keeps_its_end_and_is_cleaned_up(part: str) -> None:
    world = World(trial=manifest({"ttlSecondsAfterFinished": 50, "podTTLSecondsAfterFinished": 30}))
    await world.run(until=lambda: world.status.completion_time)
    done = world.object
    broken = {"agent": {"name": "nobody"}, "steps": 5} if part == "spec" else {"steps": "x"}
    world.cluster.put({**done, part: {**done[part], **broken}})
    writes = list(world.cluster.writes)
    world.reconciler = world.fresh()
    wait = await world.reconcile()
    assert world.pods == ["t-1"] and wait and wait <= 30
    await world.run()
    assert ("MultiStepTrial", *KEY) not in world.cluster.objects
    assert [each for each in world.cluster.writes[len(writes) :] if "status" in each] == []


async def test_a_change_of_a_finished_trials_spec_is_noted_and_changes_nothing_about_its_end() -> None:
    world = World()
    await world.run()
    done = world.object
    world.cluster.put({**done, "metadata": {**done["metadata"], "generation": 2}, "spec": {**done["spec"], "suspend": True}})
    await world.reconcile()
    noted = world.object["status"]
    assert noted["observedGeneration"] == 2 and {**noted, "observedGeneration": 1} == done["status"]
    writes = len(world.cluster.writes)
    await world.reconcile()
    assert len(world.cluster.writes) == writes
