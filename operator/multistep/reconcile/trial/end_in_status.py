"""Reports every error of a trial's reconcile in the trial's status, and fails the trial if the error requires it.

reconcile.queue.error_outcome decides what an error means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from multistep.api.trial.failure_table import RECONCILE_FAILED
from multistep.api.trial.status import holds, is_finished
from multistep.api.trial.values import FETCHING
from multistep.api.trial.waiting_reasons import CONNECTION_LOST
from multistep.engine.lifecycle import decisions
from multistep.engine.lifecycle import stop_and_suspend as deadlines
from multistep.engine.status.status_size import bounded
from multistep.errors import ClusterError, SourceError, StoreError
from multistep.reconcile.queue.error_outcome import (
    REPORT_SECONDS,
    Again,
    Ends,
    Outcome,
    Waits,
    is_cancelled,
    message,
    outcome,
)
from multistep.reconcile.queue.work_queue import SOON_SECONDS, Requeue
from multistep.reconcile.trial.decide_action import is_unread, unless_unread
from multistep.reconcile.trial.emit_events import Transition
from multistep.reconcile.trial.trial_run import Continue, Decision, FailTrial, GiveUp, TrialRun
from multistep.sources.load.load_trial import ImageMissing
from multistep.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

TASK_GRACE_SECONDS: Final = 5.0  # a missing task is reported after this time, as `multistep run` creates the trial before the task
Act = Callable[[Decision], Awaitable[Requeue | Continue]]


@dataclass(frozen=True)
class EndInStatus:
    """Handles the errors of one reconcile of a trial."""

    run: TrialRun
    metrics: Metrics
    act: Act
    """Carries out a decision about the trial and the decisions that follow from it."""

    async def end(self, error: BaseException) -> Requeue | Continue:
        """Report an error in the trial's status, or fail the trial if the error requires it.

        Raises the error again if the work queue is to retry the reconcile with back-off.
        """
        run, found = self.run, self._counted(error)
        if isinstance(found, Again):
            raise error
        if is_finished(run.trial.status):
            await self._warn_of_clean_up(error, found.reason)
            raise error
        if isinstance(found, Ends):
            return await self._fail(self._failure(error, found))
        if isinstance(error, SourceError):
            return await self._wait_for_task(error)
        end = deadlines.stop_or_deadline(run.trial, run.clock())
        if found.ends and end is not None and not is_unread(run.trial, end, run.hint):
            return await self._fail(end)
        return await self._give_up_or_show(error, found, decisions.Fail(found.reason, message(error)))

    def _counted(self, error: BaseException) -> Outcome:
        """Return what an error means, and count errors of the results volume in the metrics.

        If the trial's status or results could not be written, the pod must be read again before the trial fails because of its
        deadline.
        """
        if isinstance(error, StoreError) or (isinstance(error, ClusterError) and self.run.writer.refused):
            self.run.hint.read_at_deadline = False
        if isinstance(error, StoreError):
            self.metrics.store_failures.inc()
        return outcome(error)

    def _failure(self, error: BaseException, found: Ends) -> decisions.Fail | FailTrial:
        """Return the failure of a trial that the error ends. If the build of an image failed, the status lists it and its log."""
        if isinstance(error, ImageMissing):
            before = self.run.trial.status
            self.run.prepare(before.model_copy(update={"images": error.images}))
            return FailTrial(decisions.Fail(found.reason, str(error), "EnvironmentStartError"), before)
        text = f"spec.task: {error}" if isinstance(error, SourceError) else str(error)
        return decisions.Fail(found.reason, text, found.exception)

    async def _fail(self, failing: decisions.Fail | FailTrial) -> Requeue | Continue:
        """Fail the trial. If another error prevents that, report this error in the status.

        If an unexpected error prevents it repeatedly, fail the trial without storing its results.
        """
        try:
            return await self.act(failing)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error) or isinstance(found := self._counted(error), Again):
                raise
            failure = failing.failure if isinstance(failing, FailTrial) else failing
            found = Waits(RECONCILE_FAILED, ends=True) if isinstance(found, Ends) else found
            return await self._give_up_or_show(error, found, failure)

    async def _give_up_or_show(self, error: BaseException, found: Waits, failure: decisions.Fail) -> Requeue | Continue:
        """Report an error because of which the trial waits, and raise it. If the error has lasted too long, fail the trial."""
        run = self.run
        series = self.run.memory.errors.add(run.key, run.trial.metadata.uid, run.clock(), ends=found.ends)
        if series.ends_object:
            return await self.act(GiveUp(failure))
        if series.seconds >= found.after:
            await self._report(found, error)
        raise error

    async def _report(self, found: Waits, error: BaseException) -> None:
        """Write to the status why the trial waits, and emit an Event if the reason is new. Best effort, as the error is raised
        anyway."""
        before, text = holds(self.run.trial.status, "Reconciling"), message(error)
        new = before is None or before.reason != found.reason
        try:
            if new or found.reason != CONNECTION_LOST:  # the texts of an outage differ at each retry
                await self.run.wait(found.reason, text, seconds=None, gated=found.gated)
            if new:
                await self.run.writer.emit([Transition(found.reason, bounded(text), "Warning")])
        except Exception as second:
            logger.warning("could not report the error in the trial's status: %s", second)

    async def _warn_of_clean_up(self, error: BaseException, reason: str) -> None:
        """Emit one Event if the clean-up of a finished trial has failed for REPORT_SECONDS, because pods or files may remain."""
        series = self.run.memory.errors.add(self.run.key, self.run.trial.metadata.uid, self.run.clock(), ends=False)
        if series.passes(REPORT_SECONDS):
            text = bounded(f"the clean-up of the finished trial fails and is retried: {message(error)}")
            await self.run.writer.emit([Transition(reason, text, "Warning")])

    async def _wait_for_task(self, error: SourceError) -> Requeue | Continue:
        """Wait for an object that the trial refers to. After TASK_GRACE_SECONDS, report that it is missing.

        If the trial missed its deadline and its pod was not read after it, the operator still needs the task to read the pod. So it
        waits until the task is read or fetched, because a restarted operator reads all tasks again. If the task is missing, the
        trial fails as late as after an unexpected error.
        """
        run, trial, now = self.run, self.run.trial, self.run.clock()
        end, lasts = deadlines.stop_or_deadline(trial, now), False
        unread = end is not None and is_unread(trial, end, run.hint)
        if error.reason == FETCHING:
            pass  # the read in the background may be what fails each time; it continues, and then raises its error
        elif unread:
            lasts = self.run.memory.errors.add(run.key, trial.metadata.uid, now, ends=True).ends_object
        else:
            self.run.memory.errors.end(run.key)
        if end is not None and (lasts or not unread):
            return await self._fail(unless_unread(trial, end, run.hint, str(error)))
        created = trial.metadata.creation_timestamp
        if created is not None and abs(age := now - created.timestamp()) < TASK_GRACE_SECONDS:
            return Requeue(SOON_SECONDS if error.reason != FETCHING else max(SOON_SECONDS, TASK_GRACE_SECONDS - age))
        if error.reason == FETCHING and trial.status.has_own_step:  # the step continues to run meanwhile
            await run.write_step()
            return Requeue(error.retry_seconds) if end is not None else run.until_deadline(error.retry_seconds)
        images = error.images if isinstance(error, ImageMissing) else None
        requeue = await run.wait(error.reason, str(error), seconds=error.retry_seconds, images=images)
        return Requeue(error.retry_seconds) if end is not None else requeue
