from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial import MultiStepTrial, parse_trial
from multistep.api.trial_status import (
    AttemptStatus,
    Condition,
    StepException,
    StepStatus,
    TrialException,
    TrialStatus,
    VerifierStatus,
)
from multistep.engine import lifecycle, pod_start
from multistep.engine.deadlines import next_deadline
from multistep.engine.decisions import (
    Adopt,
    AdoptVerifierPod,
    CleanUp,
    CreatePod,
    CreateVerifierPod,
    Decision,
    Drive,
    Fail,
    FailAttempt,
    PhaseDied,
    PodFacts,
    ProtocolViolation,
    Resume,
    Rule,
    Situation,
    StartAttempt,
    Suspend,
    Wait,
)
from multistep.engine.lifecycle import decide

START = 1_000_000.0
NOW = START + 100


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def trial(spec: Mapping[str, Any] | None = None, **status: Any) -> MultiStepTrial:
    """Return a trial with uid "t"."""
    made = {"metadata": {"name": "t", "uid": "t"}, "spec": {"task": {"inline": {"config": {}}}, **(spec or {})}}
    return parse_trial(made).model_copy(update={"status": TrialStatus(**status)})


def began(spec: Mapping[str, Any] | None = None, **status: Any) -> MultiStepTrial:
    """Return a trial that started at START and whose pod is known."""
    return trial(spec, **{"attempt": 1, "pod_name": "t-1", "pod_uid": "p", "start_time": at(START), **status})


def finished(spec: Mapping[str, Any] | None = None, kind: str = "Complete", reason: str = "x", **status: Any) -> MultiStepTrial:
    conditions = [Condition(type=kind, status="True", last_transition_time=at(NOW), reason=reason)]
    return began(spec, **{"conditions": conditions, "completion_time": at(NOW - 10), **status})


def pod(**changes: Any) -> PodFacts:
    """Return a running pod of the trial."""
    facts = {"name": "t-1", "uid": "p", "owner_uid": "t", "attempt": 1, "as_root": False, "phase": "Running", "created_at": START}
    return PodFacts(**{**facts, "running": True, "scheduled_at": START, **changes})


def starting(**changes: Any) -> PodFacts:
    """Return a pod that does not run yet."""
    return pod(**{"running": False, "phase": "Pending", "scheduled_at": NOW - 10, **changes})


def gated(**changes: Any) -> PodFacts:
    """Return a pod with a scheduling gate."""
    return starting(**{"scheduled_at": None, "gates": ("kueue.x-k8s.io/admission",), "unschedulable": "gated", **changes})


def ended(exit_code: int | None, exit_reason: str, **changes: Any) -> PodFacts:
    return pod(running=False, terminated=True, exit_code=exit_code, exit_reason=exit_reason, phase="Failed", **changes)


def judging(uid: str | None = "v", **status: Any) -> MultiStepTrial:
    """Return a trial whose step a is verified in a separate pod."""
    verifier = VerifierStatus(pod_name="t-1-v0", pod_uid=uid)
    return began(**{"current_step": "a", "steps": [StepStatus(name="a")], "verifier": verifier, **status})


def judge(**changes: Any) -> PodFacts:
    """Return the running pod of that verifier."""
    return pod(**{"name": "t-1-v0", "uid": "v", **changes})


def after(
    trial: MultiStepTrial,
    facts: PodFacts | None,
    now: float = NOW,
    start_timeout: float = 60.0,
    verifier: PodFacts | None = None,
) -> Decision:
    return decide(Situation(trial, facts, "t-1", now, start_timeout, verifier))


ON_ITS_WAY = "attempt 1: waiting for pod t-1"


def in_step(spec: Mapping[str, Any] | None = None, **status: Any) -> MultiStepTrial:
    """Return a trial whose step a has started."""
    return began(spec, **{"current_step": "a", "steps": [StepStatus(name="a")], **status})


IN_STEP = in_step()
SUSPEND = {"suspend": True}
RELEASE = {"suspend": True, "suspendPolicy": "Release"}
PRESTART = {"suspend": True, "prestart": True, "suspendPolicy": "Release"}
RELEASE_AFTER_STEP = {"suspend": True, "suspendPolicy": "ReleaseAfterStep"}
QUEUED = [Condition(type="Suspended", status="True", last_transition_time=at(NOW - 10), reason="QueuedByKueue")]
PAUSED = [Condition(type="Suspended", status="True", last_transition_time=at(NOW - 10), reason="Paused")]
RELEASED = FailAttempt("Suspended", "its pod was released, as spec.suspend is true")
STOPPED = Fail("Stopped", "the trial was stopped: spec.stop is true")
AGAIN: dict[str, Any] = {"attempt": 2, "pod_name": "t-2", "pod_uid": None}
LOST = [AttemptStatus(number=1, reason="Evicted", end_time=at(NOW - 0.4))]
WITH_DEADLINE = {"activeDeadlineSeconds": 100}
DEADLINE = Fail("DeadlineExceeded", "the trial was active for longer than spec.activeDeadlineSeconds = 100")
GONE = FailAttempt("PodDeleted", "pod t-1 was deleted by another client")
FULL_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
LOW_NODE = "The node was low on resource: memory. "
FILLED_NODE = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. "
    "Container main was using 20Gi, request is 0, has larger consumption of ephemeral-storage. "
)
HUB_DENIES = "pull access denied, repository does not exist or may require authorization: insufficient_scope"
TOO_SLOW = "pod t-1 did not start within environment.build_timeout_sec = 60"

