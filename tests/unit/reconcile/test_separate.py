"""Steps with a separate verifier's pod: the pod's lifecycle and network policy, and the trial's end if the pod ends too early."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from multistep.api.trial.runner_records import Record
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import joined
from multistep.errors import ClusterError
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.pods import pod_identity
from multistep.reconcile.trial import run_sessions
from multistep.runner_client.perform_operations import upload
from multistep.runner_client.session import Session
from multistep.store.results_volume import ResultsVolume
from tests.support.fake_cluster import image_id
from tests.support.world import CONFIG, KEY, MIXED, SEPARATE, World, manifest
from tests.support.wrapped_cluster import Wrapped

LONG = {"a/verifier/verifier": 40.0}


async def ran(config: Any = SEPARATE, spec: dict[str, Any] | None = None, **options: Any) -> World:
    world = World(trial=manifest(spec, config=config), **options)
    await world.run()
    return world


async def verifying(spec: dict[str, Any] | None = None, **options: Any) -> World:
    """Return a world in which the verifier's pod of step a is running."""
    world = World(trial=manifest(spec, config=SEPARATE), durations=LONG, **options)
    await world.run(until=lambda: world.status.steps and world.status.steps[0].phase == "Verifier" and len(world.pods) == 2)
    assert world.status.verifier
    return world


def created(world: World, kind: str = "Pod") -> list[str]:
    return [each.removeprefix(f"create {kind} default/") for each in world.cluster.writes if each.startswith(f"create {kind} ")]


# -- the API server checks the pods of verifiers before the agent runs


@dataclass
class Refusing(Wrapped):
    """A cluster that rejects the pods of verifiers, also in a dry run."""

    error: ClusterError

    async def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        if re.search(r"-v\d", manifest["metadata"]["name"]):
            self.cluster.faults.point("refused")
            raise self.error
        return await self.cluster.create(manifest, dry_run=dry_run)


def refusing(error: ClusterError) -> World:
    return World(manifest(config=SEPARATE), wrap=lambda cluster: cast(Cluster, Refusing(cluster, error)))


async def test_a_trial_whose_verifiers_pod_is_invalid_fails_before_the_agent_runs() -> None:
    world = refusing(ClusterError("spec.containers[1].image: Required value", status=422, reason="Invalid"))
    await world.run()
    assert world.condition[:2] == ("Failed", "InvalidSpec") and "containers[1].image: Required value" in world.condition[2]
    assert (world.execs, world.pods, world.status.steps) == (0, [], [])
    assert (world.status.failure and world.status.failure.class_, world.status.score) == ("Task", None)


async def test_a_trial_whose_verifiers_pod_a_policy_rejects_fails_before_the_agent_runs() -> None:
    world = refusing(ClusterError('pods "t-1-v0" is forbidden: violates PodSecurity', status=403, reason="Forbidden"))
    await world.reconcile()
    assert world.condition[:2] == ("Reconciling", "PodForbidden") and "the verifier of step a" in world.condition[2]
    await world.run()
    assert (world.condition[:2], world.execs, world.pods) == (("Failed", "PodForbidden"), 0, [])


async def test_a_quota_may_have_room_for_the_verifiers_pod_when_the_agent_has_finished() -> None:
    world = refusing(ClusterError('pods "t-1-v0" is forbidden: exceeded quota: q', status=403, reason="Forbidden"))
    await world.run(until=lambda: world.status.verifier is not None)
    assert world.status.current_step == "a"


async def test_one_dry_run_per_attempt_checks_the_verifiers_pods_that_differ() -> None:
    def dry_runs(world: World) -> list[str]:
        return [each.rpartition("/")[2] for each in world.faults.trace if each.startswith("dry-run ")]

    assert dry_runs(await ran()) == ["t-1-v0"]
    assert dry_runs(await ran(MIXED)) == ["t-1-v0"]
    assert dry_runs(await ran(CONFIG)) == []


@dataclass
class StoppedMeanwhile(Wrapped):
    """A cluster in which a user stops the trial as soon as its status names a verifier's pod."""

    async def apply_status(self, *args: Any, status: Object, **options: Any) -> Object:
        written = await self.cluster.apply_status(*args, status=status, **options)
        if joined(TrialStatus, status).get("verifier") and not written["spec"].get("stop"):
            self.cluster.put({**written, "spec": {**written["spec"], "stop": True}})
        return written


