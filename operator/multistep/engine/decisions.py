"""What is seen of a trial's pods, and what may follow from it: the words that the rules of ``lifecycle`` are written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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
    started_at: float | None = None  # its container, while that runs
    unschedulable: str = ""  # why it has no node yet
    gates: tuple[str, ...] = ()  # what keeps the scheduler from looking at it
    queue: str | None = None  # of Kueue, if that manages the pod; "" if the pod names none
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
    exit_message: str = ""
    restarted: bool = False  # the container was started again, so that what is told of its end is about the former one
    container_id: str = ""  # of the trial's container
    image_id: str = ""  # of the trial's container, with the digest, as the kubelet resolved it
    memory_limit: str = ""  # of the trial's container, as the pod's spec has it
    shard: str = ""  # of the operator that made it


ViolationReason: TypeAlias = Literal["RunnerBroken", "Tampered", "ExecSessionsKilled"]


@dataclass(frozen=True)
class ProtocolViolation:
    """How exec sessions with a pod's runner fail that no infrastructure failure explains. reason: of the last one, as the trial
    would fail with it; times: sessions in a row that failed so; since: seconds since the epoch."""

    message: str
    since: float
    times: int = 1
    reason: ViolationReason = "RunnerBroken"

    @classmethod
    def after(
        cls, former: ProtocolViolation | None, message: str, now: float, reason: ViolationReason = "RunnerBroken"
    ) -> ProtocolViolation:
        """Once more."""
        return cls(message, former.since if former else now, former.times + 1 if former else 1, reason)


@dataclass(frozen=True)
class Situation:
    """All that a decision rests on. start_timeout: seconds from a pod's scheduling to its running.

    verifier: the pod that status.verifier names, where the current step is verified apart from the agent. violation: if the last
    visit to the pods ended with such.
    """

    trial: MultiStepTrial
    pod: PodFacts | None
    pod_name: str
    now: float
    start_timeout: float
    verifier: PodFacts | None = None
    violation: ProtocolViolation | None = None


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
    """Nothing to do until something changes, or seconds have passed. reason, message: for people.

    held: by who decides when the trial's turn is; its time stands still.
    """

    reason: str
    message: str = ""
    seconds: float | None = None
    held: bool = False


@dataclass(frozen=True)
class Hold:
    """The trial is suspended: say so, see that only a paused one has a pod, and wait."""


@dataclass(frozen=True)
class Resume:
    """A suspended trial without a pod may have one again."""


@dataclass(frozen=True)
class LoseAttempt:
    """An outside cause took the pod: put the attempt on record and begin anew, if a retry is left (a SUSPENDED one needs none)."""

    reason: str
    message: str


@dataclass(frozen=True)
class PhaseDied:
    """The running phase ended its own container: the trial ends with what it has. phase: to which it is charged, if not to the one
    that runs: while a step is verified in another pod, nothing runs in the agent's but what the agent left."""

    type: str
    message: str
    phase: str | None = None


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
    Begin
    | CreatePod
    | Adopt
    | CreateVerifierPod
    | AdoptVerifierPod
    | Drive
    | Wait
    | Hold
    | Resume
    | LoseAttempt
    | PhaseDied
    | Fail
    | CleanUp
)
