"""The table of every reason why a trial waits, and when the wait ends. docs/reference/failures.md shows the table."""

from __future__ import annotations

from dataclasses import dataclass

from multistep.api.trial.failure_table import ACCESS_DENIED, RECONCILE_FAILED


@dataclass(frozen=True)
class Waiting:
    """A reason why a trial waits."""

    reason: str
    what: str
    """Cause of the wait, for the docs."""
    ends: str
    """When the trial continues or fails, for the docs."""


GATEWAY_UNAVAILABLE = "GatewayUnavailable"
CONNECTION_LOST = "ConnectionLost"
JUDGE_UNANSWERED = "JudgeUnanswered"
NO_TIMEOUT = "no timeout of its own; `spec.activeDeadlineSeconds` applies"
START_TIMEOUT = "fails with EnvironmentStartTimeout `environment.build_timeout_sec` after the pod is scheduled"

WAITING = (
    Waiting("Suspended", "`spec.suspend` is true, and the trial has not started", "when `spec.suspend` is set to false"),
    Waiting(
        "Suspending", "`spec.suspend` is true, and a step is still running", "when that step finishes: Paused or Released follows"
    ),
    Waiting("Paused", "suspended between steps; the pod is retained", "when `spec.suspend` is set to false: the next step starts"),
    Waiting(
        "Released",
        "suspended without a pod",
        "when `spec.suspend` is set to false: the trial continues from its last checkpoint, or restarts at step 1",
    ),
    Waiting(
        JUDGE_UNANSWERED,
        "a request of the [judge](../how-to/judges.md) got no answer, so the verdict was not taken; the message has the cause",
        "after 10 s, doubled with each repetition up to 120 s: the verification is repeated",
    ),
    Waiting(
        "QueuedByKueue",
        "the pod is queued by Kueue; the message names the queue",
        "when Kueue admits it ([queueing](../how-to/queueing.md)); the time does not count toward `spec.activeDeadlineSeconds`",
    ),
    Waiting(
        "SchedulingGated",
        "the pod has a scheduling gate of another controller; the message names it",
        "when that controller removes the gate; the time does not count toward `spec.activeDeadlineSeconds`",
    ),
    Waiting(
        "Queued",
        "the limit of pods that start at the same time is reached",
        "when other pods have started; the chart's setting startingPods is the limit",
    ),
    Waiting(
        "QueuedForModel",
        "the limit of active trials with this model is reached; the trial has no pod",
        "when a trial of the model finishes, in turn with other sweeps; the chart's setting models has the limit. "
        "The time does not count toward `spec.activeDeadlineSeconds`",
    ),
    Waiting(
        "WaitsForVerifiers",
        "the trial released its pod (MadeRoom), and verifiers' pods of other trials still fit no node",
        "when they do, checked every 10 s, and after 600 s. The time does not count toward `spec.activeDeadlineSeconds`",
    ),
    Waiting(
        "TaskUnavailable",
        "a ConfigMap or Secret that the trial names is missing, or the task's registry, repository or server does not answer",
        f"when it is available; retried after 5 s, 10 s, ... at most 300 s; {NO_TIMEOUT}",
    ),
    Waiting(
        "TaskFetching", "the task is being fetched or read, or is queued for that", "within the operator's setting taskFetchSeconds"
    ),
    Waiting(
        "TaskAccessDenied",
        "the trial has started, but the credentials in its Secret no longer give access to the task",
        f"when the Secret has valid credentials; {NO_TIMEOUT}",
    ),
    Waiting(
        "ImageBuilding",
        "an image of the task is being built in the cluster, or is queued for that; the message has the build's current step",
        f"when the image is in the registry; fails with ImageBuildFailed or ImageBuildLimit; {NO_TIMEOUT}",
    ),
    Waiting(
        "ImageBuildRetrying",
        "a failure that the task did not cause delays the build of an image: the registry does not answer, or the "
        "builder's pod was lost or cannot start",
        f"when the cause is gone; fails with ImageBuildLost after several lost pods; {NO_TIMEOUT}",
    ),
    Waiting(
        "ResultsNotWritable",
        "writes to the operator's results volume fail, or the namespace's results limit leaves no room for what a verifier needs; "
        "no result is lost, and nothing runs twice",
        "when the volume is writable and has free space. The time does not count toward `spec.activeDeadlineSeconds`",
    ),
    Waiting(
        "RunnerProtocol",
        "the operator and the runner in the pod have no protocol version in common; no result is lost",
        f"when an operator of a release between the two is installed; {NO_TIMEOUT}",
    ),
    Waiting(
        "ShardChanged",
        "the trial's label multistep.dev/shard was changed after another shard's operator started it",
        "when the label is restored or the pod is deleted",
    ),
    Waiting("QuotaExceeded", "the namespace's ResourceQuota rejects the pod", f"when the quota allows it; {NO_TIMEOUT}"),
    Waiting(
        "PodForbidden",
        "the API server rejects the pod, e.g. by an admission policy or a LimitRange",
        "fails with PodForbidden after 60 s",
    ),
    Waiting("PodNameTaken", "a pod of that name exists and does not belong to the trial", "fails with PodNameTaken after 60 s"),
    Waiting(
        "NetworkPolicyTaken",
        "a NetworkPolicy of the pod's name exists and does not belong to the trial",
        f"when it is deleted; {NO_TIMEOUT}",
    ),
    Waiting(
        GATEWAY_UNAVAILABLE,
        "the model gateway does not answer; the operator must read the usage of a step from it, or register a key with it",
        f"when the gateway answers; retried every 10 s; {NO_TIMEOUT}",
    ),
    Waiting(
        "SourceNotReady",
        "the trial that this one starts from (`spec.from`, `spec.fromStep`) has not finished the step",
        "when it has, checked every 2 to 30 s; fails if it never will. The time does not count toward `spec.activeDeadlineSeconds`",
    ),
    Waiting(
        "SourceActive",
        "the trial or sweep that is to be regraded is not finished, or does not exist yet",
        "when it is; checked every 10 s. One that does not exist yet must be created within 30 s after the regrade",
    ),
    Waiting(
        CONNECTION_LOST,
        "for 30 s or longer, the API server does not answer or no exec session with the pod succeeds; the message has the error",
        f"when the connection works; retried after 0.5 s, 1 s, ... at most 60 s; the attempt ends with PodUnknown if the node does "
        f"not know the pod for 300 s, and after an hour in which sessions with other pods work; else {NO_TIMEOUT}",
    ),
    Waiting(
        ACCESS_DENIED,
        "the API server denies the operator a request that the trial needs; the message names the object",
        "when the right is granted; retried after 0.5 s, 1 s, ... at most 60 s; fails with AccessDenied after 300 s",
    ),
    Waiting(
        RECONCILE_FAILED,
        "an error that the operator does not expect, or objects that changed at each try for 30 s; the message has it",
        "when the error is gone; retried after 0.5 s, 1 s, ... at most 60 s; fails with ReconcileFailed after 300 s",
    ),
    Waiting("BackingOff", "an attempt failed; the next one starts after a back-off", "after 1 s, 2 s, 4 s, ... at most 60 s"),
    Waiting(
        "Unschedulable",
        "the pod fits no node; the message is the scheduler's, with the reason per node",
        f"when a node fits; {NO_TIMEOUT}",
    ),
    Waiting("PodStarting", "the pod is created and starting; no error is known", START_TIMEOUT),
    Waiting("ErrImagePull", "the image pull failed; the kubelet retries", START_TIMEOUT),
    Waiting("ImagePullBackOff", "the image pull failed; the kubelet waits before the next retry", START_TIMEOUT),
    Waiting("CreateContainerConfigError", "something that the pod template names is missing, e.g. a Secret", START_TIMEOUT),
    Waiting("CreateContainerError", "the container could not be created; the kubelet retries", START_TIMEOUT),
    Waiting("RunContainerError", "the container could not be started; the kubelet retries", START_TIMEOUT),
)
"""Condition reasons of a waiting trial. Other waiting reasons that a kubelet reports for a container are shown unchanged."""