async def test_no_pod_is_created_for_the_verifier_of_a_trial_that_changed_since_it_was_read() -> None:
    """Nothing would delete the pod if another operator had finished the trial meanwhile."""
    world = World(manifest(config=SEPARATE), wrap=lambda cluster: cast(Cluster, StoppedMeanwhile(cluster)))
    await world.run()
    assert (created(world), world.condition[:2]) == (["t-1"], ("Failed", "Stopped"))


# -- a trial from its creation to its end


async def test_each_step_gets_a_pod_for_its_verifier_which_goes_when_it_is_verified() -> None:
    world = await ran()
    assert world.errors == []
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert [step.rewards for step in world.status.steps] == [{"reward": 1}, {"reward": 0.5, "style": 1}, {"reward": 0}]
    assert (world.status.isolation, world.status.verifier, world.status.attempt) == ("Separate", None, 1)
    assert created(world) == ["t-1", "t-1-v0", "t-1-v1", "t-1-v2"]
    assert world.pods == []
    deleted = [each for each in world.cluster.writes if each.startswith("delete Pod")]
    assert deleted == [f"delete Pod default/{name}" for name in ("t-1-v0", "t-1-v1", "t-1-v2", "t-1")]


async def test_the_agents_pod_sees_no_tests_and_no_verdicts() -> None:
    world = await ran()
    agents, *verifiers = world.cluster.runners.values()
    assert not any(id.count("/") == 3 for id in agents.starts)
    assert not any(request.get("target") == "/tests" for request in agents.requests)
    assert not any("VERIFIER" in json.dumps(request) for request in agents.requests)
    resets = [each["path"] for request in agents.requests if request["op"] == "reset" for each in request["directories"]]
    assert "/tests" not in resets and resets.count("/logs/verifier") == 1  # emptied once, before the first step
    assert len(verifiers) == 3
    for step, runner in zip("abc", verifiers, strict=True):
        assert {id.split("/")[1] for id in runner.starts} == {step}
        assert f"1/{step}/verifier/verifier" in runner.starts


async def test_what_was_collected_is_handed_over_and_logs_come_from_the_verifier() -> None:
    world = await ran()
    verifier = list(world.cluster.runners.values())[1]
    uploads = {request["id"]: request["target"] for request in verifier.requests if request["op"] == "upload"}
    assert uploads == {"1/a/verifier/artifact-1": "/app", "1/a/verifier/tests": "/tests", "1/a/verifier/step-tests": "/tests"}
    assert verifier.uploads["1/a/verifier/artifact-1"] == b"entry 1 of a"
    assert sorted(world.kept.steps) == [f"{step}/{part}" for step in "abc" for part in ("agent", "verifier")]


async def test_a_real_volume_hands_the_files_over_at_their_source_paths(tmp_path: Path) -> None:
    volume = ResultsVolume(tmp_path)
    world = await ran(volume=volume)
    volume.close()
    top = tmp_path / "default/t/trial-uid"
    assert {path.name for path in (top / "steps/a").iterdir()} == {"agent", "verifier", "artifacts"}
    assert (top / "steps/a/artifacts/out").read_bytes() == b"out"
    verifier = list(world.cluster.runners.values())[1]
    assert b"out" in verifier.uploads["1/a/verifier/artifact-1"]
    assert world.condition[0] == "Complete"


async def test_modes_may_be_mixed() -> None:
    world = await ran(MIXED)
    assert created(world) == ["t-1", "t-1-v0"]
    assert (world.condition[0], world.status.isolation) == ("Complete", "Shared")
    assert list(world.kept.steps) == ["a/agent", "a/verifier", "b", "c"]


async def test_results_mark_a_single_step_task() -> None:
    files = {"instruction.md": "x", "tests/test.sh": "x", "solution/solve.sh": "x"}
    config = {"environment": {"docker_image": "img"}, "verifier": {"environment_mode": "separate"}}
    world = World(trial=manifest(config=config, files=files), results={"task/verifier/verifier": {"timedOut": True}})
    await world.run()
    assert json.loads(world.kept.files["result.json"])["verifier_environment_mode"] == "separate"
    assert json.loads(world.kept.files["lock.json"])["verifier"]["environment_mode"] == "separate"
    assert world.status.exception and world.status.exception.type == "VerifierTimeoutError"


async def test_no_session_is_opened_while_the_verifier_is_known_to_run_or_to_start() -> None:
    world = await verifying()
    await world.reconcile()
    execs = world.execs
    for _ in range(20):
        world.now += 1
        await world.reconcile()
    assert world.execs == execs
    world.now += 20
    world.end_phases()
    await world.reconcile()
    assert world.execs > execs and world.condition[0] == "Complete"