Row = tuple[MultiStepTrial, PodFacts | None, Decision]

ROWS: dict[str, Row] = {
    # not started yet
    "new": (trial(), None, StartAttempt(1, "t-1")),
    # suspended
    "suspended": (trial(SUSPEND), None, Suspend()),
    "suspended, waiting to begin again": (began(SUSPEND, **AGAIN, attempts=LOST), None, Suspend()),
    "suspended while the pod was made": (began(SUSPEND, pod_uid=None), pod(), Adopt()),
    "suspended, with another's pod": (began(SUSPEND, pod_uid=None), pod(owner_uid="x"), Suspend()),
    "suspended while it runs": (in_step(SUSPEND), pod(), Drive()),
    "suspended while it is prepared": (began(SUSPEND), pod(), Drive()),
    "suspended while the pod starts": (began(SUSPEND), starting(), RELEASED),
    "suspended, and the pod cannot start": (began(SUSPEND), starting(waiting_reason="InvalidImageName"), RELEASED),
    "paused": (in_step(SUSPEND, conditions=PAUSED), pod(), Suspend()),
    "paused, pod deleted": (in_step(SUSPEND, conditions=PAUSED), None, GONE),
    "paused and resumed": (in_step(conditions=PAUSED), pod(), Drive()),
    "to be released": (in_step(RELEASE), pod(), RELEASED),
    "to be released, deleted": (in_step(RELEASE), None, GONE),
    "to be released, its fault": (
        in_step(RELEASE),
        ended(137, "OOMKilled"),
        PhaseDied(
            "OutOfMemoryError", "the trial's container ended with status 137 (OOMKilled): it used more than its memory limit"
        ),
    ),
    "to be released after the step": (in_step(RELEASE_AFTER_STEP), pod(), Drive()),
    "to be released, after the step": (in_step(RELEASE_AFTER_STEP, conditions=PAUSED), pod(), RELEASED),
    "released and resumed": (began(**AGAIN, attempts=LOST, conditions=PAUSED), None, Resume()),
    "released and begun again": (began(**AGAIN, attempts=[LOST[0].model_copy(update={"reason": "Suspended"})]), None, CreatePod()),
    "suspended and resumed before it began": (trial(conditions=PAUSED), None, StartAttempt(1, "t-1")),
    # prestarted
    "prestarted, new": (trial(PRESTART), None, StartAttempt(1, "t-1")),
    "prestarted, begun": (began(PRESTART, pod_uid=None), None, CreatePod()),
    "prestarted while the pod starts": (began(PRESTART), starting(), Wait("PodStarting", ON_ITS_WAY, 30.0)),
    "prestarted while it is prepared": (began(PRESTART), pod(), Drive()),
    "prestarted and ready": (began(PRESTART, conditions=PAUSED), pod(), Suspend()),
    "prestarted, in its first step": (in_step(PRESTART), pod(), RELEASED),
    "prestarted, in its first step's verification": (in_step({**PRESTART, "suspendPolicy": "Pause"}), pod(), Drive()),
    "prestarted, and the pod was lost": (began(PRESTART, **AGAIN, attempts=LOST), None, Suspend()),
    "prestarted, and not wanted any more": (began({**PRESTART, "prestart": False}, conditions=PAUSED), pod(), RELEASED),
    "prestarted, stopped": (trial({**PRESTART, "stop": True}), None, STOPPED),
    # stopped
    "stopped": (in_step({"stop": True}), pod(), STOPPED),
    "stopped before it began": (trial({"stop": True}), None, STOPPED),
    "stopped while suspended": (in_step({**SUSPEND, "stop": True}, conditions=PAUSED), pod(), STOPPED),
    "stopped when it was over": (finished({"stop": True}), None, CleanUp(None, None)),
    # creation of the pod
    "begun": (began(pod_uid=None), None, CreatePod()),
    "begun again at once": (began(**AGAIN, attempts=LOST), None, Wait("BackingOff", "attempt 1 failed: Evicted", 0.6)),
    "begun again": (began(**AGAIN, attempts=[LOST[0].model_copy(update={"end_time": at(NOW - 1)})]), None, CreatePod()),
    "third attempt at once": (
        began(**AGAIN, attempts=[LOST[0], LOST[0].model_copy(update={"number": 2})]),
        None,
        Wait("BackingOff", "attempt 2 failed: Evicted", 1.6),
    ),
    "lost without a time": (began(**AGAIN, attempts=[AttemptStatus(number=1)]), None, CreatePod()),
    "made before a crash": (began(pod_uid=None), pod(), Adopt()),
    "deleted": (began(), None, GONE),
    "replaced": (
        began(),
        pod(uid="other"),
        FailAttempt("PodReplaced", "pod t-1 with UID p was deleted by another client, and another pod of that name was created"),
    ),
    "being deleted": (began(), pod(deleting=True), GONE),
    "somebody else's": (
        began(pod_uid=None, start_time=at(NOW - 60)),
        pod(owner_uid="x"),
        Fail("PodNameTaken", "a pod named t-1 exists and belongs to another owner; delete or rename it"),
    ),
    "somebody else's at first": (
        began(pod_uid=None, start_time=at(NOW - 59)),
        pod(owner_uid="x"),
        Wait("PodNameTaken", "waiting for the deletion of another pod named t-1", 2),
    ),
    "somebody else's at first, again": (
        began(pod_uid=None, attempts=[LOST[0].model_copy(update={"end_time": at(NOW - 59)})]),
        pod(owner_uid="x"),
        Wait("PodNameTaken", "waiting for the deletion of another pod named t-1", 2),
    ),
    "somebody else's, going": (
        began(pod_uid=None),
        pod(owner_uid="x", deleting=True),
        Wait("PodNameTaken", "waiting for the deletion of another pod named t-1", 2),
    ),
    # infrastructure failures
    "preempted": (IN_STEP, pod(disruption="PreemptionByScheduler", message="by q"), FailAttempt("PreemptionByScheduler", "by q")),
    "disrupted without a word": (
        IN_STEP,
        pod(disruption="DeletionByTaintManager"),
        FailAttempt("DeletionByTaintManager", "pod t-1 was disrupted: DeletionByTaintManager"),
    ),
    "evicted for the node's sake": (
        IN_STEP,
        ended(137, "Error", reason="Evicted", message=LOW_NODE),
        FailAttempt("Evicted", LOW_NODE),
    ),
    "evicted for the node's sake, by condition": (
        IN_STEP,
        ended(137, "Error", reason="Evicted", message=FULL_DISK, disruption="TerminationByKubelet"),
        FailAttempt("TerminationByKubelet", FULL_DISK),
    ),
    "node shut down": (
        IN_STEP,
        ended(None, "", reason="NodeShutdown"),
        FailAttempt("NodeShutdown", "pod t-1 failed: NodeShutdown"),
    ),
    "container lost with its node": (
        IN_STEP,
        ended(255, "Unknown"),
        FailAttempt("ContainerEnded", "the trial's container ended with status 255 (Unknown)"),
    ),
    "refused by the kubelet": (
        began(),
        starting(phase="Failed", terminated=True, reason="OutOfcpu", message="Node didn't have enough resource: cpu"),
        FailAttempt("OutOfcpu", "Node didn't have enough resource: cpu"),
    ),
    "killed from outside": (
        IN_STEP,
        ended(137, "Error"),
        FailAttempt("ContainerEnded", "the trial's container ended with status 137 (Error)"),
    ),
    "ended before the first step": (
        began(),
        ended(128, "StartError", exit_message="exec: no such file"),
        FailAttempt(
            "ContainerEnded",
            "the trial's container ended with status 128 (StartError): exec: no such file before the first step",
        ),
    ),
    "the runner could not be brought": (
        began(),
        ended(137, "OOMKilled", init_failed=True),
        FailAttempt("RunnerInstallFailed", "the init container of pod t-1 ended with status 137 (OOMKilled)"),
    ),
    "started again": (
        IN_STEP,
        pod(terminated=True, restarted=True, exit_code=255, exit_reason="Unknown"),
        FailAttempt("ContainerRestarted", "the trial's container ended with status 255 (Unknown)"),
    ),
    "in another container": (
        began(container_id="c"),
        pod(container_id="d"),
        FailAttempt("ContainerRestarted", "pod t-1 runs container d, not c"),
    ),
    "started again after its own doing": (
        IN_STEP,
        pod(terminated=True, restarted=True, exit_code=143, exit_reason="Error"),
        PhaseDied(
            "ContainerKilledError",
            "the trial's container ended with status 143 (Error): a process in it stopped process 1",
        ),
    ),
    "out of memory before the first step": (
        began(),
        ended(137, "OOMKilled", memory_limit="64Mi"),
        Fail(
            "OutOfMemory",
            "the trial's container ended with status 137 (OOMKilled): it used more than its memory limit of 64Mi "
            "(before the first step)",
            "OutOfMemoryError",
        ),
    ),
    # failures that a phase causes itself
    "out of memory": (
        IN_STEP,
        ended(137, "OOMKilled"),
        PhaseDied(
            "OutOfMemoryError", "the trial's container ended with status 137 (OOMKilled): it used more than its memory limit"
        ),
    ),
    "out of memory in a phase that is known, with a limit that is known": (
        began(current_step="a", steps=[StepStatus(name="a", phase="Agent")]),
        ended(137, "OOMKilled", memory_limit="64Mi"),
        PhaseDied(
            "OutOfMemoryError",
            "the trial's container ended with status 137 (OOMKilled): "
            "it used more than its memory limit of 64Mi (phase agent of step a)",
        ),
    ),
    "killed from inside": (
        IN_STEP,
        ended(143, ""),
        PhaseDied(
            "ContainerKilledError",
            "the trial's container ended with status 143 (no reason given): a process in it stopped process 1",
        ),
    ),
    "filled its disk": (IN_STEP, ended(137, "Error", reason="Evicted", message=FULL_DISK), PhaseDied("OutOfDiskError", FULL_DISK)),
    "filled its disk, as a container": (
        IN_STEP,
        pod(reason="Evicted", message='Container main exceeded its local ephemeral storage limit "1Gi". '),
        PhaseDied("OutOfDiskError", 'Container main exceeded its local ephemeral storage limit "1Gi". '),
    ),
    "filled its disk before the first step": (
        began(),
        ended(137, "Error", reason="Evicted", message=FULL_DISK),
        Fail("OutOfDisk", f"{FULL_DISK} (before the first step)", "OutOfDiskError"),
    ),
    "filled its node's disk": (
        IN_STEP,
        ended(137, "Error", reason="Evicted", disruption="TerminationByKubelet", message=FILLED_NODE),
        PhaseDied("OutOfDiskError", FILLED_NODE),
    ),
    # queued or gated
    "queued": (
        began(),
        gated(queue="team"),
        Wait("QueuedByKueue", "pod t-1 waits in the queue team until Kueue admits it", gated=True),
    ),
    "gated back by Kueue without a queue": (
        began(),
        gated(queue=""),
        Wait(
            "QueuedByKueue",
            "pod t-1 is gated by Kueue but names no queue; give the trial the label kueue.x-k8s.io/queue-name",
            gated=True,
        ),
    ),
    "gated back by somebody": (
        began(),
        gated(gates=("a.example/x", "b")),
        Wait("SchedulingGated", "pod t-1 waits for the removal of its scheduling gates: a.example/x, b", gated=True),
    ),
    "queued, and suspended": (began(SUSPEND, conditions=QUEUED), gated(queue="team"), RELEASED),
    "queued, and deleted": (began(conditions=QUEUED), gated(deleting=True, queue="team"), GONE),
    "admitted": (began(conditions=QUEUED), starting(scheduled_at=None), Wait("PodStarting", ON_ITS_WAY, 30.0)),
    "evicted by Kueue": (
        IN_STEP,
        pod(queue="team", disruption="EvictedByKueue", message="WorkloadEvictedDueToPreempted: for others"),
        FailAttempt("EvictedByKueue", "WorkloadEvictedDueToPreempted: for others"),
    ),
    # starting
    "no such image": (
        began(),
        starting(waiting_reason="ErrImagePull", waiting_message="x: not found"),
        Fail("ImageNotFound", "x: not found; check the image's name", "EnvironmentStartError"),
    ),
    "no access to the image": (
        began(),
        starting(waiting_reason="ImagePullBackOff", waiting_message="Insufficient_Scope"),
        Fail("ImageAccessDenied", "Insufficient_Scope; check the image's name and its credentials", "EnvironmentStartError"),
    ),
    "no access to an image that need not be there": (
        began(),
        starting(waiting_reason="ErrImagePull", waiting_message=HUB_DENIES),
        Fail("ImageAccessDenied", f"{HUB_DENIES}; check the image's name and its credentials", "EnvironmentStartError"),
    ),
    "the registry is away": (
        began(),
        starting(waiting_reason="ErrImagePull", waiting_message="i/o timeout"),
        Wait("ErrImagePull", "i/o timeout", 30),
    ),
    "an impossible image": (
        began(),
        starting(waiting_reason="InvalidImageName"),
        Fail("InvalidImageName", "pod t-1: InvalidImageName", "EnvironmentStartError"),
    ),
    "too slow": (
        began(),
        starting(scheduled_at=NOW - 60),
        Fail("EnvironmentStartTimeout", TOO_SLOW, "EnvironmentStartTimeoutError"),
    ),
    "too slow, with a reason": (
        began(),
        starting(scheduled_at=NOW - 60, waiting_reason="ErrImagePull", waiting_message="i/o timeout"),
        Fail("EnvironmentStartTimeout", f"{TOO_SLOW}; last: ErrImagePull i/o timeout", "EnvironmentStartTimeoutError"),
    ),
    "not run while containerd restarts": (
        began(),
        starting(waiting_reason="RunContainerError", waiting_message="connection refused"),
        Wait("RunContainerError", "connection refused", 30),
    ),
    "unschedulable for long": (
        began(),
        starting(scheduled_at=None, unschedulable="0/1 nodes are available"),
        Wait("Unschedulable", "0/1 nodes are available", 30),
    ),
    "not seen by the scheduler": (began(), starting(scheduled_at=None), Wait("PodStarting", ON_ITS_WAY, 30)),
    "making the container": (began(), starting(waiting_reason="ContainerCreating"), Wait("PodStarting", ON_ITS_WAY, 30)),
    "nearly too slow": (began(), starting(scheduled_at=NOW - 50), Wait("PodStarting", ON_ITS_WAY, 10)),
    "running": (began(), pod(), Drive()),
    "running and slow once": (began(), pod(scheduled_at=START - 9999), Drive()),
    # the deadline
    "before the deadline": (began(WITH_DEADLINE, start_time=at(NOW - 99)), pod(), Drive()),
    "at the deadline": (began(WITH_DEADLINE), pod(), DEADLINE),
    "at the deadline, without a pod": (began(WITH_DEADLINE, pod_uid=None), None, DEADLINE),
    "past the deadline, but for a suspension": (began(WITH_DEADLINE, suspended_seconds=1), pod(), Drive()),
    "past the deadline, but for the time in a queue": (began(WITH_DEADLINE, conditions=QUEUED), pod(), Drive()),
    "past the deadline, suspended": (in_step({**WITH_DEADLINE, **SUSPEND}, conditions=PAUSED), pod(), Suspend()),
    "a deadline before the start": (trial(WITH_DEADLINE), None, StartAttempt(1, "t-1")),
    # finished trials
    "complete": (finished(), pod(), CleanUp(0.0, None)),
    "complete, pod gone": (finished(), None, CleanUp(None, None)),
    "complete, pod going": (finished(), pod(deleting=True), CleanUp(None, None)),
    "complete, another's pod": (finished(), pod(owner_uid="x"), CleanUp(None, None)),
    "complete after the deadline": (finished(WITH_DEADLINE), None, CleanUp(None, None)),
    "pod kept a while": (finished({"podTTLSecondsAfterFinished": 30}), pod(), CleanUp(20.0, None)),
    "pod kept long enough": (finished({"podTTLSecondsAfterFinished": 5}), pod(), CleanUp(0.0, None)),
    "trial kept a while": (finished({"ttlSecondsAfterFinished": 30}), None, CleanUp(None, 20.0)),
    "trial kept long enough": (finished({"ttlSecondsAfterFinished": 0}), pod(), CleanUp(0.0, 0.0)),
    "pod kept for ever": (finished({"podCleanup": "Never"}), pod(), CleanUp(None, None)),
    "queued pod kept for ever": (finished({"podCleanup": "Never"}), pod(queue="team"), CleanUp(0.0, None)),
    "queued pod kept a while": (
        finished({"podCleanup": "OnSuccess", "podTTLSecondsAfterFinished": 30}, "Failed"),
        pod(queue="team"),
        CleanUp(20.0, None),
    ),
    "pod kept on failure: success": (finished({"podCleanup": "OnSuccess"}), pod(), CleanUp(0.0, None)),
    "pod kept on failure: Failed": (finished({"podCleanup": "OnSuccess"}, "Failed"), pod(), CleanUp(None, None)),
    "pod of a trial that was stopped": (finished({"podCleanup": "Never"}, "Failed", reason="Stopped"), pod(), CleanUp(0.0, None)),
    "pod of a trial that was too slow": (
        finished({"podCleanup": "OnSuccess", "podTTLSecondsAfterFinished": 60}, "Failed", reason="DeadlineExceeded"),
        pod(),
        CleanUp(0.0, None),
    ),
    "pod kept on failure: exception": (
        finished({"podCleanup": "OnSuccess"}, exception=TrialException(type="X")),
        pod(),
        CleanUp(None, None),
    ),
    "pod kept on failure: a step's exception": (
        finished({"podCleanup": "OnSuccess"}, steps=[StepStatus(name="a", exception=StepException(type="X"))]),
        pod(),
        CleanUp(None, None),
    ),
    "finished without a time": (finished({"ttlSecondsAfterFinished": 5}, completion_time=None), pod(), CleanUp(None, None)),
}


