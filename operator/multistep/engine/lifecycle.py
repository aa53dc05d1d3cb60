"""What to do about a trial and its pod: rules in order, each a fact about the situation and what follows from it.

Pure: the clock and everything seen come in. What happens inside the pod is the script's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from ..api.trial import MultiStepTrial


@dataclass(frozen=True)
class PodFacts:
    """What the API server says of a trial's pod. Times: seconds since the epoch."""

    name: str
    uid: str
    owner_uid: str
    attempt: int
    as_root: bool
    phase: str
    created_at: float
    scheduled_at: float | None = None
    unschedulable: str = ""  # why it has no node yet
    node: str = ""
    deleting: bool = False
    disruption: str = ""  # reason of the DisruptionTarget condition
    reason: str = ""  # the pod's own, e.g. Evicted
    message: str = ""
    waiting_reason: str = ""  # of a container that does not run yet
    waiting_message: str = ""
    running: bool = False
    ready: bool = False
    terminated: bool = False
    init_failed: bool = False  # what brings the runner ended badly, so that nothing else began
    exit_code: int | None = None
    exit_reason: str = ""


@dataclass(frozen=True)
class Situation:
    """All that a decision rests on. start_timeout: seconds from a pod's scheduling to its running.

    verifier: the pod that status.verifier names, where the current step is verified apart from the agent.
    """

    trial: MultiStepTrial
    pod: PodFacts | None
    pod_name: str
    now: float
    start_timeout: float
    verifier: PodFacts | None = None


@dataclass(frozen=True)
class Begin:
    """Write down the attempt and the pod's name, before the pod is made."""

    attempt: int
    pod_name: str


@dataclass(frozen=True)
class CreatePod:
    """Make the attempt's pod."""


@dataclass(frozen=True)
class Adopt:
    """Write down the pod's UID."""


@dataclass(frozen=True)
class CreateVerifierPod:
    """Make the pod that status.verifier names."""


@dataclass(frozen=True)
class AdoptVerifierPod:
    """Write down that pod's UID."""


@dataclass(frozen=True)
class Drive:
    """Go on with the script in the pod."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do until something changes, or seconds have passed. reason, message: for people."""

    reason: str
    message: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class LoseAttempt:
    """An outside cause took the pod: put the attempt on record and begin anew, if a retry is left."""

    reason: str
    message: str


@dataclass(frozen=True)
class PhaseDied:
    """The running phase ended its own container: the trial ends with what it has."""

    type: str
    message: str


@dataclass(frozen=True)
class Fail:
    """The trial cannot be run. exception: Harbor's class of the error, if it has one."""

    reason: str
    message: str
    exception: str = ""


@dataclass(frozen=True)
class CleanUp:
    """The trial is over: remove its pods now, in some seconds, or not (None)."""

    pod_in: float | None
    trial_in: float | None

    @property
    def next(self) -> float | None:
        """Seconds until the next removal that is not due yet."""
        return min((each for each in (self.pod_in, self.trial_in) if each), default=None)


Decision: TypeAlias = (
    Begin | CreatePod | Adopt | CreateVerifierPod | AdoptVerifierPod | Drive | Wait | LoseAttempt | PhaseDied | Fail | CleanUp
)
Rule: TypeAlias = Callable[[Situation], Decision | None]

# Not CreateContainerConfigError and RunContainerError: a restart of API server or containerd makes them, too.
_NEVER_STARTS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "does not exist", "repository name not known", "insufficient_scope")
POD_STARTING = "PodStarting"
_ON_ITS_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})
_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff"})
_FILLED_ITS_DISK = (
    "usage exceeds the total limit of containers",
    "exceeded its local ephemeral storage limit",
    "exceeds the limit",
)
_NAME_TAKEN_SECONDS = 60  # a former trial's pod of the same name is collected within that
_KILLED_FROM_OUTSIDE = frozenset({137, 255})  # nothing in a container can SIGKILL its process 1; 255: the node lost sight of it


def decide(situation: Situation) -> Decision:
    """The first rule that applies."""
    for rule in RULES:
        if (decision := rule(situation)) is not None:
            return decision
    return Drive()


def _finished(s: Situation) -> Decision | None:
    if not is_finished(s.trial):
        return None
    return CleanUp(_pod_removal(s), _seconds_left(s, s.trial.spec.ttl_seconds_after_finished))


def _past_deadline(s: Situation) -> Decision | None:
    return deadline_exceeded(s.trial, s.now)


def _suspended(s: Situation) -> Decision | None:
    if is_held(s.trial):
        return Wait("Suspended", "spec.suspend is true; set it to false to begin")
    return None


def _not_begun(s: Situation) -> Decision | None:
    if s.trial.status.attempt is None:
        return Begin(1, s.pod_name)
    return None