async def test_a_pod_that_is_starting_is_waited_for_without_a_session() -> None:
    world = World(trial=manifest(config=SEPARATE), durations={"a/agent": 5.0})
    await world.reconcile()
    world.cluster.pods_run = False
    world.now += 5
    world.end_phases()
    await world.reconcile()
    execs = world.execs
    for _ in range(5):
        world.now += 1
        await world.reconcile()
    assert (world.condition[1], world.execs) == ("PodStarting", execs)
    world.cluster.pods_run = True
    world.cluster.run_pod("default", "t-1-v0")
    await world.run()
    assert world.condition[0] == "Complete"


async def test_an_image_with_another_user_is_restarted_as_root() -> None:
    world = await ran(MIXED, user=1000)
    assert created(world) == ["t-1", "t-1-root", "t-1-v0", "t-1-v0-root"]
    assert (world.condition[0], world.pods) == ("Complete", [])


async def test_a_verifier_with_the_agents_image_is_root_at_once_when_it_has_to_be() -> None:
    world = await ran(user=1000)
    assert created(world) == ["t-1", "t-1-root", "t-1-v0-root", "t-1-v1-root", "t-1-v2-root"]
    assert (world.condition[0], world.pods) == ("Complete", [])


async def test_the_verifiers_pod_is_created_of_the_verifiers_environment() -> None:
    own = {"docker_image": "judge", "cpus": 2, "workdir": "/judge", "env": {"V": "1"}}
    config = {**CONFIG, "verifier": {"environment": own}}
    world = World(trial=manifest({"environment": {"runnerInImage": True}}, config=config), durations=LONG)
    await world.run(until=lambda: len(world.pods) == 2)
    pod = world.cluster.objects["Pod", "default", "t-1-v0"]
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["workingDir"], container["resources"]["limits"]) == ("judge", "/judge", {"cpu": "2"})
    assert pod["metadata"]["labels"][pod_identity.LABEL_ROLE] == "verifier"
    assert pod["spec"]["initContainers"]  # an init container adds the runner: runnerInImage applies to the agent's image only
    assert pod_identity.trial_of(pod) == KEY
    verifier = list(world.cluster.runners.values())[1]
    start = next(each for each in verifier.requests if each["op"] == "start")
    assert start["env"] == {"V": "1"}


async def test_a_verifiers_image_without_its_user_is_the_tasks_failure_and_no_0_of_the_agent() -> None:
    steps = [{**MIXED["steps"][0], "verifier": {"environment": {"docker_image": "judge"}, "user": "judge"}}]
    lacks = {"exitCode": None, "error": {"code": "NoSuchUser", "message": '/etc/passwd has no user "judge"'}}
    world = await ran({**MIXED, "steps": steps}, results={"a/verifier/user-0": lacks})
    assert world.condition == ("Failed", "NoSuchUser", 'verifier.user of step a: /etc/passwd has no user "judge"')
    assert world.status.failure is not None
    assert (world.status.failure.class_, world.status.score, world.status.attempts, world.pods) == ("Task", None, [], [])


@pytest.mark.parametrize("length", [1, 40, 63, 200])
def test_names_of_pods_are_host_names(length: int) -> None:
    name = pod_identity.verifier_pod_name("x" * length, 12, 99, as_root=True)
    assert len(name) <= 63 and name.endswith("-12-v99-root")


# -- pods that end too early


async def test_a_verifiers_pod_that_is_deleted_loses_the_attempt() -> None:
    world = await verifying()
    world.cluster.remove("Pod", "default", "t-1-v0")
    await world.run()
    (lost,) = world.status.attempts
    assert (lost.reason, lost.message) == ("PodDeleted", "the verifier of step a: pod t-1-v0 was deleted by another client")
    assert (world.condition[0], world.status.attempt, world.pods) == ("Complete", 2, [])


async def test_when_the_agents_pod_is_lost_the_verifiers_goes_before_the_next_attempt() -> None:
    world = await verifying()
    world.cluster.remove("Pod", "default", "t-1")
    await world.run(until=lambda: "t-2" in world.pods)
    assert "t-1-v0" not in world.pods
    await world.run()
    assert (world.condition[0], world.status.attempt, world.pods) == ("Complete", 2, [])


