"""One reconcile of one trial: observe, decide, act, until the trial has to wait."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable
from dataclasses import replace

from multistep.agents import script_of
from multistep.api.trial.failure_table import (
    ACCESS_DENIED,
    MADE_ROOM,
    POD_UNRESPONSIVE,
    RECONCILE_FAILED,
    RESTORE_FAILED,
    RESULT_UNKNOWN,
    VERIFIER_ENVIRONMENT_FAILED,
)
from multistep.api.trial.status import holds, is_finished
from multistep.api.trial.trial import MultiStepTrial, parse_trial, salvaged
from multistep.api.trial.values import FETCHING
from multistep.api.trial.waiting_reasons import CONNECTION_LOST, GATEWAY_UNAVAILABLE
from multistep.engine.journal.journal import AttemptLost, Journal
from multistep.engine.lifecycle import decisions, next_decision
from multistep.engine.lifecycle import stop_and_suspend as deadlines
from multistep.engine.lifecycle import stop_and_suspend as suspensions
from multistep.engine.lifecycle.decisions import PodFacts, ProtocolViolation, Situation, ViolationReason
from multistep.engine.lifecycle.failure_causes import unless_model_failed
from multistep.engine.lifecycle.pod_start import UNSCHEDULABLE
from multistep.engine.script.choose_checkpoint import blamed
from multistep.engine.status import trial_status
from multistep.engine.status.status_size import bounded
from multistep.errors import (
    CheckpointLost,
    ClusterError,
    Conflict,
    ContradictoryRecords,
    EgressError,
    EgressRefused,
    ExecKilled,
    GatewayError,
    GatewayUnavailable,
    InvalidSpec,
    NoCommonProtocol,
    NotFound,
    NotLeading,
    PodError,
    ResultsLost,
    SourceError,
    StoreError,
    StreamLost,
    Unavailable,
)
from multistep.kube.shard import LABEL_SHARD
from multistep.pods import pod_identity
from multistep.reconcile.queue.error_outcome import (
    REPORT_SECONDS,
    Again,
    Ends,
    Outcome,
    Waits,
    is_cancelled,
    is_of_another_server,
    message,
    outcome,
)
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, CONTINUE, SOON_SECONDS, Requeue, Result
from multistep.reconcile.trial.create_pods import TrialCreation
from multistep.reconcile.trial.owned_pods import PodHint, PodHints, former
from multistep.reconcile.trial.prepare_regrade import TrialRegrade
from multistep.reconcile.trial.session_state import (
    AgentStillRuns,
    DriveResult,
    Hooks,
    PausedBetweenSteps,
    Pods,
    Progressed,
    RootRequired,
    TransferQueued,
    VerifierRequired,
)
from multistep.reconcile.trial.write_status import Transition, task_warnings
from multistep.sources.load.load_trial import ImageMissing

logger = logging.getLogger(__name__)

TASK_GRACE_SECONDS = 5.0  # time until a missing task is reported: `multistep run` creates the trial first, then the task
MAX_POLL_SECONDS = 3600.0
STOP_SECONDS = 5.0  # maximum wait for the model gateway if the trial was stopped or reached a timeout
GATEWAY_RETRY_SECONDS = 10.0
_OF_LOADING = frozenset({FETCHING, "TaskUnavailable", ACCESS_DENIED, RECONCILE_FAILED, CONNECTION_LOST})  # waits that are over
POLL_JITTER = 0.1  # spreads the polls of trials that started together


class TrialReconcile(TrialCreation, TrialRegrade):
    """One reconcile of one trial; it writes the status after each change."""

    async def run(self) -> Requeue:
        """Decide and act until the trial has to wait."""
        if self._object["metadata"].get("deletionTimestamp"):
            return AT_NEXT_EVENT  # Kubernetes garbage collection deletes the objects that the trial owns
        try:
            self._writer = self._new_writer(parse_trial(self._object))
        except InvalidSpec as error:
            return await self._fail_unreadable(error)
        except Exception as error:
            logger.exception("parsing a trial")
            return await self._fail_unreadable(InvalidSpec(f"the trial cannot be read: {message(error)}"))
        return await self._run_until_wait()

    async def _run_until_wait(self) -> Requeue:
        while True:
            try:
                result = await self._step()
            except (Exception, asyncio.CancelledError) as error:
                if is_cancelled(error):
                    raise
                self._pods_known = False
                result = await self._end_in_status(error)
            else:
                if isinstance(result, Requeue):
                    self._t.errors.end(self._key)
            if isinstance(result, Requeue):
                return result
            if is_finished(self._trial.status):
                self._t.errors.end(self._key)  # later errors are those of the clean-up

    async def _step(self) -> Result:
        """Take one decision and act on it."""
        situation = await self._observe()
        if situation.pod is not None and situation.pod.shard != self._t.settings.shard and not is_finished(self._trial.status):
            return await self._wait_for_shard(situation.pod)
        hint = self._hint
        decision = self._unless_it_makes_room(_decide(situation, hint, self._t.hints))
        try:
            return await self._act(decision)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(decision, decisions.Drive | decisions.DriveWithoutVerifier):
                if _shows_nothing(error):
                    hint.was_not_read(message(error))
                elif isinstance(error, StreamLost) and not isinstance(error, ExecKilled):
                    hint.session_lost(str(error), self._t.clock())
            raise

    def _unless_it_makes_room(self, decision: decisions.Decision) -> decisions.Decision:
        """Return the decision; the end of the attempt if the trial releases its pods, so that other trials can be verified."""
        uid, made = self._trial.metadata.uid, sum(each.reason == MADE_ROOM for each in self._trial.status.attempts)
        if not isinstance(decision, decisions.Wait) or decision.reason != UNSCHEDULABLE or self._verifier is None:
            self._t.room.end(uid)
            return decision
        if not self._t.room.wait(uid, self._trial.metadata.namespace, self._t.clock(), made):
            return decision
        why = f"the verifiers of several trials wait for room: {decision.message}"
        if self._compares_verdicts:  # the step has its reward, which a new attempt could change
            return decisions.DriveWithoutVerifier(why)
        return decisions.FailAttempt(MADE_ROOM, why)

    # -- errors: each ends in the trial's status (reconcile.queue.error_outcome)

    async def _end_in_status(self, error: BaseException) -> Result:
        """Show an error in the trial's status, and end the trial if the error ends it. Raises the error if the work queue is to
        retry the reconcile with back-off."""
        found = self._counted(error)
        if isinstance(found, Again):
            raise error
        if is_finished(self._trial.status):
            await self._warn_of_clean_up(error, found.reason)
            raise error
        if isinstance(found, Ends):
            return await self._end_by(error, found)
        if isinstance(error, SourceError):
            return await self._wait_for_task(error)
        end = deadlines.cut_short(self._trial, self._t.clock())
        if found.ends and end is not None and not _is_unread(self._trial, end, self._hint):
            return await self._fail_or_show(self._act(end), end.reason, end.message)
        return await self._give_up_or_show(error, found, found.reason, message(error))

    def _counted(self, error: BaseException) -> Outcome:
        """Return what an error means. Count it if the results volume raised it; if the trial's status or results could not be
        written, the pod must be read again before the trial misses its deadline."""
        if isinstance(error, StoreError) or (isinstance(error, ClusterError) and self._writer.refused):
            self._hint.read_at_deadline = False
        if isinstance(error, StoreError):
            self._t.metrics.store_failures.inc()
        return outcome(error)

    async def _end_by(self, error: BaseException, found: Ends) -> Result:
        """Fail the trial because of the error."""
        if isinstance(error, ImageMissing):
            return await self._fail_or_show(self._fail_unbuilt(error), found.reason, str(error))
        text = f"spec.task: {error}" if isinstance(error, SourceError) else str(error)
        return await self._fail_or_show(self._act(decisions.Fail(found.reason, text, found.exception)), found.reason, text)

    async def _fail_or_show(self, failing: Awaitable[Result], reason: str, text: str) -> Result:
        """Await the end of a trial that fails with this reason and text. Show in the status what prevents the end; if an unexpected
        error prevents it repeatedly, fail the trial without storing its results."""
        try:
            return await failing
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error) or isinstance(found := self._counted(error), Again):
                raise
            found = Waits(RECONCILE_FAILED, ends=True) if isinstance(found, Ends) else found
            return await self._give_up_or_show(error, found, reason, text)

    async def _give_up_or_show(self, error: BaseException, found: Waits, reason: str, text: str) -> Result:
        """Show an error for which the trial waits, and raise it. If the error has lasted too long, fail the trial with this reason
        and text."""
        series = self._t.errors.add(self._key, self._trial.metadata.uid, self._t.clock(), ends=found.ends)
        if series.ends_object:
            return await self._give_up(reason, text)
        if series.seconds >= found.after:
            await self._report(found, error)
        raise error

    async def _give_up(self, reason: str, text: str) -> Result:
        """Fail the trial without anything that may fail again: its results are not stored.

        Its step's token is blocked, and the step's model usage counted, if the gateway answers within STOP_SECONDS."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._end_model_access()
        except Exception as error:
            logger.warning("the model usage of a failed trial could not be counted: %s", message(error))
        new = trial_status.failed(self._trial, reason, text, self._t.clock())
        try:
            await self._end(new)
        except (Conflict, NotFound, NotLeading, Unavailable):
            raise
        except Exception:
            logger.exception("the pods of a failed trial could not be released")
            await self._write(new)
        return CONTINUE

    async def _report(self, found: Waits, error: BaseException) -> None:
        """Write what the trial waits for to its status, and emit an Event if it is new. Best effort: the error is raised anyway."""
        before, text = holds(self._trial.status, "Reconciling"), message(error)
        new = before is None or before.reason != found.reason
        try:
            if new or found.reason != CONNECTION_LOST:  # the texts of an outage differ at each retry
                await self._wait(found.reason, text, seconds=None, gated=found.gated)
            if new:
                await self._writer.emit([Transition(found.reason, bounded(text), "Warning")])
        except Exception as second:
            logger.warning("could not report the error in the trial's status: %s", second)

    async def _warn_of_clean_up(self, error: BaseException, reason: str) -> None:
        """Emit one Event if the clean-up of a finished trial has failed for REPORT_SECONDS: pods or files may stay."""
        series = self._t.errors.add(self._key, self._trial.metadata.uid, self._t.clock(), ends=False)
        if series.passes(REPORT_SECONDS):
            text = bounded(f"the clean-up of the finished trial fails and is retried: {message(error)}")
            await self._writer.emit([Transition(reason, text, "Warning")])

    async def _wait_for_shard(self, pod: PodFacts) -> Result:
        """Wait, because the trial's shard label was changed while it ran: the operator of the former shard has the trial's results
        so far."""
        former = f"to {pod.shard}" if pod.shard else "away"
        message = f"the trial's shard was changed: another operator created pod {pod.name}. Set it back ({LABEL_SHARD}: {former})"
        if (end := deadlines.cut_short(self._trial, self._t.clock())) is not None:
            return await self._act(_unless_unread(self._trial, end, self._hint, message))
        return await self._wait("ShardChanged", f"{message}, or delete the pod to start a new attempt here", seconds=None)

    async def _wait_for_task(self, error: SourceError) -> Result:
        """Wait for an object that the trial refers to; report that it is missing after TASK_GRACE_SECONDS.

        After the deadline, a pod that was not read since cannot be read without the task. So wait for the end of the task's read or
        fetch, as a restarted operator reads all tasks again; a missing task ends the trial as late as an unexpected error.
        """
        now, created = self._t.clock(), self._trial.metadata.creation_timestamp
        end, lasts = deadlines.cut_short(self._trial, now), False
        unread = end is not None and _is_unread(self._trial, end, self._hint)
        if error.reason == FETCHING:
            pass  # a read in the background may be what fails each time: it goes on, then raises its error
        elif unread:
            lasts = self._t.errors.add(self._key, self._trial.metadata.uid, now, ends=True).ends_object
        else:
            self._t.errors.end(self._key)
        if end is not None and (lasts or not unread):
            end = _unless_unread(self._trial, end, self._hint, str(error))
            return await self._fail_or_show(self._act(end), end.reason, end.message)
        if created is not None and abs(age := now - created.timestamp()) < TASK_GRACE_SECONDS:
            return Requeue(SOON_SECONDS if error.reason != FETCHING else max(SOON_SECONDS, TASK_GRACE_SECONDS - age))
        if error.reason == FETCHING and self._trial.status.has_own_step:  # the step runs on meanwhile
            await self._write(trial_status.at_current_step(self._trial, now))
            return Requeue(error.retry_seconds) if end is not None else self._until_deadline(error.retry_seconds)
        images = error.images if isinstance(error, ImageMissing) else None
        requeue = await self._wait(error.reason, str(error), seconds=error.retry_seconds, images=images)
        return Requeue(error.retry_seconds) if end is not None else requeue

    async def _fail_unbuilt(self, error: ImageMissing) -> Result:
        """Fail a trial whose image cannot be built. The status lists the build, with the URL of its log."""
        before, listed = self._trial.status, {"images": error.images}
        self._writer.trial = self._trial.model_copy(update={"status": before.model_copy(update=listed)})
        return await self._fail(error.reason, str(error), exception="EnvironmentStartError", before=before)

    async def _fail_unreadable(self, error: InvalidSpec) -> Requeue:
        """Fail an unfinished trial that cannot be parsed; clean up a finished one, according to the fields that can be parsed."""
        self._writer, self._fully_parsed = self._new_writer(salvaged(self._object)), False
        if not is_finished(self._trial.status):
            await self._fail("InvalidSpec", str(error), exception="ValidationError")
        return await self._run_until_wait()

    @property
    def _hint(self) -> PodHint:
        return self._t.hints.of(self._key, self._trial.status.pod_uid)

    async def _observe(self) -> Situation:
        trial = self._trial
        if not is_finished(trial.status) and not suspensions.must_have_no_pod(trial):
            await self._load()
        attempt = trial.status.attempt or 1
        first_name = pod_identity.pod_name(trial.metadata.name, attempt, as_root=False)
        if not self._pods_known:
            named, name = trial.status.verifier, trial.status.pod_name
            if trial.status.attempt is None and is_finished(trial.status):
                name = first_name  # the trial was stopped after a reconcile created its pod, and before it wrote the attempt
            self._pod = await self._t.pods.get(trial, name)
            self._verifier = await self._t.pods.get(trial, named.pod_name if named else None)
        self._pods_known = False
        return Situation(
            trial=trial,
            pod=self._pod,
            pod_name=first_name,
            now=self._t.clock(),
            start_timeout=self._loaded.plan.start_timeout if self._loaded else 0.0,
            verifier=self._verifier,
            violation=self._hint.violation,
            compares_verdicts=self._compares_verdicts,
            verified_apart=self._verified_apart,
        )

    async def _load(self) -> None:
        """Load the trial's task. A trial that was stopped or missed its deadline does not depend on its task: it waits for it at
        most STOP_SECONDS, to store its results, unless its pod must be read first."""
        trial = self._trial
        end = deadlines.cut_short(trial, self._t.clock())
        if end is None or _is_unread(trial, end, self._hint):
            self._loaded = await self._t.loader.load(trial)
            self._t.loaded(self._key)
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                self._loaded = await self._t.loader.load(trial)
        except Exception as error:
            logger.warning("%s; its results are not stored: %s", end.message, message(error))

    async def _act(self, decision: decisions.Decision) -> Result:
        match decision:
            case decisions.StartAttempt():
                if (prepared := await self._prepare_regrade()) is not None:
                    return prepared
                return await self._start_first_attempt(decision)
            case decisions.CreatePod():
                return await self._create_pod()
            case decisions.Adopt():
                return await self._adopt()
            case decisions.CreateVerifierPod():
                return await self._create_verifier_pod()
            case decisions.AdoptVerifierPod():
                return await self._adopt_verifier()
            case decisions.Wait():
                return await self._wait(decision.reason, decision.message, seconds=decision.seconds, gated=decision.gated)
            case decisions.Suspend():
                await self._suspend()
                return AT_NEXT_EVENT
            case decisions.Resume():
                return await self._resume()
            case decisions.FailAttempt() | decisions.PhaseDied() | decisions.Fail():
                return await self._interrupt(decision)
            case decisions.CleanUp():
                return await self._clean_up(decision)
            case decisions.Drive():
                return await self._drive()
            case decisions.DriveWithoutVerifier(why):
                return await self._drive(lost=why)

    async def _start_first_attempt(self, first: decisions.StartAttempt) -> Result:
        start = await self._t.starting_points.find(self._trial, self._loaded_now)
        if isinstance(start, decisions.Wait | decisions.Fail):
            return await self._act(start)
        result = await self._start_attempt(first.attempt, first.pod_name, image_user=None, start=start)
        await self._writer.emit(task_warnings(self._loaded_now.task, self._trial.spec))
        return result

    async def _interrupt(self, decision: decisions.FailAttempt | decisions.PhaseDied | decisions.Fail) -> Result:
        """Count the model usage of the interrupted step, then end the attempt or the trial.

        If the trial was stopped or reached a timeout, wait at most STOP_SECONDS for the gateway: it blocks the step's token before
        it answers, and keeps the usage in its ledger.
        """
        ends = isinstance(decision, decisions.Fail)
        try:
            async with asyncio.timeout(STOP_SECONDS if ends else None):
                found = await self._end_model_access(died=isinstance(decision, decisions.PhaseDied))
                decision = unless_model_failed(decision, self._trial, found, self._t.clock())
        except (GatewayError, TimeoutError) as error:
            if not ends:
                return await self._wait(GATEWAY_UNAVAILABLE, str(error), seconds=GATEWAY_RETRY_SECONDS)
        match decision:
            case decisions.FailAttempt():
                return await self._end_failed_attempt(decision)
            case decisions.PhaseDied():
                return await self._finish_killed_phase(decision)
            case decisions.Fail():
                return await self._fail(decision.reason, decision.message, exception=decision.exception)

    async def _suspend(self) -> None:
        """Write the suspension to the status. If the status shows that the pod was released, delete the pod again, because the
        operator may have crashed before the deletion."""
        await self._write(trial_status.suspended(self._trial, self._t.clock()))
        if self._trial.status.pod_uid is None:
            await self._t.pods.remove(self._trial, former(self._trial))

    async def _resume(self) -> Result:
        now = self._trial.status
        assert now.attempt is not None and now.pod_name is not None
        return await self._start_attempt(now.attempt, now.pod_name, image_user=now.image_user)

    async def _drive(self, lost: str = "") -> Result:
        """Continue the script in exec sessions. While a phase runs, open no session until a pod becomes unready, by which its
        runner signals a result. lost: why the verifier's pod cannot be used."""
        assert self._pod is not None
        if (hosted := self._plan.hosted) is not None and hosted.spec.uses_gateway and self._t.models is not None:
            self._t.models.remember(hosted, self._trial.metadata.namespace)
        hint = self._t.hints.of(self._key, self._pod.uid)
        hint.node = self._pod.node
        quiet = hint.quiet_until - self._t.clock()
        ready = self._pod.ready and (self._verifier is None or self._verifier.ready) and not lost
        paused = quiet if ready else 0.0 if lost else min(quiet, hint.unready_until - self._t.clock())
        if paused > 0:
            await self._write(trial_status.at_current_step(self._trial, self._t.clock()))
            return self._until_deadline(paused)
        agent, both_pods = script_of(self._plan), Pods(self._pod, None if lost else self._verifier, lost)
        hooks = Hooks(
            self._write_progress,
            self._release_verifier,
            expired=lambda: deadlines.cut_short(self._trial, self._t.clock()) is not None,
            changed=lambda: self._t.changed(self._trial.metadata),
        )
        shown = holds(self._trial.status, "Reconciling")
        if shown is not None and shown.reason in _OF_LOADING and not (shown.reason == CONNECTION_LOST and hint.error):
            await self._write(trial_status.at_current_step(self._trial, self._t.clock()))  # not after ``acquire``: see there
        if not self._t.execs.acquire(self._key, 1 + self._plan.separate + self._plan.switches_networks):
            hint.read_at_deadline = False  # the pod is read when the trial has its slot
            return self._until_deadline(None)
        before, hint.quiet_until = self._trial.status.steps, 0.0  # a retry after a failed session must not wait for the next poll
        try:
            left = await self._run_session(self._t.driver.drive(self._trial, self._loaded_now, agent, both_pods, hooks), hint)
        except CheckpointLost as error:
            return await self._act(decisions.FailAttempt(RESTORE_FAILED, str(error)))
        except ResultsLost as error:
            return await self._act(decisions.FailAttempt(VERIFIER_ENVIRONMENT_FAILED, str(error)))
        except NoCommonProtocol as error:
            return await self._wait("RunnerProtocol", str(error), seconds=self._t.settings.poll_seconds)
        except GatewayUnavailable as error:
            hint.was_not_read(str(error))
            return await self._wait(GATEWAY_UNAVAILABLE, str(error), seconds=GATEWAY_RETRY_SECONDS)
        finally:
            self._t.execs.release(self._key)
        if isinstance(left, AgentStillRuns):
            await self._write(trial_status.at_current_step(self._trial, self._t.clock()))
        elif (ended := await self._end_drive(left)) is not None:
            return ended
        found_nothing = not ready and quiet > 0 and self._trial.status.steps == before
        return self._until_deadline(hint.phase_runs(self._t.clock(), self._until_poll(), ready=ready, found_nothing=found_nothing))

    async def _end_drive(
        self, left: Progressed | PausedBetweenSteps | RootRequired | VerifierRequired | TransferQueued
    ) -> Result | None:
        """Act on the result of a drive. Return None if a phase is running: the trial then waits for the phase's end."""
        match left:
            case Progressed(journal):
                return await self._end_script(journal)
            case VerifierRequired():
                return await self._request_verifier(left)
            case RootRequired(image_user):
                attempt = self._trial.status.attempt or 1
                name = pod_identity.pod_name(self._trial.metadata.name, attempt, as_root=True)
                return await self._start_attempt(attempt, name, image_user=image_user)
            case TransferQueued(journal):
                await self._write_running(journal)
                return CONTINUE if self._t.transfers.acquire(self._key) else self._until_deadline(None)
            case PausedBetweenSteps(journal):
                await self._write(trial_status.paused(self._trial, journal, self._t.clock()))
                return CONTINUE

    async def _end_script(self, journal: Journal) -> Result | None:
        """Act on the end of the attempt's script. Return None if the script has not finished."""
        if (lost := journal.lost) is not None:
            await self._write_running(journal)  # write the steps with their usage before the attempt ends
            return await self._act(_end_of(blamed(self._trial.status, lost)))
        return await self._finish(journal) if journal.finished else None

    def _until_poll(self) -> float:
        """Return the seconds until the next poll: as many as the step has run so far, within bounds, so that long phases cost few
        sessions."""
        steps = self._trial.status.steps
        started = steps[-1].start_time if steps else None
        taken = self._t.clock() - started.timestamp() if started else 0.0
        least = self._t.settings.poll_seconds
        return max(least, min(taken, MAX_POLL_SECONDS)) * random.uniform(1.0, 1.0 + POLL_JITTER)

    async def _run_session(self, session: Awaitable[DriveResult], hint: PodHint) -> DriveResult:
        """Await the exec sessions. Record an error in the hint if only the pod's containers can have caused it. Errors that the
        connection may have caused, such as a broken stream, are not recorded."""
        try:
            left = await session
        except (PodError, NotFound) as error:
            if (reason := _violation_reason(error)) is not None:
                hint.violation = ProtocolViolation.after(hint.violation, str(error), self._t.clock(), reason)
            raise
        hint.violation = None
        hint.worked(self._t.clock())
        return left

    async def _write_progress(self, journal: Journal, isolation: str) -> None:
        await self._write_running(journal, isolation=isolation)


