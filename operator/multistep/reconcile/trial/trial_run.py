"""The state that the actions of one reconcile share: the trial, its observed state, and the writes of its status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from multistep.api.trial.status import ImageStatus, TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.api.trial.values import Phase
from multistep.engine.journal.journal import Journal
from multistep.engine.lifecycle import decisions
from multistep.engine.lifecycle import stop_and_suspend as deadlines
from multistep.engine.lifecycle import stop_and_suspend as suspensions
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.plan.plan import StepPlan, TrialPlan
from multistep.engine.status import trial_status
from multistep.kube.cluster_protocols import Object
from multistep.pods import pod_identity
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.queue.error_outcome import ErrorSeries
from multistep.reconcile.queue.work_queue import SOON_SECONDS, Requeue, earliest
from multistep.reconcile.trial.pod_hints import PodHint, PodHints
from multistep.reconcile.trial.write_status import TrialWriter
from multistep.settings import Settings
from multistep.sources.load.load_trial import LoadedTrial
from multistep.telemetry.trial_metrics import TrialMetrics

STOP_SECONDS: Final = 5.0
"""Maximum time for which a trial that was stopped or missed its deadline waits for its task, and for the model gateway."""


@dataclass(frozen=True)
class ObservedPods:
    """The pods of a trial."""

    agent: PodFacts | None = None
    """The pod of the current attempt, None if it does not exist."""
    verifier: PodFacts | None = None
    """The pod that status.verifier names, None if it does not exist."""


@dataclass(frozen=True)
class Observed:
    """The observed state of a trial, in addition to its object."""

    loaded: LoadedTrial | None = None
    """The trial's task and plan. None if the trial does not need them, because it has finished, is suspended or was stopped."""
    pods: ObservedPods = ObservedPods()

    @property
    def task(self) -> LoadedTrial:
        """Return the task, for actions that need it. It must be loaded."""
        assert self.loaded is not None  # loaded before each decision about an unfinished trial
        return self.loaded

    @property
    def plan(self) -> TrialPlan:
        """Return the plan, for actions that need it. The task must be loaded."""
        return self.task.plan

    def step(self, trial: MultiStepTrial) -> StepPlan | None:
        """Return the plan of the trial's current step, None if the task is not loaded or no step has started."""
        steps = self.loaded.plan.steps if self.loaded else ()
        return next((each for each in steps if each.name == trial.status.current_step), None)


@dataclass(frozen=True)
class Continue:
    """Result of an action: observe and decide again in this reconcile."""

    pods: ObservedPods | None = None
    """The trial's pods, if the action has just read them. With None they are read again."""


@dataclass(frozen=True)
class Finish:
    """Decision: complete the trial, because its script has finished."""

    journal: Journal


@dataclass(frozen=True)
class FailTrial:
    """Decision: complete the trial as Failed. The model usage of the interrupted step is already counted."""

    failure: decisions.Fail
    before: TrialStatus | None = None
    """The status to compare with the new one to find the Events to emit, None for the current status."""


@dataclass(frozen=True)
class GiveUp:
    """Decision: set the trial Failed without any action that may fail again, because an error has lasted for too long."""

    failure: decisions.Fail


Decision: TypeAlias = decisions.Decision | Finish | FailTrial | GiveUp
Ending: TypeAlias = decisions.FailAttempt | decisions.PhaseDied | decisions.Fail | decisions.CleanUp | Finish | FailTrial | GiveUp
"""A decision that ends an attempt or the trial."""
Result: TypeAlias = Requeue | Continue | Decision
"""Result of an action: the trial waits, or is observed again, or the next decision is already known."""


@dataclass(frozen=True)
class Memory:
    """Facts of trials that the operator keeps in memory between reconciles.

    They save work and bound retries, and a new leader starts without them.
    """

    metrics: TrialMetrics
    hints: PodHints = field(default_factory=PodHints)
    errors: ErrorSeries = field(default_factory=ErrorSeries)

    def forget(self, key: Key) -> None:
        """Forget a trial that was deleted or belongs to another operator."""
        self.metrics.forget(key)
        self.hints.forget(key)
        self.errors.end(key)


