"""Inputs and outputs of the rules in ``next_decision``: the observed state of a trial's pods, and the possible decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from multistep.api.trial.trial import MultiStepTrial


@dataclass(frozen=True)
class ServiceEnd:
    """The termination of a service that the pod needs."""

    name: str
    how: str
    """A description such as "ended with status 1 (Error)"."""
    exit_code: int | None
    out_of_memory: bool = False
    unhealthy: bool = False
    """Whether the kubelet may have killed the service because its healthcheck failed for too long."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The state of a trial's pod, as the API server reports it. All times are seconds since the epoch.

    The operator keeps an instance for each pod. With slots an instance takes 0.5 instead of 1.8 KB, because Python shares
    dictionary keys only between instances with at most 30 attributes.
    """

    name: str
    uid: str
    owner_uid: str
    phase: str
    created_at: float
    scheduled_at: float | None = None
    started_at: float | None = None
    """Start time of the trial's container, None while that container does not run."""
    unschedulable: str = ""
    """The scheduler's message while the pod fits no node."""
    gates: tuple[str, ...] = ()
    """Names of the pod's scheduling gates."""
    queue: str | None = None
    """Kueue's queue, "" if the pod names none, or None if Kueue does not manage the pod."""
    node: str = ""
    deleting: bool = False
    disruption: str = ""
    """Reason of the pod's condition DisruptionTarget."""
    reason: str = ""
    """The pod's status.reason, e.g. Evicted."""
    message: str = ""
    waiting_reason: str = ""
    """Why the trial's container has not started, e.g. ErrImagePull."""
    waiting_message: str = ""
    running: bool = False
    ready: bool = False
    terminated: bool = False
    init_failed: bool = False
    """Whether an init container failed that is neither a service nor the egress sidecar. The trial's container then did not
    start."""
    unfilled: str = ""
    """The service whose volumes the failed init container was to fill; ``main`` stands for the trial's container."""
    exit_code: int | None = None
    exit_reason: str = ""
    exit_message: str = ""
    restarted: bool = False
    """Whether the container was restarted. exit_code, exit_reason and exit_message then describe the run before the restart."""
    container_id: str = ""
    """Id of the trial's container."""
    image_id: str = ""
    """Image of the trial's container with its digest, as the kubelet resolved it."""
    runner_image_id: str = ""
    """Image that contains the runner, with its digest."""
    host_image_id: str = ""
    """Image of the agent host, with its digest; "" without an agent host."""
    memory_limit: str = ""
    """Memory limit of the trial's container, as written in the pod's spec."""
    shard: str = ""
    """Shard of the operator that created the pod."""
    host_key: str = field(default="", repr=False)
    """The key with which the agent host's requests are sealed (``runner_client.exchange``), "" without an agent host."""
    host_ended: str = ""
    """How the agent host's container ended, e.g. "ended with status 1 (Error)"; "" while it runs."""
    host_exit_code: int | None = None
    host_out_of_memory: bool = False
    service: ServiceEnd | None = None
    """The first service that ended although the pod needs it, None if all needed services run."""
    egress_ended: str = ""
    """How the egress sidecar's container ended last, e.g. "ended with status 1 (Error)"; "" if it never did."""
    egress_exit_code: int | None = None
    egress_out_of_memory: bool = False


ViolationReason: TypeAlias = Literal["RunnerBroken", "Tampered", "ExecSessionsKilled", "EgressRefused", "InvalidSpec", "PodUnknown"]


@dataclass(frozen=True)
class ProtocolViolation:
    """A series of exec sessions with a pod's runner or egress sidecar that failed for another reason than a broken connection."""

    message: str
    """Error of the last session."""
    since: float
    """Time of the first failure, in seconds since the epoch."""
    times: int = 1
    """Number of failed sessions in a row."""
    reason: ViolationReason = "RunnerBroken"
    """Reason with which the trial or its attempt fails if the series gets too long."""

    @classmethod
    def after(
        cls, former: ProtocolViolation | None, message: str, now: float, reason: ViolationReason = "RunnerBroken"
    ) -> ProtocolViolation:
        """Return the series ``former`` with one more failed session. ``former`` is None if the session before succeeded."""
        return cls(message, former.since if former else now, former.times + 1 if former else 1, reason)