def _decide(situation: Situation, hint: PodHint, hints: PodHints) -> decisions.Decision:
    """Return the decision. If the trial passed its deadline in a step, first continue the script once: agent and verifier may have
    finished while the operator, the API server or the results volume was down, and are not to be blamed for that time.

    A running pod with which no exec session succeeds then is the agent's doing if those with another pod of the node work, and no
    verifier's pod is in use, whose sessions may be those that broke. The result is unknown if the others break, too, or if a
    verifier's pod has no files of the agent yet. If nothing shows the cause, the missed deadline decides."""
    decision, trial = next_decision.decide(situation), situation.trial
    if not (isinstance(decision, decisions.Fail) and _is_unread(trial, decision, hint)):
        return decision
    unlimited = {"active_deadline_seconds": None, "suspend": False}  # a trial to suspend has missed its deadline all the same
    endless = trial.model_copy(update={"spec": trial.spec.model_copy(update=unlimited)})
    match next_decision.decide(replace(situation, trial=endless)):
        case decisions.FailAttempt(message=why):
            return _unless_unread(trial, decision, hint, why)
        case decisions.Drive() if hint.breaks_sessions(situation.now):
            return _of_broken_sessions(trial, decision, hint, hints.node_works(hint))
        case decisions.Drive() if hint.cannot_be_read:
            return _unless_unread(trial, decision, hint, hint.error)
        case decisions.Drive() as drive:
            hint.read_at_deadline = True
            return drive
    return decision


