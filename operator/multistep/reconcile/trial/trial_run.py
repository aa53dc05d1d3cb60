"""Base class of the parts of a trial's reconcile: it has the trial, its pods and its task, and writes the trial's status."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multistep.api.trial.status import ImageStatus, TrialStatus, Usage
from multistep.api.trial.trial import MultiStepTrial
from multistep.api.trial.values import Phase
from multistep.engine.journal.journal import Journal
from multistep.engine.lifecycle import decisions
from multistep.engine.lifecycle import stop_and_suspend as deadlines
from multistep.engine.lifecycle import stop_and_suspend as suspensions
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.status import trial_status
from multistep.engine.status.status_size import redacted
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.logs import also_about
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key
from multistep.reconcile.admission.model_slots import ModelSlots
from multistep.reconcile.admission.pod_starts import PodStarts, VerifierRoom
from multistep.reconcile.admission.quotas import Quotas
from multistep.reconcile.queue.error_outcome import ErrorSeries
from multistep.reconcile.queue.event_filter import Changed
from multistep.reconcile.queue.work_queue import CONTINUE, SOON_SECONDS, Requeue, Result, earliest
from multistep.reconcile.trial.checkpoint_transfers import Checkpointing
from multistep.reconcile.trial.complete_results import Finisher
from multistep.reconcile.trial.model_gateway import ModelAccess
from multistep.reconcile.trial.owned_pods import PodHints, TrialPods
from multistep.reconcile.trial.run_sessions import Driver
from multistep.reconcile.trial.source_checkpoints import SourceTrials
from multistep.reconcile.trial.start_from_checkpoint import Start, StartingPoints
from multistep.reconcile.trial.write_status import Tally, TrialWriter
from multistep.settings import Settings
from multistep.sources.load.load_trial import Loaded, TrialLoader
from multistep.store.harbor import trial_files
from multistep.store.results_volume import Volume
from multistep.telemetry.metrics import Metrics


@dataclass(frozen=True)
class Tools:
    """The objects that all reconciles share. hints: hints about the trials' pods; clock: seconds since the epoch; changed: function
    that returns whether an event showed a newer spec of a trial, or its deletion; errors: trials whose last reconcile failed;
    loaded: called when a trial's task is loaded: the trial leaves the queues for fetches, reads and builds."""

    cluster: Cluster
    pods: TrialPods
    loader: TrialLoader
    loaded: Callable[[Key], object]
    driver: Driver
    checkpointing: Checkpointing
    finisher: Finisher
    starting_points: StartingPoints
    sources: SourceTrials
    volume: Volume
    settings: Settings
    metrics: Metrics
    tally: Tally
    clock: Callable[[], float]
    changed: Changed
    hints: PodHints
    errors: ErrorSeries
    starts: PodStarts
    quotas: Quotas
    room: VerifierRoom
    execs: ConcurrencyLimit
    transfers: ConcurrencyLimit
    models: ModelAccess | None
    model_slots: ModelSlots