def _backing_off(s: Situation) -> Decision | None:
    """After an attempt was lost, the next waits: 1 s, 2 s, 4 s, ... at most 60 s."""
    lost = s.trial.status.attempts
    if not lost or s.pod is not None or s.trial.status.pod_uid is not None or lost[-1].end_time is None:
        return None
    left = lost[-1].end_time.timestamp() + min(60.0, 2.0 ** (len(lost) - 1)) - s.now
    return Wait("BackingOff", f"attempt {lost[-1].number} was lost: {lost[-1].reason}", seconds=left) if left > 0 else None


def _pod_not_made(s: Situation) -> Decision | None:
    if s.pod is None and s.trial.status.pod_uid is None:
        return CreatePod()
    return None


def _pod_gone(s: Situation) -> Decision | None:
    if s.pod is None or (s.trial.status.pod_uid is not None and s.pod.uid != s.trial.status.pod_uid):
        return LoseAttempt("PodDeleted", f"pod {s.trial.status.pod_name} was deleted by somebody else")
    return None


def _pod_foreign(s: Situation) -> Decision | None:
    if s.pod is None or s.pod.owner_uid == s.trial.metadata.uid:
        return None
    if s.pod.deleting or s.now < _attempt_start(s) + _NAME_TAKEN_SECONDS:
        return Wait("PodNameTaken", f"waiting for another pod named {s.pod.name} to go", seconds=2)
    return Fail("PodNameTaken", f"a pod named {s.pod.name} exists and belongs to somebody else; delete or rename it")


def _pod_unknown(s: Situation) -> Decision | None:
    return Adopt() if s.pod is not None and s.trial.status.pod_uid is None else None


def _disk_filled(s: Situation) -> Decision | None:
    """Evicted for its own limits, which its node's troubles come with a DisruptionTarget condition or other words for."""
    if s.pod is None or s.pod.reason != "Evicted" or s.pod.disruption or s.trial.status.current_step is None:
        return None
    return PhaseDied("OutOfDiskError", s.pod.message) if any(each in s.pod.message for each in _FILLED_ITS_DISK) else None


def _pod_taken(s: Situation) -> Decision | None:
    """Deleted, evicted or preempted: an outside cause, whatever ran."""
    if s.pod is None:
        return None
    if s.pod.disruption:
        return LoseAttempt(s.pod.disruption, s.pod.message or f"pod {s.pod.name} was disrupted: {s.pod.disruption}")
    if s.pod.reason:
        return LoseAttempt(s.pod.reason, s.pod.message or f"pod {s.pod.name} failed: {s.pod.reason}")
    if s.pod.deleting:
        return LoseAttempt("PodDeleted", f"pod {s.pod.name} was deleted by somebody else")
    return None


def _container_ended(s: Situation) -> Decision | None:
    if s.pod is None or not s.pod.terminated:
        return None
    ended = f"the trial's container ended with status {s.pod.exit_code} ({s.pod.exit_reason or 'no reason given'})"
    if s.trial.status.current_step is None:
        return LoseAttempt("ContainerEnded", f"{ended} before the first step")
    if s.pod.exit_reason == "OOMKilled":
        return PhaseDied("OutOfMemoryError", f"{ended}: it used more than its memory limit")
    if s.pod.exit_code is not None and s.pod.exit_code not in _KILLED_FROM_OUTSIDE:
        return PhaseDied("ContainerKilledError", f"{ended}: something in it stopped process 1")
    return LoseAttempt("ContainerEnded", ended)


def _cannot_start(s: Situation) -> Decision | None:
    if s.pod is None:
        return None
    told = s.pod.waiting_message
    if s.pod.waiting_reason in _NEVER_STARTS:
        return Fail(s.pod.waiting_reason, told or f"pod {s.pod.name}: {s.pod.waiting_reason}", "EnvironmentStartError")
    if s.pod.waiting_reason in _PULLING and any(each in told.lower() for each in _NO_SUCH_IMAGE):
        return Fail("ImagePullFailed", f"{told}; check spec.environment.image and its credentials", "EnvironmentStartError")
    return None


def _start_too_slow(s: Situation) -> Decision | None:
    if s.pod is None or s.pod.running or s.pod.scheduled_at is None or s.now < s.pod.scheduled_at + s.start_timeout:
        return None
    why = f"; last: {s.pod.waiting_reason} {s.pod.waiting_message}".rstrip() if s.pod.waiting_reason else ""
    limit = f"environment.build_timeout_sec = {s.start_timeout:g}"
    return Fail("EnvironmentStartTimeout", f"pod {s.pod.name} did not start within {limit}{why}", "EnvironmentStartTimeoutError")