@dataclass(frozen=True)
class TrialRun:
    """One reconcile of one trial."""

    object: Object
    """The trial as it was read."""
    writer: TrialWriter
    """Writes the status. Its ``trial`` is the trial as last read or written."""
    memory: Memory
    settings: Settings
    clock: Callable[[], float]
    """Returns seconds since the epoch."""
    readable: bool = True
    """Whether the whole trial could be parsed."""

    @property
    def trial(self) -> MultiStepTrial:
        """Return the trial as last read, written or prepared."""
        return self.writer.trial

    @property
    def key(self) -> Key:
        """Return namespace and name of the trial."""
        return self.trial.metadata.namespace, self.trial.metadata.name

    @property
    def readable_object(self) -> Object:
        """Return the trial as it was read, only with its metadata if its other fields cannot be parsed."""
        return self.object if self.readable else {"metadata": self.object["metadata"]}

    @property
    def hint(self) -> PodHint:
        """Return the hint about the pod that the status names."""
        return self.memory.hints.of(self.key, self.trial.status.pod_uid)

    @property
    def first_pod_name(self) -> str:
        """Return the name of the current or first attempt's pod, which has another name if it was created again as root."""
        return pod_identity.pod_name(self.trial.metadata.name, self.trial.status.attempt or 1, as_root=False)

    async def write(self, new: TrialStatus, *, before: TrialStatus | None = None) -> None:
        """Write the status if it changed, and emit Events. ``before`` is the same as for TrialWriter.write."""
        await self.writer.write(new, before=before)

    def prepare(self, new: TrialStatus) -> None:
        """Set the trial's status without writing it. The next write contains it."""
        self.writer.trial = self.trial.model_copy(update={"status": new})

    async def write_progress(self, journal: Journal, pod: PodFacts | None, **changes: Any) -> None:
        """Write the progress of the script to the status.

        ``pod`` is the pod of the attempt. ``changes`` are further status fields for trial_status.running.
        """
        first = self.trial.status.node_name is None
        where = {"node_name": pod.node if pod else None, **self.container_fields(pod)}
        await self.write(trial_status.running(self.trial, journal, self.clock(), **where, **changes))
        if first and pod is not None:
            self.memory.metrics.pod_ran(self.trial, pod)

    async def write_step(self) -> None:
        """Write to the status that the trial works on its current step, and no longer waits."""
        await self.write(trial_status.at_current_step(self.trial, self.clock()))

    def container_fields(self, pod: PodFacts | None) -> dict[str, str]:
        """Return the status fields with the images and the containerID of the agent's pod, as far as the kubelet has reported them.

        containerID is written only once, so that a different ID reveals a restart.
        """
        if pod is None:
            return {}
        images = {"image_id": pod.image_id, "runner_image_id": pod.runner_image_id, "agent_host_image_id": pod.host_image_id}
        first = {"container_id": pod.container_id} if self.trial.status.container_id is None else {}
        return {name: value for name, value in {**images, **first}.items() if value}

    async def wait(
        self, reason: str, message: str, *, seconds: float | None, gated: bool = False, images: list[ImageStatus] | None = None
    ) -> Requeue:
        """Write to the status why the trial waits. Return a requeue after the seconds, or at the deadline if that is earlier.

        ``images`` are the builds to list in the status. With None the list does not change.
        """
        new = trial_status.waiting(self.trial, self._phase, reason, message, self.clock(), gated=gated)
        await self.write(new if images is None else new.model_copy(update={"images": images}))
        return self.until_deadline(seconds)

    @property
    def _phase(self) -> Phase:
        """Return the phase of the trial while it waits. A trial that waits during a suspension stays suspended."""
        if self.trial.spec.suspend and suspensions.is_suspended(self.trial):
            return "Suspended"
        return "Running" if self.trial.status.phase == "Running" else "Pending"

    def until_deadline(self, seconds: float | None) -> Requeue:
        """Return a requeue after the seconds, or at the trial's deadline if that is earlier. None seconds mean only the
        deadline."""
        deadline = deadlines.next_deadline(self.trial, self.clock())
        after = earliest([seconds, deadline]).after
        return Requeue(None if after is None else max(SOON_SECONDS, after))