@pytest.mark.parametrize(
    ("status", "exception"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, "OutOfMemoryError"),
        ({"exitCode": 143, "reason": "Error"}, "ContainerKilledError"),
    ],
)
async def test_a_container_that_the_verifier_ended_is_the_steps_exception(status: Object, exception: str) -> None:
    world = await verifying()
    state = [{"name": "main", "state": {"terminated": status}}]
    world.cluster.set_pod_status("default", "t-1-v0", phase="Failed", containerStatuses=state)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete")
    (step,) = world.status.steps
    assert step.exception and (step.exception.type, step.exception.phase) == (exception, "verifier")
    assert step.exception.message.startswith("the verifier of step a: ")
    assert (world.status.attempts, world.status.rewards, world.pods) == ([], None, [])


JUDGE = {"docker_image": "judge", "healthcheck": {"command": "true"}}


@pytest.mark.parametrize(("phase", "score"), [("healthcheck", None), ("verifier", 0.0)])
async def test_a_verifiers_container_that_ends_before_it_has_the_agents_files_gives_no_score(
    phase: str, score: float | None
) -> None:
    config = {**CONFIG, "verifier": {"environment": JUDGE}}
    world = World(trial=manifest(config=config), durations={f"a/verifier/{phase}": 40.0})
    await world.run(until=lambda: any(f"1/a/verifier/{phase}" in each.starts for each in world.cluster.runners.values()))
    state = [{"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]
    world.cluster.set_pod_status("default", "t-1-v0", phase="Failed", containerStatuses=state)
    await world.run()
    assert world.status.failure and world.status.failure.class_ == "Verifier"
    assert (world.condition[0], world.status.score) == ("Complete", score)


async def test_the_status_shows_that_the_agents_files_may_come_before_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    world, shown = World(trial=manifest(config=SEPARATE)), list[object]()
    sent = Session.note

    async def note(session: Session, id: str, *args: Any) -> Record:
        shown.extend([world.status.verifier and world.status.verifier.untouched] if id.endswith("/verifier/environment") else [])
        return await sent(session, id, *args)

    async def hand_over(*args: Any) -> Record:
        shown.append(world.status.verifier and world.status.verifier.untouched)
        return await upload(*args)

    monkeypatch.setattr(Session, "note", note)
    monkeypatch.setattr(run_sessions, "upload", hand_over)
    await world.run()
    assert (world.condition[0], shown) == ("Complete", [True, None] * 3)


async def test_an_image_that_is_not_there_fails_the_trial() -> None:
    world = World(trial=manifest(config=MIXED), durations={"a/agent": 5.0})
    await world.reconcile()
    world.cluster.pods_run = False
    world.now += 5
    world.end_phases()
    await world.reconcile()
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "judge: not found"}}
    world.cluster.set_pod_status("default", "t-1-v0", containerStatuses=[{"name": "main", "state": waiting}])
    await world.run()
    assert world.condition[:2] == ("Failed", "ImageNotFound")
    assert "the verifier of step a" in world.condition[2]
    assert world.pods == []


@pytest.mark.parametrize("cleanup", ["Always", "Never"])
async def test_at_the_deadline_both_pods_go_as_something_may_still_work_there(cleanup: str) -> None:
    world = await verifying({"activeDeadlineSeconds": 20, "podCleanup": cleanup})
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert world.pods == []


@pytest.mark.parametrize(("cleanup", "left"), [("Always", []), ("Never", ["t-1", "t-1-v0"])])
async def test_when_a_verifiers_pod_fails_the_trial_both_are_treated_alike(cleanup: str, left: list[str]) -> None:
    world = World(trial=manifest({"podCleanup": cleanup}, config=SEPARATE), durations=LONG)
    await world.run(until=lambda: "t-1-v0" in world.pods)
    waiting = {"waiting": {"reason": "InvalidImageName"}}
    world.cluster.set_pod_status("default", "t-1-v0", containerStatuses=[{"name": "main", "state": waiting}])
    await world.run()
    assert (world.condition[:2], world.pods) == (("Failed", "InvalidImageName"), left)


async def test_an_agent_that_got_hold_of_its_pod_cannot_forge_a_verdict() -> None:
    world = World(trial=manifest(config=SEPARATE), durations={"a/agent": 5.0})
    await world.reconcile()
    forged: dict[str, Any] = {"id": "1/a/verifier/verifier", "op": "note", "state": "done", "startedAt": 1.0, "endedAt": 1.0}
    world.runner.records[forged["id"]] = {**forged, "acknowledged": True, "result": {}}
    await world.run()
    assert world.status.steps[0].rewards == {"reward": 1}


# -- network policies