@dataclass(frozen=True)
class Situation:
    """All inputs of a decision."""

    trial: MultiStepTrial
    pod: PodFacts | None
    pod_name: str
    now: float
    start_timeout: float
    """Seconds that a pod may take from its scheduling until it runs."""
    verifier: PodFacts | None = None
    """The pod that status.verifier names, while a step is verified separately."""
    violation: ProtocolViolation | None = None
    """The protocol violation of the last exec session, None if that session had none."""
    compares_verdicts: bool = False
    """Whether the verifier's pod only verifies the step a second time, to compare the verdicts."""
    verified_apart: bool = False
    """Whether the current step has a separate verifier, which means that it is verified only in another pod."""

    def owns(self, pod: PodFacts | None) -> bool:
        """Return whether the trial is the pod's owner."""
        return pod is not None and pod.owner_uid == self.trial.metadata.uid


@dataclass(frozen=True)
class StartAttempt:
    """Decision: start the first attempt, with a pod of this name."""

    attempt: int
    pod_name: str


@dataclass(frozen=True)
class CreatePod:
    """Decision: create the attempt's pod."""


@dataclass(frozen=True)
class Adopt:
    """Decision: write the UID of the attempt's pod to the status."""


@dataclass(frozen=True)
class CreateVerifierPod:
    """Decision: create the pod that status.verifier names."""


@dataclass(frozen=True)
class AdoptVerifierPod:
    """Decision: write the UID of the verifier's pod to the status."""


@dataclass(frozen=True)
class Drive:
    """Decision: run or resume the trial's script, which is its sequence of runner operations, in the pod."""


@dataclass(frozen=True)
class DriveWithoutVerifier:
    """Decision: the same as Drive, but without the pod that was to verify the step a second time."""

    why: str
    """Why the verifier's pod cannot be used."""


@dataclass(frozen=True)
class Wait:
    """Decision: wait for a watch event."""

    reason: str
    """Reason for the trial's conditions."""
    message: str = ""
    """Message for the trial's conditions."""
    seconds: float | None = None
    """Maximum wait, None for no limit."""
    gated: bool = False
    """Whether the trial waits for a queue or the results volume. Such a wait does not count toward the trial's deadline."""


@dataclass(frozen=True)
class Suspend:
    """Decision: report the suspension in the status, delete the pod unless the trial is paused, and wait."""


@dataclass(frozen=True)
class Resume:
    """Decision: resume a suspended trial that has no pod. Write its current attempt to the status, then create the pod."""


@dataclass(frozen=True)
class FailAttempt:
    """Decision: record the attempt as failed, because an infrastructure failure or a suspension ended it.

    The operator starts another attempt if a retry is left. A suspension does not use up a retry.
    """

    reason: str
    message: str


@dataclass(frozen=True)
class PhaseDied:
    """Decision: complete the trial with the rewards that it has, because a process in the pod ended one of the pod's containers."""

    type: str
    """Harbor's name of the exception."""
    message: str
    phase: str | None = None
    """The phase to blame, None for the running phase.

    If the agent's container ends during a separate verification, the agent's phase is to blame, because only processes that the
    agent left behind still run in that container.
    """
    untouched: bool = False
    """Whether the container is in a separate verifier's pod that has no files of the agent yet."""


@dataclass(frozen=True)
class Fail:
    """Decision: set the trial Failed."""

    reason: str
    message: str
    exception: str = ""
    """Name of Harbor's exception class for this error; "" if Harbor has none."""


@dataclass(frozen=True)
class CleanUp:
    """Decision: delete a finished trial's pods in ``pod_in`` seconds and the trial itself in ``trial_in`` seconds (None for
    never)."""

    pod_in: float | None
    trial_in: float | None

    @property
    def next(self) -> float | None:
        """Return the seconds until the next deletion that is not due yet, None if there is none."""
        return min((seconds for seconds in (self.pod_in, self.trial_in) if seconds), default=None)


Decision: TypeAlias = (
    StartAttempt
    | CreatePod
    | Adopt
    | CreateVerifierPod
    | AdoptVerifierPod
    | Drive
    | DriveWithoutVerifier
    | Wait
    | Suspend
    | Resume
    | FailAttempt
    | PhaseDied
    | Fail
    | CleanUp
)

Rule: TypeAlias = Callable[[Situation], Decision | None]
