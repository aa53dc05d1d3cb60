"""Inputs and outputs of the rules in ``lifecycle``: the observed state of a trial's pods, and the possible decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from multistep.api.trial import MultiStepTrial


@dataclass(frozen=True)
class PodFacts:
    """The state of a trial's pod, as the API server reports it. Times: seconds since the epoch."""

    name: str
    uid: str
    owner_uid: str
    attempt: int
    as_root: bool
    phase: str
    created_at: float
    scheduled_at: float | None = None
    started_at: float | None = None  # start of its running container
    unschedulable: str = ""  # the scheduler's message while the pod fits no node
    gates: tuple[str, ...] = ()  # names of its scheduling gates
    queue: str | None = None  # Kueue's queue; None: Kueue does not manage the pod; "": the pod names no queue
    node: str = ""
    deleting: bool = False
    disruption: str = ""  # reason of the DisruptionTarget condition
    reason: str = ""  # status.reason, e.g. Evicted
    message: str = ""
    waiting_reason: str = ""  # of a container that has not started
    waiting_message: str = ""
    running: bool = False
    ready: bool = False
    terminated: bool = False
    init_failed: bool = False  # the init container that installs the runner failed, so no other container started
    exit_code: int | None = None
    exit_reason: str = ""
    exit_message: str = ""
    restarted: bool = False  # the container was restarted; exit code, reason and message are of the former one
    container_id: str = ""  # of the trial's container
    image_id: str = ""  # of the trial's container, with the digest, as the kubelet resolved it
    memory_limit: str = ""  # of the trial's container, as written in the pod's spec
    shard: str = ""  # of the operator that created it
    host_ended: str = ""  # how the agent host's container ended, as a predicate
    host_exit_code: int | None = None
    host_out_of_memory: bool = False


ViolationReason: TypeAlias = Literal["RunnerBroken", "Tampered", "ExecSessionsKilled"]


@dataclass(frozen=True)
class ProtocolViolation:
    """Exec sessions with a pod's runner that failed in a row, without an infrastructure failure as an explanation.

    reason: with which the trial fails after too many; message: of the last session; times: number of sessions; since: start of
    the first, in seconds since the epoch.
    """

    message: str
    since: float
    times: int = 1
    reason: ViolationReason = "RunnerBroken"

    @classmethod
    def after(
        cls, former: ProtocolViolation | None, message: str, now: float, reason: ViolationReason = "RunnerBroken"
    ) -> ProtocolViolation:
        """Return the violation that counts one more session. former: the sessions before, None if the last one succeeded."""
        return cls(message, former.since if former else now, former.times + 1 if former else 1, reason)


@dataclass(frozen=True)
class Situation:
    """All inputs of a decision. start_timeout: seconds from a pod's scheduling until it runs.

    verifier: the pod that status.verifier names, while a step is verified separately. violation: if the last exec session ended
    with one.
    """

    trial: MultiStepTrial
    pod: PodFacts | None
    pod_name: str
    now: float
    start_timeout: float
    verifier: PodFacts | None = None
    violation: ProtocolViolation | None = None


@dataclass(frozen=True)
class StartAttempt:
    """Write the attempt and the pod's name to the status before the pod is created."""

    attempt: int
    pod_name: str


@dataclass(frozen=True)
class CreatePod:
    """Create the attempt's pod."""


@dataclass(frozen=True)
class Adopt:
    """Write the pod's UID to the status."""


@dataclass(frozen=True)
class CreateVerifierPod:
    """Create the pod that status.verifier names."""


@dataclass(frozen=True)
class AdoptVerifierPod:
    """Write the UID of the verifier's pod to the status."""


@dataclass(frozen=True)
class Drive:
    """Resume the script in the pod."""


@dataclass(frozen=True)
class Wait:
    """Wait for a watch event, at most some seconds. reason, message: for the conditions.

    gated: by a scheduling gate; the time does not count toward the trial's deadline.
    """

    reason: str
    message: str = ""
    seconds: float | None = None
    gated: bool = False


@dataclass(frozen=True)
class Suspend:
    """Report the suspension in the status, delete the pod unless the trial is paused, and wait."""


@dataclass(frozen=True)
class Resume:
    """Allow a suspended trial without a pod to get one."""


@dataclass(frozen=True)
class FailAttempt:
    """Record an attempt that an infrastructure failure or a suspension ended. Restart the trial if a retry is left; a suspension
    uses none."""

    reason: str
    message: str


@dataclass(frozen=True)
class PhaseDied:
    """Complete the trial with the rewards that it has: the running phase ended its own container.

    phase: to which the failure is charged, if it is not the running one. During separate verification only the agent's leftover
    processes run in the agent's pod.
    """

    type: str
    message: str
    phase: str | None = None


@dataclass(frozen=True)
class Fail:
    """Set the trial Failed. exception: Harbor's class of the error, if it has one."""

    reason: str
    message: str
    exception: str = ""


@dataclass(frozen=True)
class CleanUp:
    """Delete the pods of a finished trial, and the trial itself, after so many seconds each; None: do not delete."""

    pod_in: float | None
    trial_in: float | None

    @property
    def next(self) -> float | None:
        """Return the seconds until the next deletion that is not due yet."""
        return min((each for each in (self.pod_in, self.trial_in) if each), default=None)


Decision: TypeAlias = (
    StartAttempt
    | CreatePod
    | Adopt
    | CreateVerifierPod
    | AdoptVerifierPod
    | Drive
    | Wait
    | Suspend
    | Resume
    | FailAttempt
    | PhaseDied
    | Fail
    | CleanUp
)

Rule: TypeAlias = Callable[[Situation], Decision | None]
