"""One reconcile of one trial: observe, decide and act, until the trial has to wait.

    observe    the trial's task and pods                         observe
    decide     the next action, a pure function of these         decide_action, engine.lifecycle
    act        one function for each decision, writes status     start_attempt, create_pods, continue_script, end_attempt
    error      report it in the status                           end_in_status

An action returns a Requeue if the trial waits, which ends the reconcile. It returns Continue to observe and decide again, or it
returns the next decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from multistep.api.trial.status import is_finished
from multistep.api.trial.trial import MultiStepTrial, parse_trial, salvaged
from multistep.engine.lifecycle import decisions
from multistep.errors import InvalidSpec
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.logs import also_about
from multistep.reconcile.admission.admission import Admission
from multistep.reconcile.models.model_gateway import ModelAccess
from multistep.reconcile.queue.error_outcome import is_cancelled, message
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, Requeue
from multistep.reconcile.trial.checkpoint_transfers import Checkpointing
from multistep.reconcile.trial.complete_results import Finisher
from multistep.reconcile.trial.continue_script import continue_script
from multistep.reconcile.trial.create_pods import adopt, adopt_verifier, create_pod, create_verifier_pod
from multistep.reconcile.trial.decide_action import decide
from multistep.reconcile.trial.end_attempt import clean_up, fail, finish, give_up, interrupt
from multistep.reconcile.trial.end_in_status import EndInStatus
from multistep.reconcile.trial.observe import load_task, read_pods
from multistep.reconcile.trial.owned_pods import TrialPods
from multistep.reconcile.trial.run_sessions import Driver
from multistep.reconcile.trial.session_blame import noting_failed_reads
from multistep.reconcile.trial.source_checkpoints import SourceTrials
from multistep.reconcile.trial.start_attempt import resume, start_first_attempt, suspend
from multistep.reconcile.trial.start_from_checkpoint import StartingPoints
from multistep.reconcile.trial.trial_run import (
    Continue,
    Decision,
    Ending,
    FailTrial,
    Finish,
    GiveUp,
    Memory,
    Observed,
    Result,
    TrialRun,
)
from multistep.reconcile.trial.write_status import TrialWriter
from multistep.settings import Settings
from multistep.sources.load.load_trial import TrialLoader
from multistep.store.results_volume import ResultsVolume
from multistep.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


@dataclass
class TrialReconciler:
    """Reconciles trials, with the objects that the actions need. Each action gets only those that it uses."""

    cluster: Cluster
    loader: TrialLoader
    pods: TrialPods
    admission: Admission
    driver: Driver
    models: ModelAccess | None
    checkpointing: Checkpointing
    finisher: Finisher
    sources: SourceTrials
    starting_points: StartingPoints
    volume: ResultsVolume
    memory: Memory
    metrics: Metrics
    settings: Settings
    clock: Callable[[], float]
    """Returns seconds since the epoch."""

    async def reconcile(self, found: Object) -> Requeue:
        """Reconcile a trial that was just read, and return when to reconcile it again.

        Raises errors after which the work queue is to retry with back-off.
        """
        if found["metadata"].get("deletionTimestamp"):
            return AT_NEXT_EVENT  # Kubernetes garbage collection deletes the objects that the trial owns
        try:
            run = self._start(found, parse_trial(found))
        except Exception as error:
            run = self._start(found, salvaged(found), readable=False)
            if not is_finished(run.trial.status):
                await self._act(run, Observed(), _unreadable(error))
        return await self._until_wait(run)

    def _start(self, found: Object, trial: MultiStepTrial, *, readable: bool = True) -> TrialRun:
        also_about(uid=trial.metadata.uid, attempt=trial.status.attempt, step=trial.status.current_step)
        self._note(trial)
        writer = TrialWriter(self.cluster, self.metrics, self._note, found, trial)
        return TrialRun(found, writer, self.memory, self.settings, self.clock, readable)

    def _note(self, trial: MultiStepTrial) -> None:
        """Update the counts with a trial that was read or written."""
        self.memory.metrics.observe(trial)
        self.admission.model_slots.observe(trial)

    async def _until_wait(self, run: TrialRun) -> Requeue:
        """Observe, decide and act until the trial has to wait. Return when to reconcile it again."""
        observed, pods = Observed(), None
        while True:
            try:
                observed = await load_task(run, observed, self.loader, self.admission)
                observed = replace(observed, pods=pods or await read_pods(run, self.pods))
                decision = decide(run, observed, self.admission.verifiers)
                with noting_failed_reads(run, decision):  # an agent whose result was not read is not to blame for a missed deadline
                    result = await self._act(run, observed, decision)
                if isinstance(result, Requeue):
                    self.memory.errors.end(run.key)
            except (Exception, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                result = await EndInStatus(run, self.metrics, partial(self._act, run, observed)).end(error)
            if isinstance(result, Requeue):
                return result
            if is_finished(run.trial.status):
                self.memory.errors.end(run.key)  # errors of the clean-up start a new series
            pods = result.pods

    async def _act(self, run: TrialRun, observed: Observed, decision: Decision) -> Requeue | Continue:
        """Carry out a decision and the decisions that follow from it. Each action writes the status."""
        result: Result = decision
        while not isinstance(result, Requeue | Continue):
            result = await self._take_action(run, observed, result)
        return result

    async def _take_action(self, run: TrialRun, observed: Observed, decision: Decision) -> Result:
        match decision:
            case decisions.StartAttempt():
                return await start_first_attempt(run, observed, decision, self.starting_points, self.sources, self.volume)
            case decisions.CreatePod():
                return await create_pod(run, observed, self.pods, self.admission, self.volume)
            case decisions.Adopt():
                return await adopt(run, observed, self.pods)
            case decisions.CreateVerifierPod():
                return await create_verifier_pod(run, observed, self.pods, self.admission)
            case decisions.AdoptVerifierPod():
                return await adopt_verifier(run, observed.pods)
            case decisions.Drive():
                return await continue_script(run, observed, self.driver, self.admission, self.pods)
            case decisions.DriveWithoutVerifier(why):
                return await continue_script(run, observed, self.driver, self.admission, self.pods, lost=why)
            case decisions.Wait():
                return await run.wait(decision.reason, decision.message, seconds=decision.seconds, gated=decision.gated)
            case decisions.Suspend():
                return await suspend(run, self.pods)
            case decisions.Resume():
                return await resume(run, observed)
            case _:
                return await self._end(run, observed, decision)

    async def _end(self, run: TrialRun, observed: Observed, decision: Ending) -> Result:
        match decision:
            case decisions.FailAttempt() | decisions.PhaseDied() | decisions.Fail():
                return await interrupt(run, observed, decision, self.models, self.checkpointing)
            case Finish(journal):
                return await finish(run, observed, journal, self.finisher, self.pods)
            case FailTrial():
                return await fail(run, observed, decision, self.finisher, self.pods)
            case GiveUp(failure):
                return await give_up(run, failure, self.models, self.pods, self.finisher)
            case decisions.CleanUp():
                return await clean_up(run, decision, self.pods, self.finisher, self.loader, self.cluster)


def _unreadable(error: Exception) -> FailTrial:
    """Return the failure of a trial that cannot be parsed."""
    text = str(error)
    if not isinstance(error, InvalidSpec):
        logger.error("parsing a trial", exc_info=error)
        text = f"the trial cannot be read: {message(error)}"
    return FailTrial(decisions.Fail("InvalidSpec", text, "ValidationError"))
