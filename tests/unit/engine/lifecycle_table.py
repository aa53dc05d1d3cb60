"""Expected decisions about a trial, by situation. A row has the trial, its pod and the decision."""

from __future__ import annotations

from multistep.api.trial.status import (
    AttemptStatus,
    ExceptionStatus,
    StepStatus,
    TrialException,
)
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import (
    Adopt,
    CleanUp,
    CreatePod,
    Decision,
    Drive,
    Fail,
    FailAttempt,
    PhaseDied,
    PodFacts,
    Resume,
    StartAttempt,
    Suspend,
    Wait,
)
from tests.unit.engine.egress_table import EGRESS
from tests.unit.engine.host_table import HOSTS
from tests.unit.engine.init_table import INITS
from tests.unit.engine.lifecycle_cases import (
    AGAIN,
    DEADLINE,
    FILLED_NODE,
    FULL_DISK,
    GONE,
    HUB_DENIES,
    IN_STEP,
    LOST,
    LOW_NODE,
    NOW,
    ON_ITS_WAY,
    PAUSED,
    PRESTART,
    QUEUED,
    RELEASE,
    RELEASE_AFTER_STEP,
    RELEASED,
    START,
    STOPPED,
    SUSPEND,
    TOO_SLOW,
    WITH_DEADLINE,
    at,
    began,
    ended,
    finished,
    gated,
    in_step,
    pod,
    starting,
    trial,
)
from tests.unit.engine.restore_table import RESTORES
from tests.unit.engine.service_table import SERVICES

Row = tuple[MultiStepTrial, PodFacts | None, Decision]

ROWS: dict[str, Row] = {
    **(EGRESS | HOSTS | INITS),
    **RESTORES,
    **SERVICES,
    # trials that have not started yet
    "new": (trial(), None, StartAttempt(1, "t-1")),
    # suspended trials
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
    # prestarted trials: they are suspended, but the operator creates and prepares their pod before they are resumed
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
    # trials that a user stopped
    "stopped": (in_step({"stop": True}), pod(), STOPPED),
    "stopped before it began": (trial({"stop": True}), None, STOPPED),
    "stopped while suspended": (in_step({**SUSPEND, "stop": True}, conditions=PAUSED), pod(), STOPPED),
    "stopped when it was over": (finished({"stop": True}), None, CleanUp(None, None)),
    # creation of the pod
    "begun": (began(pod_uid=None), None, CreatePod()),
    "begun again at once": (began(**AGAIN, attempts=LOST), None, Wait("BackingOff", "attempt 1 failed: Evicted", 0.6)),
    "begun again": (began(**AGAIN, attempts=[LOST[0].model_copy(update={"completion_time": at(NOW - 1)})]), None, CreatePod()),
    "third attempt at once": (
        began(**AGAIN, attempts=[LOST[0], LOST[0].model_copy(update={"number": 2})]),
        None,
        Wait("BackingOff", "attempt 2 failed: Evicted", 1.6),
    ),
    "out of the sweep's budget": (
        began(**AGAIN, attempts=[AttemptStatus(number=1, reason="SweepBudgetSpent", completion_time=at(NOW - 0.4))]),
        None,
        Wait("BackingOff", "attempt 1 failed: SweepBudgetSpent", 29.6),
    ),
    "lost without a time": (began(**AGAIN, attempts=[AttemptStatus(number=1)]), None, CreatePod()),
    "made before a crash": (began(pod_uid=None), pod(), Adopt()),
    "made before a crash and being deleted": (
        began(pod_uid=None),
        pod(deleting=True, created_at=NOW - 59),
        Wait("PodNameTaken", "waiting for the deletion of another pod named t-1", seconds=2),
    ),
    "made before a crash, and its deletion does not end": (
        began(pod_uid=None),
        pod(deleting=True, created_at=NOW - 60),
        Adopt(),
    ),
    "made before a crash, and its node is lost": (
        began(pod_uid=None),
        pod(deleting=True, created_at=NOW - 59, disruption="DeletionByTaintManager"),
        Adopt(),
    ),
    "deleted": (began(), None, GONE),
    "replaced": (
        began(),
        pod(uid="other"),
        FailAttempt("PodReplaced", "pod t-1 with UID p was deleted by another client, and another pod of that name was created"),
    ),
    "being deleted": (began(), pod(deleting=True), GONE),
    "another owner's": (
        began(pod_uid=None, start_time=at(NOW - 60)),
        pod(owner_uid="x"),
        Fail("PodNameTaken", "a pod named t-1 exists and belongs to another owner; delete or rename it"),
    ),
    "another owner's at first": (
        began(pod_uid=None, start_time=at(NOW - 59)),
        pod(owner_uid="x"),
        Wait("PodNameTaken", "waiting for the deletion of another pod named t-1", 2),
    ),
    "another owner's at first, again": (
        began(pod_uid=None, attempts=[LOST[0].model_copy(update={"completion_time": at(NOW - 59)})]),
        pod(owner_uid="x"),
        Wait("PodNameTaken", "waiting for the deletion of another pod named t-1", 2),
    ),
    "another owner's, being deleted": (
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
    # pods that are queued or have scheduling gates
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
    "gated again by another client": (
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
    # pods that are starting
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
    "its image is not on the node and must not be pulled": (
        began(),
        starting(waiting_reason="ErrImageNeverPull", waiting_message="service db: not present"),
        Fail(
            "ErrImageNeverPull",
            "service db: not present; load the image into the cluster's nodes, "
            "or set spec.environment.imagePullPolicy to IfNotPresent",
            "EnvironmentStartError",
        ),
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
    # the trial's deadline
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
        finished({"podCleanup": "OnSuccess"}, steps=[StepStatus(name="a", exception=ExceptionStatus(type="X"))]),
        pod(),
        CleanUp(None, None),
    ),
    "finished without a time": (finished({"ttlSecondsAfterFinished": 5}, completion_time=None), pod(), CleanUp(None, None)),
}