OF_A = "the verifier of step a: "
NO_POD: PodFacts | None = None
VERIFIERS: dict[str, Row] = {
    "named": (judging(None), NO_POD, CreateVerifierPod()),
    "made": (judging(None), judge(), AdoptVerifierPod()),
    "running": (judging(), judge(), Drive()),
    "starting": (
        judging(),
        judge(running=False, scheduled_at=NOW - 10),
        Wait("PodStarting", "attempt 1: waiting for pod t-1-v0", 30),
    ),
    "too slow": (
        judging(),
        judge(running=False, scheduled_at=NOW - 60),
        Fail("EnvironmentStartTimeout", OF_A + TOO_SLOW.replace("t-1", "t-1-v0"), "EnvironmentStartTimeoutError"),
    ),
    "gone": (judging(), NO_POD, FailAttempt("PodDeleted", f"{OF_A}pod t-1-v0 was deleted by another client")),
    "another's": (
        judging(),
        judge(owner_uid="x"),
        Fail("PodNameTaken", f"{OF_A}a pod named t-1-v0 exists and belongs to another owner; delete or rename it"),
    ),
    "evicted": (judging(), judge(reason="Evicted", message=LOW_NODE), FailAttempt("Evicted", OF_A + LOW_NODE)),
    "disk filled": (judging(), judge(reason="Evicted", message=FULL_DISK), PhaseDied("OutOfDiskError", OF_A + FULL_DISK)),
    "the runner could not be brought": (
        judging(),
        judge(running=False, terminated=True, exit_code=1, exit_reason="Error", init_failed=True),
        FailAttempt("RunnerInstallFailed", f"{OF_A}the init container of pod t-1-v0 ended with status 1 (Error)"),
    ),
    "complete": (finished(verifier=VerifierStatus(pod_name="t-1-v0")), judge(), CleanUp(0.0, None)),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_what_is_decided_of_a_verifiers_pod(name: str) -> None:
    """Decide about a verifier's pod while the agent's pod runs."""
    situation, facts, wanted = VERIFIERS[name]
    agents = NO_POD if name == "complete" else pod()
    decision = after(situation, agents, verifier=facts)
    assert decision == _near(decision, wanted)


def test_the_agents_pod_matters_more_than_the_verifiers() -> None:
    assert after(judging(), None, verifier=None) == GONE


@pytest.mark.parametrize("name", ROWS)
def test_what_is_decided(name: str) -> None:
    situation, facts, wanted = ROWS[name]
    decision = after(situation, facts)
    assert decision == _near(decision, wanted)


def _near(decision: Decision, wanted: Decision) -> Decision:
    """Return the wanted decision with the actual wait, compared approximately: a status has whole seconds."""
    if isinstance(decision, Wait) and isinstance(wanted, Wait) and decision.seconds is not None and wanted.seconds is not None:
        assert decision.seconds == pytest.approx(wanted.seconds, abs=1e-3)
        return replace(wanted, seconds=decision.seconds)
    return wanted


def test_every_decision_and_every_rule_is_in_the_table() -> None:
    assert {type(wanted) for _, _, wanted in (*ROWS.values(), *VERIFIERS.values())} == set(get_args(Decision))
    deciding = set()
    for situation, facts, _ in ROWS.values():
        here = Situation(situation, facts, "t-1", NOW, 60.0)
        deciding.add(next((rule for rule in lifecycle.RULES if rule(here) is not None), None))
    assert deciding == {None, *lifecycle.RULES} - set(lifecycle.RULES[-2:])  # the last two have tests below


@pytest.mark.parametrize("rule", lifecycle.RULES[:-2], ids=lambda rule: rule.__name__)
def test_a_rule_can_be_asked_about_any_situation(rule: Rule) -> None:
    answers = [rule(Situation(situation, facts, "t-1", NOW, 60.0)) for situation, facts, _ in ROWS.values()]
    assert None in answers and any(answers)


FORBIDDEN = Wait("PodForbidden", "a policy", 10.0)


def refused_before(reason: str) -> MultiStepTrial:
    output = Condition(type="Reconciling", status="True", last_transition_time=at(START), reason=reason)
    return trial(conditions=[output])


@pytest.mark.parametrize(
    ("before", "refused", "since", "gives_up"),
    [
        ("PodForbidden", FORBIDDEN, NOW - 60, True),
        ("PodForbidden", FORBIDDEN, None, True),
        ("PodForbidden", FORBIDDEN, NOW - 59, False),
        ("QuotaExceeded", FORBIDDEN, NOW - 9999, False),
        ("QuotaExceeded", Wait("QuotaExceeded", "full", 10.0), NOW - 9999, False),
    ],
)
def test_what_is_forbidden_is_given_up_after_a_while_but_a_quota_is_waited_for(
    before: str, refused: Wait, since: float | None, gives_up: bool
) -> None:
    decision = lifecycle.not_allowed(refused_before(before), refused, None if since is None else at(since), NOW)
    assert decision == (Fail("PodForbidden", "a policy") if gives_up else refused)


def test_waiting_for_a_slow_start_never_becomes_a_busy_loop() -> None:
    decision = after(began(), starting(scheduled_at=NOW - 59.9))
    assert isinstance(decision, Wait) and decision.seconds == 1.0


def test_a_start_without_a_limit_waits_for_ever() -> None:
    assert after(began(), starting(scheduled_at=0.0), start_timeout=float("inf")) == Wait("PodStarting", ON_ITS_WAY, 30.0)


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1), (2, 2), (3, 4), (7, 60), (100, 60)])
def test_attempts_wait_longer_each_time(attempts: int, seconds: float) -> None:
    lost = [AttemptStatus(number=number, reason="x", end_time=at(NOW)) for number in range(1, attempts + 1)]
    decision = after(began(**AGAIN, attempts=lost), None)
    assert isinstance(decision, Wait) and decision.seconds == seconds