LIMITED: Any = {**SEPARATE, "environment": {**CONFIG["environment"], "network_mode": "allowlist", "allowed_hosts": ["10.0.0.7"]}}
ENFORCED = {"egress": "NetworkPolicy"}


async def test_a_limited_network_has_a_policy_for_each_pod_before_the_pod() -> None:
    world = await ran(LIMITED, settings=ENFORCED)
    assert world.condition[0] == "Complete"
    names = ["t-1", "t-1-v0", "t-1-v1", "t-1-v2"]
    assert created(world, "NetworkPolicy") == created(world) == names
    writes = world.cluster.writes
    assert all(writes.index(f"create NetworkPolicy default/{name}") < writes.index(f"create Pod default/{name}") for name in names)
    policy = world.cluster.objects["NetworkPolicy", "default", "t-1-v0"]
    assert policy["metadata"]["ownerReferences"][0]["uid"] == "trial-uid"
    assert policy["spec"] == {
        "podSelector": {"matchLabels": {"multistep.dev/trial": "t", "multistep.dev/pod": "t-1-v0"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}]}],
    }


async def test_the_policy_selects_its_pod_and_no_network_allows_nothing() -> None:
    config: Any = {**CONFIG, "environment": {**CONFIG["environment"], "network_mode": "no-network"}}
    world = World(trial=manifest(config=config), settings=ENFORCED, durations={"a/agent": 5.0})
    await world.reconcile()
    policy, pod = world.cluster.objects["NetworkPolicy", *KEY[:1], "t-1"], world.cluster.objects["Pod", "default", "t-1"]
    assert policy["spec"]["egress"] == []
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["labels"]["multistep.dev/network"] == "Limited"  # the chart's general policy excludes this pod


async def test_a_public_network_denies_ingress_alone() -> None:
    """The policy admits no ingress. Readiness probes still work: every policy admits traffic from the pod's own node."""
    world = World(settings=ENFORCED, durations={"a/agent": 5.0})
    await world.reconcile()
    assert created(world, "NetworkPolicy") == ["t-1"]
    policy, pod = world.cluster.objects["NetworkPolicy", "default", "t-1"], world.cluster.objects["Pod", "default", "t-1"]
    assert policy["spec"] == {
        "podSelector": {"matchLabels": {"multistep.dev/trial": "t", "multistep.dev/pod": "t-1"}},
        "policyTypes": ["Ingress"],
        "ingress": [],
    }
    assert world.cluster.writes.index("create NetworkPolicy default/t-1") < world.cluster.writes.index("create Pod default/t-1")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "multistep.dev/network" not in pod["metadata"]["labels"]  # so the chart's policy limits the pod's egress


async def test_where_policies_are_not_enforced_none_is_created() -> None:
    world = World(durations={"a/agent": 5.0})
    await world.reconcile()
    assert (created(world), created(world, "NetworkPolicy")) == (["t-1"], [])


async def test_a_policy_of_another_owner_is_not_relied_on() -> None:
    world = World(trial=manifest(config=LIMITED), settings=ENFORCED)
    world.cluster.put({"kind": "NetworkPolicy", "metadata": {"name": "t-1", "namespace": "default"}, "spec": {}})
    await world.reconcile()
    assert (world.condition[1], world.pods) == ("NetworkPolicyTaken", [])
    world.cluster.remove("NetworkPolicy", "default", "t-1")
    await world.run()
    assert world.condition[0] == "Complete"


async def test_limits_are_rejected_where_they_are_not_enforced() -> None:
    world = await ran(LIMITED)
    assert world.condition[:2] == ("Failed", "InvalidSpec")
    assert "MULTISTEP_EGRESS" in world.condition[2]


async def test_status_and_lock_name_the_images_that_ran_as_the_kubelet_resolved_them() -> None:
    world = await ran()
    assert world.status.image_id == image_id("t-1")
    assert [step.verifier_image_id for step in world.status.steps] == [image_id(f"t-1-v{index}") for index in range(3)]
    kwargs = json.loads(world.kept.files["lock.json"])["environment"]["kwargs"]
    assert kwargs["image_id"] == image_id("t-1")
    assert kwargs["verifier_image_ids"] == {name: image_id(f"t-1-v{index}") for index, name in enumerate("abc")}


async def test_a_lost_attempt_keeps_the_image_that_it_ran() -> None:
    world = await verifying()
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    assert [each.image_id for each in world.status.attempts] == [image_id("t-1")]
    assert world.status.image_id == image_id("t-2")
