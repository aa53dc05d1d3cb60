"""The tables of every way in which a trial or a step can fail, with failure class, retry and remedy.

docs/reference/failures.md shows these tables and the table of waiting_reasons. engine.score.failure_class reads them for
status.failure and metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from multistep.api.trial.status import FailureClass

PROVIDER_FAILED: Final = "ProviderFailed"
MODEL_ACCESS_DENIED: Final = "ModelAccessDenied"
MODEL_NOT_COUNTED: Final = "ModelNotCounted"
MODEL_GATEWAY_DOWN: Final = "ModelGatewayDown"
AGENT_NOT_STARTED: Final = "AgentNotStarted"
NO_SUCH_USER: Final = "NoSuchUser"
AGENT_SETUP_FAILED: Final = "AgentSetupFailed"
RESTORE_FAILED: Final = "RestoreFailed"
SOURCE_CHECKPOINT_MISSING: Final = "SourceCheckpointMissing"
SOURCE_UNUSABLE: Final = "SourceUnusable"
REFERENCE_FAILED: Final = "ReferenceFailed"
REFERENCE_LOST: Final = "ReferenceLost"
VERIFIER_ENVIRONMENT_FAILED: Final = "VerifierEnvironmentFailed"
BUDGET_USED_BY_LOST_ATTEMPTS: Final = "BudgetUsedByLostAttempts"
REGRADE_IMPOSSIBLE: Final = "RegradeImpossible"
REGRADE_INCOMPLETE: Final = "RegradeIncomplete"
SERVICE_FAILED: Final = "ServiceFailed"
SERVICE_KILLED: Final = "ServiceKilled"
RECONCILE_FAILED: Final = "ReconcileFailed"
ACCESS_DENIED: Final = "AccessDenied"
RESULT_UNKNOWN: Final = "ResultUnknown"
POD_UNRESPONSIVE: Final = "PodUnresponsive"
SESSIONS_BROKEN: Final = "SessionsBroken"
MADE_ROOM: Final = "MadeRoom"
RETRIED_BY_SPEC: Final = "RetriedBySpec"


@dataclass(frozen=True)
class Failure:
    """A failure reason."""

    reason: str
    failure_class: FailureClass | None
    """None means the class of the phase that failed."""
    what: str
    """Cause, for the docs."""
    do: str
    """Remedy, for the docs."""


_RETRIED = "nothing, unless it recurs"

ATTEMPTS = (
    Failure("Suspended", "User", "the trial was suspended with a policy that releases its pod; no retry is used", "nothing"),
    Failure(
        "SweepBudgetSpent",
        "User",
        "the sweep's budget had no room for a model request of a step; no retry is used, and the sweep is suspended",
        "raise the sweep's budget ([sweeps](sweeps.md#budget))",
    ),
    Failure(
        RETRIED_BY_SPEC,
        "Agent",
        "each exception of the attempt's steps is of a type for which `spec.scoring.overrideErrorPolicy` has `retry: true`; the "
        "next attempt starts at step 1. If no retry is left, the trial is Complete with its result",
        "read the message, which has the first exception",
    ),
    Failure(
        MADE_ROOM,
        "Infrastructure",
        "the pods of separate verifiers of several trials of a namespace fitted no node for 300 s, as the pods of their agents "
        "occupied it; the trial that had waited least released its pod, at most three times. No retry is used. "
        "No trial gives way to one of another namespace",
        "run fewer trials at a time, or give them nodes with room for a verifier beside the agents' pods",
    ),
    Failure("PodDeleted", "Infrastructure", "a user or another controller deleted the pod", "check its namespace's audit log"),
    Failure(
        "PodReplaced",
        "Infrastructure",
        "the pod was deleted and another one with its name created (different UID)",
        "do not create or delete pods of trials",
    ),
    Failure("EvictionByEvictionAPI", "Infrastructure", "the pod was evicted through the API, e.g. by a node drain", _RETRIED),
    Failure(
        "PreemptionByScheduler",
        "Infrastructure",
        "a pod with a higher priority preempted the pod",
        "give trials a priorityClassName in `spec.environment.podTemplate`",
    ),
    Failure(
        "EvictedByKueue",
        "Infrastructure",
        "Kueue evicted the pod; the message has the reason, e.g. preemption. The next attempt is queued again",
        "raise `spec.infrastructureRetries`, or the queue's or the trial's priority ([queueing](../how-to/queueing.md))",
    ),
    Failure("DeletionByTaintManager", "Infrastructure", "the node was lost or tainted NoExecute", "check the node"),
    Failure("DeletionByPodGC", "Infrastructure", "the pod's node no longer exists", "check the node"),
    Failure(
        "TerminationByKubelet",
        "Infrastructure",
        "the kubelet ended the pod because the node ran low on memory or disk, or shut down",
        "check the node; give tasks requests (`environment.memory_mb`, `environment.storage_mb`)",
    ),
    Failure("Evicted", "Infrastructure", "the same, if only the pod's status.reason reports it", "check the node"),
    Failure("Terminated", "Infrastructure", "the node was shut down", _RETRIED),
    Failure("NodeShutdown", "Infrastructure", "the node is shutting down and rejected the pod", _RETRIED),
    Failure("NodeLost", "Infrastructure", "the node does not answer", "check the node"),
    Failure("NodeAffinity", "Infrastructure", "the node no longer matched the pod's selectors and rejected it", _RETRIED),
    Failure("OutOfcpu", "Infrastructure", "the node had no capacity left and rejected the pod", _RETRIED),
    Failure("OutOfmemory", "Infrastructure", "the same", _RETRIED),
    Failure("OutOfephemeral-storage", "Infrastructure", "the same", _RETRIED),
    Failure("OutOfpods", "Infrastructure", "the same", _RETRIED),
    Failure("UnexpectedAdmissionError", "Infrastructure", "the node rejected the pod: a device is missing", "check the node"),
    Failure("Preempting", "Infrastructure", "the kubelet preempted the pod for a critical pod", _RETRIED),
    Failure(
        RESTORE_FAILED,
        "Infrastructure",
        "the checkpoint from which the attempt continued could not be restored, or the attempt failed with the restored files "
        "before its own first step (if the agent's setup failed: twice); no retry is used. The next attempt continues after "
        "an earlier step, or starts at step 1 after two such failures",
        "read the message",
    ),
    Failure(
        VERIFIER_ENVIRONMENT_FAILED,
        "Infrastructure",
        "the agent's files could not be stored for the verifier's pod, or restored in it, for a reason that no agent causes: "
        "the pod has another image because a tag was moved, a stored file or verdict was lost or changed, or it took "
        "[too long](../how-to/checkpoints.md#limits)",
        "read the message; name the image by its digest",
    ),
    Failure(
        "RunnerInstallFailed",
        "Infrastructure",
        "an init container failed: the one that installs the runner, or one of the pod template",
        "read the message; check the operator's image and the pod template",
    ),
    Failure(
        "ContainerEnded",
        "Infrastructure",
        "the container was killed from outside (status 137 without OOMKilled, or 255), could not be started by the node, or ended "
        "before the first step started",
        "read the message; check the node",
    ),
    Failure(
        SERVICE_KILLED,
        "Infrastructure",
        "a service of the task's compose file was killed from outside (status 137 without OOMKilled, or 255) before an agent ran, "
        "or in the pod of a verifier; the message names it",
        "check the node",
    ),
    Failure(
        "AgentHostEnded",
        "Infrastructure",
        "the agent host's container was killed from outside (status 137 without OOMKilled, or 255), or ended before the first step "
        "and before the setup of a custom agent class",
        "check the node",
    ),
    Failure(
        "EgressEnded",
        "Infrastructure",
        "the [egress sidecar](../how-to/egress.md) of a pod was ended by a signal (status above 128, without OOMKilled), which no "
        "process of the pod can send to it, or "
        "ended before the first step and before the setup of a custom agent class: what ran meanwhile had no network",
        "check the node",
    ),
    Failure(
        "PodUnknown",
        "Infrastructure",
        "for 300 s, the pod's node answered that it does not know the pod, for example because the API server's store was restored "
        "from an older copy, which has pods that ended since",
        _RETRIED,
    ),
    Failure(
        SESSIONS_BROKEN,
        "Infrastructure",
        "for an hour, all exec sessions with the running pod broke, at least five in a row, while some with pods on other nodes "
        "worked, and those with the node's other pods broke, too, or there are none; or for four hours, while none worked, or "
        "after the runner answered. If it recurs on another node without such pods, it is the agent's doing (PodUnresponsive)",
        _RETRIED,
    ),
    Failure(
        "EgressRefused",
        "Infrastructure",
        "the egress sidecar refused to switch the network five times in a row, for at least 60 s (InvalidSpec if it rejects the "
        "task's `allowed_hosts`)",
        "read the message; check the node's kernel and the operator's image",
    ),
    Failure(
        AGENT_SETUP_FAILED,
        "Infrastructure",
        "the setup of an agent of Harbor failed or reached its timeout, for example because a program could not be downloaded",
        "read the message; use an image that holds the agent's program (`spec.agent.preinstalled`)",
    ),
    Failure(
        PROVIDER_FAILED,
        "Provider",
        "the model gateway saw the provider end a step's last request with an error, cut it off, or refuse it for minutes",
        "nothing, unless it recurs; check the provider's status page and the key's rate limits",
    ),
    Failure(
        MODEL_GATEWAY_DOWN,
        "Infrastructure",
        "while the agent ran, the model gateway was down, was stopping, could not write its ledger, lost it, or did not accept the "
        "key that signed the step's token: a request may have failed, however the agent ended; the message has the cause",
        "check the gateway's pod and volume: `kubectl -n multistep-system get pods,pvc`",
    ),
    Failure(
        "ContainerRestarted",
        "Infrastructure",
        "the kubelet runs another container in the same pod (restart count or container ID); files of the former one are lost",
        "check the node",
    ),
)  # fmt: skip
"""Reasons why an attempt ended early. If the trial has retries left, a new attempt starts from a checkpoint or at step 1."""

FAILED = (
    Failure("InvalidSpec", "Task", "the task, the spec or the resulting pod is invalid; the message names the field", "correct it"),
    Failure(
        "TaskNotFound",
        "Task",
        "the task does not exist, or the revision that the trial started with no longer exists",
        "check `spec.task`; retain revisions until their trials are finished",
    ),
    Failure(
        "TaskAccessDenied",
        "Task",
        "the registry, repository or server denies access to the task; some also report this for tasks that do not exist",
        "check `spec.task` and the Secret that its `secretRef` names",
    ),
    Failure(
        "TaskDigestMismatch",
        "Task",
        "the fetched content does not match the digest, or differs from the content at the trial's start",
        "check the digest and whether the file was changed",
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
        "the operator's settings do not allow the source: its kind, host or IP address",
        "use another source, or change taskSources, taskAllowedHosts or taskBlockedNetworks",
    ),
    Failure(
        "ImageNotFound",
        "Task",
        "the image does not exist in the registry",
        "check `spec.environment.image` or the task's `environment.docker_image`",
    ),
    Failure(
        "ImageAccessDenied",
        "Task",
        "the registry denies access to the image; some also report this for images that do not exist",
        "check the name; put imagePullSecrets into `spec.environment.podTemplate` or the namespace's default ServiceAccount",
    ),
    Failure(
        "ImageBuildFailed",
        "Task",
        "the cluster could not build the image of a Dockerfile; the message has the last lines of the build's log",
        "correct the Dockerfile; `multistep logs --build TRIAL` has the whole log ([builds](../how-to/builds.md))",
    ),
    Failure(
        "ImageBuildLimit",
        "Task",
        "the build of an image took longer, or used more memory or disk, than the chart's values builds allow",
        "make the image smaller, or raise builds.timeoutSeconds, builds.resources or builds.storage",
    ),
    Failure(
        "ImageBuildLost",
        "Infrastructure",
        "more pods of one build than the chart's value builds.retries were lost in a row, as many pulls of its base images "
        "failed, or as many nodes had no space left",
        "read the message; check the nodes, and the registries of the base images ([builds](../how-to/builds.md#base-images))",
    ),
    Failure("InvalidImageName", "Task", "the image's name is invalid", "correct it"),
    Failure(
        "ErrImageNeverPull", "Task", "the image is not on the node, and `spec.environment.imagePullPolicy` is Never", "load it"
    ),
    Failure(
        "EnvironmentStartTimeout",
        "Infrastructure",
        "the scheduled pod did not start in time, e.g. slow registry, missing volume or Secret; the message has the last reason",
        "fix the cause or raise `environment.build_timeout_sec`",
    ),
    Failure(
        "EnvironmentFailed",
        "Task",
        "the environment's healthcheck failed, or files could not be uploaded (class Agent after an agent has run)",
        "read the message",
    ),
    Failure(
        SERVICE_FAILED,
        "Task",
        "a service of the task's compose file ended, ran out of memory or did not become healthy before the first step, or the "
        "files of its image could not be copied to its volumes; the message names it",
        "read its output: `multistep logs TRIAL --service NAME`",
    ),
    Failure(
        "RunnerBroken",
        "Agent",
        "the runner violated its protocol five times in a row, for at least 60 s; it is broken, or an agent with root replaced it "
        "(class Task if no agent has run before)",
        "read the message; run the agent as a user other than root",
    ),
    Failure(
        "Tampered",
        "Agent",
        "the runner's records contradicted the status or were missing, five times in a row for at least 60 s, while the kubelet "
        "reported the same container: a process in it impersonates the runner",
        "read the message; run the agent as a user other than root",
    ),
    Failure(
        "ExecSessionsKilled",
        "Agent",
        "something in the container killed the operator's exec sessions, or deleted the working directory in which they start, "
        "five times in a row for at least 90 s; the kubelet reported this while the container ran (class Task if no "
        "agent has run before)",
        "read the message; run the agent as a user other than root",
    ),
    Failure(
        POD_UNRESPONSIVE,
        "Agent",
        "at least five exec sessions with its running pod broke in a row for an hour, or for 90 s after the trial's deadline, "
        "before the runner answered; and five of them, over 90 s, after one with another pod of the node worked, or again in an "
        "attempt on another node (class Task if no agent has run before)",
        "read the message; run the agent as a user other than root, and limit its processes (`podPidsLimit`) and CPU",
    ),
    Failure("OutOfMemory", "Task", "the container ran out of memory before the first step", "raise `environment.memory_mb`"),
    Failure("OutOfDisk", "Task", "the container filled its disk before the first step", "raise `environment.storage_mb`"),
    Failure(
        "PodForbidden",
        "Infrastructure",
        "the API server rejected the pod for 60 s; the message names the policy",
        "change the policy, or the rejected field in the task or `spec.environment.podTemplate`",
    ),
    Failure("PodNameTaken", "Infrastructure", "a pod of that name belongs to another owner", "delete or rename it"),
    Failure(
        MODEL_ACCESS_DENIED,
        "Configuration",
        "the provider rejects the key, does not know the model, or the account has no credit; or the key is another provider's",
        "check `spec.agent.model` and the Secret that the message names",
    ),
    Failure(
        MODEL_NOT_COUNTED,
        "Configuration",
        "a service of the task's compose file has a model provider's key, so its requests would count for no role of the trial; "
        "the message names the service and the variable",
        "let [`spec.models.user`](../how-to/simulated-users.md) play a user, or name another server in the service's environment",
    ),
    Failure(
        AGENT_NOT_STARTED,
        "Configuration",
        "the agent could not start in the trial's first step: its program does not exist or cannot be executed (also exit status "
        "126 or 127 of one of Harbor's agents before its first model request), the agent host lacks the class in "
        "`spec.agent.importPath`, or the agent lacks an option, a model or a key that it needs",
        "read the message; check `spec.agent` and the image that holds the program",
    ),
    Failure(
        NO_SUCH_USER,
        "Task",
        "the image lacks a user that the task names (`agent.user`, `verifier.user` or `verifier.collect.user` of any step), or "
        "`spec.agent.user`; found before the first step, for a verifier's own image before its tests",
        "create the user in the Dockerfile, or name another one",
    ),
    Failure(
        BUDGET_USED_BY_LOST_ATTEMPTS,
        "Infrastructure",
        "the trial's budget (`spec.agent.limits`) had no room for a model request, for which it would have had room without the "
        "requests of attempts that were lost",
        "raise the budget, or store [checkpoints](../how-to/checkpoints.md), and create a new trial",
    ),
    Failure(
        SOURCE_CHECKPOINT_MISSING,
        "Configuration",
        "the trial in `spec.from` does not exist, or has no checkpoint after the step and never will",
        "run it with `spec.checkpoints: {policy: AfterStep, keep: WithResults}` ([start from a step](../how-to/branching.md))",
    ),
    Failure(
        SOURCE_UNUSABLE,
        "Configuration",
        "the checkpoint that the trial starts from is of other steps, of another image or of a step that no step follows, lacks "
        "processes, or twice failed to be restored; the trial's own agent changed none of its files",
        "read the message; use the source's task, and name images by their digests",
    ),
    Failure(
        REFERENCE_FAILED,
        "Task",
        "the task's own solutions do not lead to the step in `spec.fromStep`: one is missing, or a step failed",
        "read the status of the reference trial that the message names; correct the task",
    ),
    Failure(
        REFERENCE_LOST,
        "Infrastructure",
        "the reference trial was stopped or lost before it reached the step",
        "delete the reference trial that the message names, and create a new trial",
    ),
    Failure(
        REGRADE_IMPOSSIBLE,
        "Configuration",
        "the trial that is to be regraded does not exist, is Failed, or lacks a checkpoint; the message names it. A source that is "
        "scored although it failed keeps its class and score",
        "run sources with `spec.checkpoints: {policy: AfterStep, keep: WithResults}`",
    ),
    Failure(
        REGRADE_INCOMPLETE,
        "Configuration",
        "the tests let the regrade continue after the step with which its source ended, so later steps have no files to verify; "
        "or they end it before the step at which its source started",
        "compare the steps' rewards in the status; a new trial can run the later steps",
    ),
    Failure(
        ACCESS_DENIED,
        "Configuration",
        "the API server denied the operator a request that the trial needs, for 300 s and at least five times in a row; the "
        "message names the object, e.g. a Secret of a variable while the chart's `rbac` values grant no Secrets",
        "grant the right (the chart's `rbac` values), or do without the object",
    ),
    Failure(
        RECONCILE_FAILED,
        "Infrastructure",
        "an error that the operator does not expect, for 300 s and at least five times in a row",
        "read the message; report it with the operator's log",
    ),
    Failure(
        RESULT_UNKNOWN,
        "Infrastructure",
        "the trial passed its deadline in a step, and its pod could not be read afterwards, though the agent may have finished in "
        "time: the pod was lost, the API server or the model gateway did not answer, the task could not be loaded for 300 s, or "
        "the trial's shard was changed",
        "read the message; create a new trial",
    ),
    Failure("Stopped", "User", "`spec.stop` is true", "nothing; a stopped trial cannot be resumed, so create another"),
    Failure("DeadlineExceeded", "User", "`spec.activeDeadlineSeconds` has passed", "raise it if it is too low for the task"),
)  # fmt: skip
"""Reasons of the condition Failed that are never retried. Reasons in ATTEMPTS become reasons of Failed when no retry is left."""


_LIMITS = "raise the timeout if it is too low for the task"

EXCEPTIONS = (
    Failure("RuntimeError", None, "setup.sh failed, or files could not be uploaded", "read the message, which has its output"),
    Failure("HealthcheckError", "Task", "a healthcheck failed", "read the message, which has its output"),
    Failure("FileNotFoundError", "Task", "the step has no instruction, or no solution for the oracle", "add it"),
    Failure("ValueError", "Task", "a variable of the verifier is not set", "set it in `spec.variables`"),
    Failure("AgentTimeoutError", None, "the agent reached its timeout", _LIMITS),
    Failure(
        "NonZeroAgentExitCodeError",
        None,
        "the agent's command failed; agents of Harbor also have its subclasses, such as `ApiRateLimitError`",
        "read its output in the results",
    ),
    Failure("AgentSetupTimeoutError", "Agent", "the setup of a custom agent class reached its timeout", _LIMITS),
    Failure("BudgetExceededError", "Agent", "the agent's model requests reached a limit of tokens or cost", "raise the limit"),
    Failure("AgentHostError", "Agent", "the agent's class ended the agent host, or returned no valid outcome", "read the message"),
    Failure(
        "EgressError",
        None,
        "the pod's [egress sidecar](../how-to/egress.md) ended by itself, not by a signal: processes of the phase can cause this",
        "read the message",
    ),
    Failure("VerifierTimeoutError", None, "test.sh reached its timeout", _LIMITS),
    Failure(
        "JudgeFailedError",
        "Verifier",
        "requests of the [judge](../how-to/judges.md) got no answer in each run of the verification, while the provider answered "
        "the operator's own, or the tests left them; the verdict was not taken",
        "read the message; raise the timeout of the tests' requests; `multistep regrade`",
    ),
    Failure(
        "JudgeBudgetExceededError",
        "Verifier",
        "`spec.models.judge.limits` had no room for a request of the judge; the verdict was not taken",
        "raise the limit; `multistep regrade`",
    ),
    Failure("RewardFileNotFoundError", None, "test.sh wrote no reward", "read its output in the message and in the results"),
    Failure("RewardFileEmptyError", None, "test.sh wrote an empty reward file", "the same"),
    Failure("VerifierOutputParseError", None, "the reward file cannot be parsed", "the same"),
    Failure("ValidationError", None, "reward.json is not an object of numbers", "the same"),
    Failure("AddTestsDirError", None, "tests/ could not be uploaded", "read the message"),
    Failure("OverflowError", "Verifier", "the mean of the rewards is not finite", "check the steps' rewards"),
    Failure(
        "OutOfMemoryError",
        None,
        "the container ran out of memory, or the node did while the container used at least 1 GiB more than it requested",
        "raise `environment.memory_mb` if it is too low for the task",
    ),
    Failure(
        "OutOfDiskError",
        None,
        "the container exceeded its disk limit, or filled the node's disk with at least 1 GiB more than it requested",
        "raise `environment.storage_mb` if it is too low for the task",
    ),
    Failure(
        "ServiceEndedError",
        None,
        "a service of the task's compose file ended; after an agent ran, its class is Agent, as agents can reach every service",
        "read its output: `multistep logs TRIAL --service NAME`",
    ),
    Failure("ContainerKilledError", None, "something in the container stopped its process 1", "read the phase's output"),
)  # fmt: skip
"""Types of exceptions that end a step or a single-step trial. The trial is Complete with the rewards of the steps that ran."""