@pytest.mark.parametrize(
    ("due", "wanted"),
    [
        (CleanUp(None, None), None),
        (CleanUp(0.0, None), None),
        (CleanUp(5.0, None), 5.0),
        (CleanUp(0.0, 7.0), 7.0),
        (CleanUp(5.0, 7.0), 5.0),
        (CleanUp(9.0, 7.0), 7.0),
    ],
)
def test_clean_up_is_requeued_when_the_next_deletion_is_due(due: CleanUp, wanted: float | None) -> None:
    assert due.next == wanted


@pytest.mark.parametrize(
    ("situation", "wanted"),
    [
        (began(), None),
        (trial(WITH_DEADLINE), None),
        (began(WITH_DEADLINE, start_time=at(NOW - 30)), 70.0),
        (began(WITH_DEADLINE, start_time=at(NOW - 300)), 0.0),
        (began(WITH_DEADLINE, start_time=at(NOW - 300), suspended_seconds=250), 50.0),
        (began({**WITH_DEADLINE, **SUSPEND}, start_time=at(NOW - 30), conditions=PAUSED), None),
        (began(WITH_DEADLINE, start_time=at(NOW - 30), conditions=QUEUED), None),
    ],
)
def test_the_next_deadline(situation: MultiStepTrial, wanted: float | None) -> None:
    assert next_deadline(situation, NOW) == wanted