def _starting(s: Situation) -> Decision | None:
    if s.pod is None or s.pod.running:
        return None
    if s.pod.unschedulable:
        return Wait("Unschedulable", s.pod.unschedulable, seconds=30)
    limit = s.start_timeout - (s.now - (s.pod.scheduled_at or s.now))
    seconds = max(1.0, min(limit, 30.0))
    if s.pod.waiting_reason in _ON_ITS_WAY:
        return Wait(POD_STARTING, starting_message(s.trial.status.attempt, s.pod.name), seconds=seconds)
    return Wait(s.pod.waiting_reason, s.pod.waiting_message, seconds=seconds)


def _verifier(s: Situation) -> Decision | None:
    """The verifier's pod is looked at by the rules for the agent's, as if it were that."""
    named = s.trial.status.verifier
    if named is None:
        return None
    status = s.trial.status.model_copy(update={"pod_name": named.pod_name, "pod_uid": named.pod_uid})
    seen = replace(s, trial=s.trial.model_copy(update={"status": status}), pod=s.verifier)
    found = next((each for rule in POD_RULES if (each := rule(seen)) is not None), None)
    match found:
        case CreatePod():
            return CreateVerifierPod()
        case Adopt():
            return AdoptVerifierPod()
        case PhaseDied(type=_, message=message) if s.verifier is not None and s.verifier.init_failed:
            return LoseAttempt("ContainerEnded", f"the verifier of step {s.trial.status.current_step}: {message}")
        case LoseAttempt() | PhaseDied() | Fail():
            return replace(found, message=f"the verifier of step {s.trial.status.current_step}: {found.message}")
    return found


POD_RULES: tuple[Rule, ...] = (
    _pod_not_made,
    _pod_gone,
    _pod_foreign,
    _pod_unknown,
    _disk_filled,
    _pod_taken,
    _container_ended,
    _cannot_start,
    _start_too_slow,
    _starting,
)
RULES: tuple[Rule, ...] = (
    _finished,
    _past_deadline,
    _suspended,
    _not_begun,
    _backing_off,
    *POD_RULES,
    _verifier,
)


def starting_message(attempt: int | None, pod_name: str | None) -> str:
    """What is said from the moment a pod is asked for until it runs or something is wrong: one status, one write."""
    return f"attempt {attempt}: waiting for pod {pod_name}"


def is_finished(trial: MultiStepTrial) -> bool:
    """Whether the trial is Complete or Failed."""
    return any(each.type in ("Complete", "Failed") and each.status == "True" for each in trial.status.conditions)


def is_held(trial: MultiStepTrial) -> bool:
    """Whether the trial is suspended before its start; nothing of it is looked at until it is to begin."""
    return trial.spec.suspend and trial.status.attempt is None


def failed_badly(trial: MultiStepTrial) -> bool:
    """Whether somebody may want to look at the pod: the trial Failed, or has an exception."""
    failed = any(each.type == "Failed" and each.status == "True" for each in trial.status.conditions)
    return failed or trial.status.exception is not None or any(step.exception for step in trial.status.steps)


def _attempt_start(s: Situation) -> float:
    """When the attempt began, or the trial."""
    lost = s.trial.status.attempts
    start = lost[-1].end_time if lost else s.trial.status.start_time
    return start.timestamp() if start else s.now


def _pod_removal(s: Situation) -> float | None:
    spec = s.trial.spec
    if not any(pod and pod.owner_uid == s.trial.metadata.uid and not pod.deleting for pod in (s.pod, s.verifier)):
        return None
    if spec.pod_cleanup == "Never" or (spec.pod_cleanup == "OnSuccess" and failed_badly(s.trial)):
        return None
    return _seconds_left(s, spec.pod_ttl_seconds_after_finished or 0)


def _seconds_left(s: Situation, ttl: float | None) -> float | None:
    end: datetime | None = s.trial.status.completion_time
    if ttl is None or end is None:
        return None
    return max(0.0, end.timestamp() + ttl - s.now)


def deadline_exceeded(trial: MultiStepTrial, now: float) -> Fail | None:
    """What follows when the trial's own deadline has passed; None while it has not."""
    if next_deadline(trial, now) != 0:
        return None
    limit = trial.spec.active_deadline_seconds
    return Fail("DeadlineExceeded", f"the trial was active for longer than spec.activeDeadlineSeconds = {limit}")


def next_deadline(trial: MultiStepTrial, now: float) -> float | None:
    """Seconds until the trial's own deadline, if it has one and has begun."""
    limit, start = trial.spec.active_deadline_seconds, trial.status.start_time
    return None if limit is None or start is None else max(0.0, start.timestamp() + limit - now)


def stands_still(pod: PodFacts) -> bool:
    """Whether a pod that does not run yet waits for more than its node's work: for room, or an image that does not come."""
    return bool(pod.unschedulable) or pod.waiting_reason not in _ON_ITS_WAY
