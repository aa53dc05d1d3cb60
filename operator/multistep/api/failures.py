"""Every way a trial can fail to give its reward: whose doing it is, whether it is tried again, what to do about it.

These tables are what docs/failures.md shows; engine.failures reads them for `status.failure` and for metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

from .trial_status import FailureClass


@dataclass(frozen=True)
class Failure:
    """A row. blame: whose doing; None: that of the phase it happened in. what, do: for people."""

    reason: str
    blame: FailureClass | None
    what: str
    do: str


@dataclass(frozen=True)
class Waiting:
    """A row about a trial that waits. what, ends: for people; ends: what makes it go on, or give up."""

    reason: str
    what: str
    ends: str


NO_HURRY = "for as long as it takes; `spec.activeDeadlineSeconds` bounds it"
START_LIMIT = "`environment.build_timeout_sec` after the pod got its node, with EnvironmentStartTimeout"
_RETRIED = "nothing, unless it comes again and again"

WAITING = (
    Waiting("Suspended", "`spec.suspend` is true, and nothing has begun", "when it is set to false"),
    Waiting(
        "Suspending", "`spec.suspend` is true, and the step that runs is waited for", "at that step's end, with Paused or Released"
    ),
    Waiting("Paused", "suspended between steps, with its pod", "when `spec.suspend` is set to false: the next step begins"),
    Waiting("Released", "suspended without a pod", "when `spec.suspend` is set to false: it begins anew at step 1"),
    Waiting(
        "QueuedByKueue",
        "the pod waits in a queue of Kueue's; the message names it",
        "when Kueue admits the pod ([queueing](queueing.md)); `spec.activeDeadlineSeconds` does not run meanwhile",
    ),
    Waiting("SchedulingGated", "somebody else holds the pod back by a scheduling gate; the message names it", "the same way"),
    Waiting("Queued", "many pods are starting; trials take turns", "when fewer do; the chart's setting startingPods is the bound"),
    Waiting(
        "TaskUnavailable",
        "a ConfigMap or Secret that the trial names is not there yet, or its task's registry, repository or server does not answer",
        f"when it does: it is tried again after 5 s, 10 s, ... at most 300 s; {NO_HURRY}",
    ),
    Waiting(
        "TaskFetching", "the task is being fetched or read, or is queued for it", "within the operator's setting taskFetchSeconds"
    ),
    Waiting(
        "TaskAccessDenied",
        "the trial has begun, and its task can be fetched no more: its Secret does not fit",
        f"when it does; {NO_HURRY}",
    ),
    Waiting("ResultsNotWritable", "the operator's volume takes no files; nothing is lost or run twice", "when there is room again"),
    Waiting(
        "RunnerProtocol",
        "the operator and the runner in the pod are of releases too far apart; nothing is lost",
        "when an operator of a release in between runs; `spec.activeDeadlineSeconds` bounds it",
    ),
    Waiting(
        "ShardChanged",
        "the trial's label multistep.dev/shard was changed after another operator had begun it",
        "when it is set back, or when the pod was deleted",
    ),
    Waiting("QuotaExceeded", "the namespace's ResourceQuota has no room for the pod", f"when it has; {NO_HURRY}"),
    Waiting(
        "PodForbidden", "the API server does not allow the pod: an admission policy, a LimitRange", "after 60 s, with PodForbidden"
    ),
    Waiting("PodNameTaken", "a pod of that name is there and is not the trial's", "after 60 s, with PodNameTaken"),
    Waiting("NetworkPolicyTaken", "a NetworkPolicy of the pod's name is there and is not the trial's", NO_HURRY),
    Waiting("BackingOff", "an attempt was lost; the next begins soon", "after 1 s, 2 s, 4 s, ... at most 60 s"),
    Waiting("Unschedulable", "no node takes the pod; the message is the scheduler's, with the reason for each node", NO_HURRY),
    Waiting("PodStarting", "the pod has been asked for, and nothing is known to be wrong", START_LIMIT),
    Waiting("ErrImagePull", "the image could not be pulled just now: its registry is away or slow", START_LIMIT),
    Waiting("ImagePullBackOff", "the same, between two tries", START_LIMIT),
    Waiting("CreateContainerConfigError", "something that the pod template names is not there", START_LIMIT),
    Waiting("CreateContainerError", "the container could not be made just now", START_LIMIT),
    Waiting("RunContainerError", "the container could not be started just now", START_LIMIT),
)
"""Reasons of conditions of a trial that waits. A kubelet may have others for a container; they are shown as they are."""


LOST = (
    Failure("Suspended", "User", "the trial was suspended with a policy that releases its pod; this counts as no retry", "nothing"),
    Failure("PodDeleted", "Infrastructure", "somebody deleted the pod", "find out who: its namespace's audit log"),
    Failure(
        "PodReplaced", "Infrastructure", "somebody deleted the pod and made another of its name (another UID)", "leave pods alone"
    ),
    Failure("EvictionByEvictionAPI", "Infrastructure", "the pod was evicted through the API, as by a node's drain", _RETRIED),
    Failure(
        "PreemptionByScheduler",
        "Infrastructure",
        "a pod of a higher priority took the room",
        "give trials a priorityClassName in `spec.environment.podTemplate`",
    ),
    Failure(
        "EvictedByKueue",
        "Infrastructure",
        "Kueue took the pod away; the message has its reason: preempted, say. The next attempt waits in the queue again",
        "raise `spec.infrastructureRetries`, or the queue's or the trial's priority ([queueing](queueing.md))",
    ),
    Failure("DeletionByTaintManager", "Infrastructure", "the node was lost or tainted NoExecute", "look at the node"),
    Failure("DeletionByPodGC", "Infrastructure", "the pod's node is gone", "look at the node"),
    Failure(
        "TerminationByKubelet",
        "Infrastructure",
        "the kubelet ended the pod for its node's sake: short of memory or disk, or shutting down",
        "look at the node; give tasks requests (`environment.memory_mb`, `environment.storage_mb`)",
    ),
    Failure("Evicted", "Infrastructure", "the same, told by the pod's own reason only", "look at the node"),
    Failure("Terminated", "Infrastructure", "the node was shut down", _RETRIED),
    Failure("NodeShutdown", "Infrastructure", "the node is being shut down and refused the pod", _RETRIED),
    Failure("NodeLost", "Infrastructure", "the node does not answer", "look at the node"),
    Failure("NodeAffinity", "Infrastructure", "the node did not fit the pod's selectors any more and refused it", _RETRIED),
    Failure("OutOfcpu", "Infrastructure", "the node had no room after all and refused the pod", _RETRIED),
    Failure("OutOfmemory", "Infrastructure", "the same", _RETRIED),
    Failure("OutOfephemeral-storage", "Infrastructure", "the same", _RETRIED),
    Failure("OutOfpods", "Infrastructure", "the same", _RETRIED),
    Failure("UnexpectedAdmissionError", "Infrastructure", "the node refused the pod: a device is not there", "look at the node"),
    Failure("Preempting", "Infrastructure", "the node needed the room for a critical pod", _RETRIED),
    Failure(
        "RunnerInstallFailed",
        "Infrastructure",
        "the init container that brings the runner failed",
        "read the message; look at the operator's image and at the pod template",
    ),
    Failure(
        "ContainerEnded",
        "Infrastructure",
        "the container was killed from outside (status 137 without OOMKilled, or 255), or ended before the first step began",
        "read the message; look at the node",
    ),
    Failure(
        "ContainerRestarted",
        "Infrastructure",
        "the kubelet runs another container in the same pod (restart count or container ID): all that was in it is gone",
        "look at the node",
    ),
)  # fmt: skip
"""Outside causes, which take a pod: the trial begins anew at step 1, until its retries are used up."""

FAILED = (
    Failure("InvalidSpec", "Task", "task or spec cannot be run, or can be no pod; the message names the field", "correct it"),
    Failure(
        "TaskNotFound",
        "Task",
        "there is no such task; or a branch or tag moved on, and what the trial began with is gone",
        "check `spec.task`; keep what trials refer to until they are over",
    ),
    Failure(
        "TaskAccessDenied",
        "Task",
        "the registry, repository or server does not give the task with these credentials; some say so of what does not exist",
        "check `spec.task` and the Secret that its `secretRef` names",
    ),
    Failure(
        "TaskDigestMismatch",
        "Task",
        "what came is not what its digest says, or not what it was when the trial began",
        "check the digest; find out who changed the file",
    ),
    Failure(
        "TaskTooLarge",
        "Task",
        "the task has more than 64 MiB packed, 256 MiB unpacked, 50,000 files, 1,000 steps or 256 KiB of task.toml",
        "make it smaller",
    ),
    Failure(
        "TaskSourceNotAllowed",
        "User",
        "the operator's settings do not allow the source: its kind, its host, or the address that it has",
        "use another, or change taskSources, taskAllowedHosts or taskBlockedNetworks",
    ),
    Failure(
        "ImageNotFound",
        "Task",
        "the registry has no such image",
        "check `spec.environment.image` or the task's `environment.docker_image`",
    ),
    Failure(
        "ImageAccessDenied",
        "Task",
        "the registry does not give the image without (other) credentials; some say so of images that do not exist",
        "check the name; put imagePullSecrets into `spec.environment.podTemplate` or the namespace's default ServiceAccount",
    ),
    Failure("InvalidImageName", "Task", "the image's name cannot be one", "correct it"),
    Failure(
        "ErrImageNeverPull", "Task", "the image is not on the node, and `spec.environment.imagePullPolicy` is Never", "load it"
    ),
    Failure(
        "EnvironmentStartTimeout",
        "Infrastructure",
        "the pod did not run in time on its node: a slow registry, a missing volume or Secret; the message has the last reason",
        "see to the cause, or raise `environment.build_timeout_sec`",
    ),
    Failure(
        "EnvironmentFailed",
        "Task",
        "the environment's healthcheck failed, or files could not be put into it (Agent, once an agent has run)",
        "read the message",
    ),
    Failure(
        "RunnerBroken",
        "Agent",
        "what answers in the pod is no runner of ours: it made no sense five times in a minute; an agent with root can do that",
        "read the message; run the agent as another user than root",
    ),
    Failure(
        "Tampered",
        "Agent",
        "the runner's records lacked or contradicted what the status has, five times in a minute, while the kubelet reported the "
        "same container: something in it answers for the runner",
        "read the message; run the agent as another user than root",
    ),
    Failure(
        "ExecSessionsKilled",
        "Agent",
        "something in the container killed the operator's exec sessions, or deleted the working directory in which they start, "
        "five times in 90 s, as the kubelet reported while the container ran",
        "read the message; run the agent as another user than root",
    ),
    Failure("OutOfMemory", "Task", "the container ran out of memory before the first step", "raise `environment.memory_mb`"),
    Failure("OutOfDisk", "Task", "the container filled its disk before the first step", "raise `environment.storage_mb`"),
    Failure(
        "PodForbidden",
        "Infrastructure",
        "the API server did not allow the pod for 60 s; the message names the policy",
        "change the policy, or what it objects to in the task or `spec.environment.podTemplate`",
    ),
    Failure("PodNameTaken", "Infrastructure", "a pod of that name is not the trial's and does not go", "delete or rename it"),
    Failure("Stopped", "User", "`spec.stop` is true", "nothing: a trial that was stopped stays so; make another"),
    Failure("DeadlineExceeded", "User", "`spec.activeDeadlineSeconds` has passed", "raise it, if that was too little"),
)  # fmt: skip
"""Reasons of the condition Failed that are never tried again. (Those of LOST are reasons of Failed, too, when no retry is left.)"""

_LIMITS = "raise the limit, if it is too low for the task"

EXCEPTIONS = (
    Failure("RuntimeError", None, "setup.sh failed, or files could not be put in place", "read the message, which has its output"),
    Failure("HealthcheckError", "Task", "a healthcheck failed", "read the message, which has its output"),
    Failure("FileNotFoundError", "Task", "the step has no instruction, or no solution for the oracle", "add it"),
    Failure("ValueError", "Task", "a variable of the verifier is not given", "give it in `spec.variables`"),
    Failure("AgentTimeoutError", None, "the agent reached its limit", _LIMITS),
    Failure("NonZeroAgentExitCodeError", None, "the agent's command failed", "read its output in the results"),
    Failure("VerifierTimeoutError", None, "test.sh reached its limit", _LIMITS),
    Failure("RewardFileNotFoundError", None, "test.sh wrote no reward", "read its output in the message and in the results"),
    Failure("RewardFileEmptyError", None, "test.sh wrote an empty reward file", "the same"),
    Failure("VerifierOutputParseError", None, "the reward cannot be read", "the same"),
    Failure("ValidationError", None, "the reward is not a number by key", "the same"),
    Failure("AddTestsDirError", None, "tests/ could not be put in place", "read the message"),
    Failure("OverflowError", "Verifier", "the mean of the rewards is no finite number", "look at the steps' rewards"),
    Failure(
        "OutOfMemoryError",
        None,
        "the container ran out of memory, or its node did by the container's use of 1 GiB more than it had requested",
        "raise `environment.memory_mb`, if it is too little for the task",
    ),
    Failure(
        "OutOfDiskError",
        None,
        "the container filled its disk, or its node's by the container's use of 1 GiB more than it had requested",
        "raise `environment.storage_mb`, if it is too little for the task",
    ),
    Failure("ContainerKilledError", None, "something in the container stopped its process 1", "read the phase's output"),
)  # fmt: skip
"""Types of exceptions that end a step, or a trial of a single step: the trial is Complete, with what it has."""