TIMES = st.none() | st.floats(0, 2 * START)
DATES = st.none() | st.integers(0, 2 * int(START)).map(float).map(at)
REASONS = st.sampled_from(["", "Evicted", "OOMKilled", "ErrImagePull", "InvalidImageName"])
WORDS = st.sampled_from(["", "not found", FULL_DISK])
PODS = st.builds(
    PodFacts,
    name=st.just("t-1"),
    uid=st.sampled_from("pq"),
    owner_uid=st.sampled_from(["t", "", "x"]),
    attempt=st.integers(0, 3),
    as_root=st.booleans(),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    created_at=st.floats(0, 2 * START),
    scheduled_at=TIMES,
    unschedulable=WORDS,
    gates=st.sampled_from([(), ("a",), ("a", "b")]),
    queue=st.sampled_from([None, "", "team"]),
    deleting=st.booleans(),
    disruption=REASONS,
    reason=REASONS,
    message=WORDS,
    waiting_reason=REASONS,
    waiting_message=WORDS,
    running=st.booleans(),
    ready=st.booleans(),
    terminated=st.booleans(),
    exit_code=st.none() | st.integers(0, 255),
    exit_reason=REASONS,
)
CONDITIONS = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(["Complete", "Failed", "Ready", "Suspended"]),
        status=st.sampled_from(["True", "False", "Unknown"]),
        last_transition_time=st.just(at(NOW)),
        reason=st.sampled_from(["x", "QueuedByKueue"]),
    ),
    max_size=2,
)
STATUSES = st.builds(
    TrialStatus,
    conditions=CONDITIONS,
    attempt=st.none() | st.integers(1, 3),
    pod_name=st.just("t-1"),
    pod_uid=st.sampled_from([None, "p"]),
    start_time=DATES,
    completion_time=DATES,
    current_step=st.sampled_from([None, "a"]),
    attempts=st.lists(st.builds(AttemptStatus, number=st.integers(1, 3), end_time=DATES), max_size=3),
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.booleans(),
        "suspendPolicy": st.sampled_from(["Pause", "ReleaseAfterStep", "Release"]),
        "stop": st.booleans(),
        "activeDeadlineSeconds": st.integers(1, 1000),
        "podCleanup": st.sampled_from(["Always", "OnSuccess", "Never"]),
        "podTTLSecondsAfterFinished": st.integers(0, 1000),
        "ttlSecondsAfterFinished": st.integers(0, 1000),
    },
)