class TrialContext(ABC):
    """The state of one reconcile of one trial."""

    def __init__(self, tools: Tools, found: Object) -> None:
        self._t = tools
        self._object = found
        self._writer: TrialWriter
        self._pod: PodFacts | None = None
        self._verifier: PodFacts | None = None
        self._loaded: Loaded | None = None
        self._pods_known = False  # the pods were just read or created: the next decision reads none
        self._setup_usage: Usage | None = None  # model usage of the agent's setup, if the agent ended its container
        self._fully_parsed = True  # whether the whole trial could be parsed

    async def _start_attempt(self, attempt: int, pod_name: str, *, image_user: str | None, start: Start | None = None) -> Result:
        """Write the start of an attempt. start: starting point of the first attempt, None for the image.

        The start of the first attempt is written together with its pod's UID, which saves a write, or when the trial has to wait
        for the pod. After a crash in between, the trial starts again and adopts the pod: its name depends on the trial's name only,
        and the spec is immutable. What the next start could resolve differently (the revision of a remote task, an image that was
        built, another trial) is written before the pod is created.
        """
        loaded, now, resumed = self._loaded_now, self._t.clock(), start.resumed if start else self._trial.status.resumed
        plan, steps = loaded.plan, [each.name for each in loaded.plan.steps]
        new = trial_status.attempt_started(
            self._trial, attempt, pod_name, plan.task_name, image_user, now,
            source=loaded.source, steps=steps, resumed=resumed, images=loaded.images,
        )  # fmt: skip
        if start is not None:
            new = new.model_copy(update={"started_from": start.source, "tampering": [*start.tampering]})
        self._pods_known = first = attempt == 1 and image_user is None  # its pod's name is new, so there is no pod
        resolved = loaded.source or loaded.images or start or self._trial.status.regraded
        if first and not resolved and new.phase == "Pending":
            self._writer.trial = self._trial.model_copy(update={"status": new})
        else:
            await self._write(new)
        return CONTINUE

    async def _wait(
        self, reason: str, message: str, *, seconds: float | None, gated: bool = False, images: list[ImageStatus] | None = None
    ) -> Requeue:
        """Report why the trial waits. images: builds to list in the status; None: no change."""
        new = trial_status.waiting(self._trial, self._phase, reason, message, self._t.clock(), gated=gated)
        await self._write(new if images is None else new.model_copy(update={"images": images}))
        return self._until_deadline(seconds)

    @property
    def _phase(self) -> Phase:
        """Return the phase of the trial while it waits. One that waits during a suspension stays suspended."""
        if self._trial.spec.suspend and suspensions.is_suspended(self._trial):
            return "Suspended"
        return "Running" if self._trial.status.phase == "Running" else "Pending"

    def _until_deadline(self, seconds: float | None) -> Requeue:
        """Return a requeue after the seconds (None: no timed requeue), or at the trial's deadline if that is earlier."""
        deadline = deadlines.next_deadline(self._trial, self._t.clock())
        after = earliest([seconds, deadline]).after
        return Requeue(None if after is None else max(SOON_SECONDS, after))

    async def _write_running(self, journal: Journal, **changes: Any) -> None:
        first, pod = self._trial.status.node_name is None, self._pod
        where = {"node_name": pod.node if pod else None, **self._container_fields()}
        await self._write(trial_status.running(self._trial, journal, self._t.clock(), **where, **changes))
        if first and pod is not None:
            self._t.tally.pod_ran(self._trial, pod)

    def _container_fields(self) -> dict[str, str]:
        """Return the status fields with the images and containerID of the agent's pod, as far as the kubelet reported them.

        containerID is written once, so that a different ID reveals a restart.
        """
        if (pod := self._pod) is None:
            return {}
        images = {"image_id": pod.image_id, "runner_image_id": pod.runner_image_id, "agent_host_image_id": pod.host_image_id}
        first = {"container_id": pod.container_id} if self._trial.status.container_id is None else {}
        return {name: value for name, value in {**images, **first}.items() if value}

    def _forget_pod(self) -> None:
        """Drop the hint about the trial's pod, which the trial does not need any more."""
        self._t.hints.forget(self._key)

    async def _write(self, new: TrialStatus, *, before: TrialStatus | None = None) -> None:
        if self._loaded is not None:
            new = redacted(new, trial_files.secrets(self._loaded.env, self._loaded.task.config, self._loaded.task.layout))
        await self._writer.write(new, before=before)
        self._t.model_slots.observe(self._trial)

    def _new_writer(self, trial: MultiStepTrial) -> TrialWriter:
        self._t.tally.observe(trial)
        self._t.model_slots.observe(trial)
        also_about(uid=trial.metadata.uid, attempt=trial.status.attempt, step=trial.status.current_step)
        return TrialWriter(self._t.cluster, self._t.metrics, self._t.tally, self._object, trial)

    @property
    def _trial(self) -> MultiStepTrial:
        return self._writer.trial

    @property
    def _key(self) -> Key:
        return self._trial.metadata.namespace, self._trial.metadata.name

    @property
    def _loaded_now(self) -> Loaded:
        assert self._loaded is not None  # loaded before each decision about an unfinished trial
        return self._loaded

    @property
    def _compares_verdicts(self) -> bool:
        """Return whether the current step is verified in place, and its verifier's pod is only for a second verdict."""
        steps = self._loaded.plan.steps if self._loaded else ()
        return any(each.name == self._trial.status.current_step and each.compares_verdicts for each in steps)

    @property
    def _verified_apart(self) -> bool:
        """Return whether the current step has a separate verifier, so that it is verified in another pod only."""
        steps = self._loaded.plan.steps if self._loaded else ()
        return any(each.name == self._trial.status.current_step and each.verified_apart for each in steps)

    @property
    def _plan(self) -> TrialPlan:
        return self._loaded_now.plan

    @abstractmethod
    async def _act(self, decision: decisions.Decision) -> Result:
        """Carry out a decision of the engine."""