def _of_broken_sessions(trial: MultiStepTrial, end: decisions.Fail, hint: PodHint, node_works: bool | None) -> decisions.Fail:
    """Return the failure of a trial all of whose exec sessions broke after its deadline."""
    verifier = trial.status.verifier
    if node_works is False or (verifier is not None and verifier.untouched):
        return _unless_unread(trial, end, hint, hint.error)
    text = f"{end.message}; all exec sessions with its pod broke: {hint.error}"
    return decisions.Fail(POD_UNRESPONSIVE if node_works and verifier is None else end.reason, text)


def _is_unread(trial: MultiStepTrial, end: decisions.Fail, hint: PodHint) -> bool:
    """Return whether a trial missed its deadline in a step, and its pod was not read since."""
    return end.reason == deadlines.DEADLINE_EXCEEDED and trial.status.has_own_step and not hint.read_at_deadline


def _unless_unread(trial: MultiStepTrial, end: decisions.Fail, hint: PodHint, why: str) -> decisions.Fail:
    """Return the failure of a trial whose pod is not read any more, for the reason ``why``. If the pod was not read since the
    deadline, the failure says nothing about the agent: it may have finished in time."""
    if not _is_unread(trial, end, hint):
        return end
    return decisions.Fail(RESULT_UNKNOWN, f"{end.message}; what its agent had finished is unknown, as its pod was not read: {why}")


def _shows_nothing(error: BaseException) -> bool:
    """Return whether an error of a drive leaves unknown what the pod has finished, and is not the doing of the pod's containers."""
    found = outcome(error)
    return isinstance(error, Unavailable | NotFound) or (isinstance(found, Waits) and found.ends)


def _end_of(lost: AttemptLost) -> decisions.Fail | decisions.FailAttempt:
    return (decisions.Fail if lost.final else decisions.FailAttempt)(lost.reason, lost.message)


def _violation_reason(error: PodError | NotFound) -> ViolationReason | None:
    """Return the reason with which the trial or its attempt fails if this error repeats. None: the connection may have caused the
    error, or the kubelet will report its cause."""
    match error:
        case NotFound():
            return "PodUnknown" if is_of_another_server(error) else None
        case ExecKilled():
            return "ExecSessionsKilled"
        case ContradictoryRecords():
            return "Tampered"
        case EgressRefused(invalid_hosts=invalid):
            return "InvalidSpec" if invalid else "EgressRefused"
        case StreamLost() | NoCommonProtocol() | EgressError():
            return None
    return "RunnerBroken"