@given(SPECS, STATUSES, st.none() | PODS, st.floats(0, 2 * START), st.floats(0, 1000) | st.just(float("inf")))
def test_decide_is_total(
    spec: Mapping[str, Any], status: TrialStatus, facts: PodFacts | None, now: float, start_timeout: float
) -> None:
    situation = Situation(trial(spec).model_copy(update={"status": status}), facts, "t-1", now, start_timeout)
    decision = decide(situation)
    assert isinstance(decision, get_args(Decision))
    assert decide(situation) == decision
    if isinstance(decision, Wait) and decision.seconds is not None:
        assert decision.seconds > 0
    if isinstance(decision, Fail | FailAttempt):
        assert decision.reason and " " not in decision.reason and decision.message
    if isinstance(decision, Drive):
        assert facts is not None and facts.running and facts.owner_uid == "t" and facts.uid == status.pod_uid
    if isinstance(decision, PhaseDied):
        assert status.current_step is not None


@pytest.mark.parametrize(
    ("times", "seconds", "ends"), [(1, 1000, False), (4, 1000, False), (5, 59, False), (5, 60, True), (50, 1000, True)]
)
def test_a_runner_that_makes_no_sense_for_good_ends_the_trial_without_a_reward(times: int, seconds: float, ends: bool) -> None:
    output = None
    for _ in range(times):
        output = ProtocolViolation.after(output, "gibberish", NOW - seconds)
    decision = decide(Situation(began(), pod(), "t-1", NOW, 60.0, violation=output))
    if not ends:
        assert decision == Drive()
    else:
        assert isinstance(decision, Fail)
        assert decision.reason == "RunnerBroken"
        assert "gibberish" in decision.message and str(times) in decision.message


def test_a_pod_that_is_lost_fails_its_attempt_whatever_its_runner_reports() -> None:
    output = ProtocolViolation("gibberish", NOW - 1000, times=50)
    decision = decide(Situation(began(), pod(disruption="EvictionByEvictionAPI"), "t-1", NOW, 60.0, violation=output))
    assert isinstance(decision, FailAttempt)


@pytest.mark.parametrize(
    ("changes", "still"),
    [
        ({}, False),
        ({"waiting_reason": "ContainerCreating"}, False),
        ({"unschedulable": "0/1 nodes are available"}, True),
        ({"waiting_reason": "ImagePullBackOff"}, True),
    ],
)
def test_a_pod_stands_still_when_it_waits_for_more_than_its_node(changes: dict[str, str], still: bool) -> None:
    assert pod_start.is_stuck(starting(**changes)) is still


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"waiting_reason": "PodInitializing"}, True),
        ({"waiting_reason": "ImagePullBackOff"}, False),
        ({"unschedulable": "0/1 nodes are available"}, False),
        ({"gates": ("kueue.x-k8s.io/admission",)}, False),
        ({"running": True}, False),
        ({"terminated": True}, False),
        ({"deleting": True}, False),
        ({"phase": "Failed"}, False),
    ],
)
def test_a_pod_is_on_its_way_while_there_is_nothing_to_decide_about_it(changes: dict[str, Any], waits: bool) -> None:
    assert pod_start.is_starting(starting(**changes)) is waits


@pytest.mark.parametrize(("times", "seconds", "ends"), [(4, 1000, False), (5, 89, False), (5, 90, True)])
def test_exec_sessions_that_the_container_kills_end_the_trial_after_90_seconds(times: int, seconds: float, ends: bool) -> None:
    output = ProtocolViolation("exit code 137", NOW - seconds, times=times, reason="ExecSessionsKilled")
    decision = decide(Situation(began(), pod(), "t-1", NOW, 60.0, violation=output))
    assert (decision != Drive()) is ends
    if ends:
        message = "a process in the container killed the exec session 5 times in a row; last: exit code 137"
        assert decision == Fail("ExecSessionsKilled", message)


def test_contradictory_records_end_the_trial_as_tampered() -> None:
    output = ProtocolViolation("no records", NOW - 60, times=5, reason="Tampered")
    decision = decide(Situation(began(container_id="c"), pod(container_id="c"), "t-1", NOW, 60.0, violation=output))
    assert decision == Fail("Tampered", "the runner's records contradicted the status 5 times in a row; last: no records")


def test_another_container_in_the_pod_is_a_restart_whatever_its_runner_reports() -> None:
    output = ProtocolViolation("no records", NOW - 1000, times=50, reason="Tampered")
    decision = decide(Situation(began(container_id="c"), pod(container_id="d"), "t-1", NOW, 60.0, violation=output))
    assert decision == FailAttempt("ContainerRestarted", "pod t-1 runs container d, not c")


@pytest.mark.parametrize(("known", "seen"), [(None, "d"), ("c", ""), ("c", "c")])
def test_a_container_that_is_not_known_to_be_another_is_the_same(known: str | None, seen: str) -> None:
    assert decide(Situation(began(container_id=known), pod(container_id=seen), "t-1", NOW, 60.0)) == Drive()


@pytest.mark.parametrize(
    ("agents", "verifiers", "charged"),
    [({"terminated": True, "exit_code": 2}, {}, "agent"), ({}, {"terminated": True, "exit_code": 2}, None)],
)
def test_the_end_of_the_agents_container_while_another_pod_verifies_is_charged_to_the_agent(
    agents: dict[str, Any], verifiers: dict[str, Any], charged: str | None
) -> None:
    verified = began(current_step="a", container_id="c", verifier=VerifierStatus(pod_name="t-1-v0", pod_uid="v"))
    verifier = pod(name="t-1-v0", uid="v", container_id="d", **verifiers)
    decision = decide(Situation(verified, pod(container_id="c", **agents), "t-1", NOW, 60.0, verifier=verifier))
    assert isinstance(decision, PhaseDied) and decision.phase == charged
