"""Continues the trial's script in exec sessions if a result may be available, and acts on how the sessions ended."""

from __future__ import annotations

import random
from typing import Final

from multistep.agents import script_of
from multistep.api.trial.failure_table import ACCESS_DENIED, RECONCILE_FAILED, RESTORE_FAILED, VERIFIER_ENVIRONMENT_FAILED
from multistep.api.trial.status import holds
from multistep.api.trial.values import FETCHING
from multistep.api.trial.waiting_reasons import CONNECTION_LOST, GATEWAY_UNAVAILABLE, JUDGE_UNANSWERED
from multistep.engine.journal.journal import Journal
from multistep.engine.lifecycle import decisions
from multistep.engine.lifecycle import stop_and_suspend as deadlines
from multistep.engine.lifecycle.retry_by_spec import retried_by_spec
from multistep.engine.script.choose_checkpoint import blame_checkpoint
from multistep.engine.status import trial_status
from multistep.engine.status.status_size import bounded
from multistep.errors import (
    CheckpointLost,
    GatewayUnavailable,
    NoCommonProtocol,
    ResultsLost,
)
from multistep.pods import pod_identity
from multistep.reconcile.admission.admission import Admission
from multistep.reconcile.trial.create_pods import release_verifier, request_verifier
from multistep.reconcile.trial.end_attempt import GATEWAY_RETRY_SECONDS
from multistep.reconcile.trial.owned_pods import TrialPods
from multistep.reconcile.trial.pod_hints import PodHint
from multistep.reconcile.trial.run_sessions import Driver
from multistep.reconcile.trial.session_blame import recording_violations
from multistep.reconcile.trial.session_state import (
    AgentStillRuns,
    DriveResult,
    Hooks,
    PausedBetweenSteps,
    Pods,
    Postponed,
    Progressed,
    RootRequired,
    TransferQueued,
    VerifierRequired,
)
from multistep.reconcile.trial.start_attempt import start_attempt
from multistep.reconcile.trial.trial_run import Continue, Finish, Observed, Result, TrialRun

MAX_POLL_SECONDS: Final = 3600.0
POLL_JITTER: Final = 0.1  # random extension of each wait, so that trials that started together are not polled together
_OF_LOADING: Final = frozenset({FETCHING, "TaskUnavailable", ACCESS_DENIED, RECONCILE_FAILED, CONNECTION_LOST})
"""Reasons with which a trial waits only until its task is loaded."""


async def continue_script(
    run: TrialRun, observed: Observed, driver: Driver, admission: Admission, pods: TrialPods, *, lost: str = ""
) -> Result:
    """Continue the script, and return when or how to continue the trial.

    While a phase runs, no session is opened until a pod becomes unready, which is how its runner signals a result. ``lost`` is why
    the verifier's pod cannot be used, "" if it can.
    """
    pod, verifier = observed.pods.agent, observed.pods.verifier
    assert pod is not None
    driver.remember_keys(run.trial, observed.plan)
    hint = run.memory.hints.of(run.key, pod.uid)
    hint.node = pod.node
    quiet = hint.quiet_until - run.clock()
    ready = pod.ready and (verifier is None or verifier.ready) and not lost
    paused = quiet if ready else 0.0 if lost else min(quiet, hint.unready_until - run.clock())
    if paused > 0:
        await run.write_step()
        return run.until_deadline(paused)
    shown = holds(run.trial.status, "Reconciling")
    if shown is not None and shown.reason in _OF_LOADING and not (shown.reason == CONNECTION_LOST and hint.error):
        await run.write_step()  # this write must precede the slots, so that none is held during it
    if not admission.execs.acquire(run.key, 1 + observed.plan.separate + observed.plan.switches_networks):
        admission.transfers.carry(run.key)  # keep a slot for transfers until the next session
        hint.read_at_deadline = False  # the pod is read once the trial has its slot
        return run.until_deadline(None)
    before, hint.quiet_until = run.trial.status.steps, 0.0  # a retry after a failed session must not wait for the next poll
    both = Pods(pod, None if lost else verifier, lost)
    try:
        hint.answered = False
        with admission.execs.using(run.key), recording_violations(run, hint):
            left = await driver.drive(run.trial, observed.task, script_of(observed.plan), both, _hooks(run, observed, pods, hint))
    except CheckpointLost as error:
        return decisions.FailAttempt(RESTORE_FAILED, str(error))
    except ResultsLost as error:
        return decisions.FailAttempt(VERIFIER_ENVIRONMENT_FAILED, str(error))
    except NoCommonProtocol as error:
        return await run.wait("RunnerProtocol", str(error), seconds=run.settings.poll_seconds)
    except GatewayUnavailable as error:
        hint.was_not_read(str(error))
        return await run.wait(GATEWAY_UNAVAILABLE, str(error), seconds=GATEWAY_RETRY_SECONDS)
    if (result := await _after_sessions(run, observed, left, admission)) is not None:
        return result
    found_nothing = not ready and quiet > 0 and run.trial.status.steps == before
    return run.until_deadline(hint.phase_runs(run.clock(), _until_poll(run), ready=ready, found_nothing=found_nothing))


def _hooks(run: TrialRun, observed: Observed, pods: TrialPods, hint: PodHint) -> Hooks:
    async def report(journal: Journal, isolation: str) -> None:
        await run.write_progress(journal, observed.pods.agent, isolation=isolation)

    return Hooks(
        report,
        dismiss=lambda step: release_verifier(run, pods, step),
        expired=lambda: deadlines.stop_or_deadline(run.trial, run.clock()) is not None,
        answered=lambda: run.memory.hints.runner_answered(hint, run.clock()),
    )


async def _after_sessions(run: TrialRun, observed: Observed, left: DriveResult, admission: Admission) -> Result | None:
    """Act on the result of the sessions. Return None if a phase is running, for whose end the trial waits."""
    match left:
        case AgentStillRuns():
            await run.write_step()
            return None
        case Progressed(journal):
            if (end := journal.lost) is not None:
                await run.write_progress(journal, observed.pods.agent)  # store the steps with their usage before the attempt ends
                end = blame_checkpoint(run.trial.status, end)
                return (decisions.Fail if end.final else decisions.FailAttempt)(end.reason, end.message)
            if not journal.finished:
                return None
            if (again := retried_by_spec(run.trial, journal)) is not None:
                await run.write_progress(journal, observed.pods.agent)
            return again or Finish(journal)
        case VerifierRequired():
            return await request_verifier(run, observed.pods.agent, left)
        case RootRequired(image_user):
            attempt = run.trial.status.attempt or 1
            name = pod_identity.pod_name(run.trial.metadata.name, attempt, as_root=True)
            return await start_attempt(run, observed, attempt, name, image_user=image_user)
        case TransferQueued(journal):
            await run.write_progress(journal, observed.pods.agent)
            return Continue() if admission.transfers.acquire(run.key) else run.until_deadline(None)
        case Postponed(journal, seconds, why):
            await run.write_progress(journal, observed.pods.agent)
            return await run.wait(JUDGE_UNANSWERED, bounded(why), seconds=seconds)
        case PausedBetweenSteps(journal):
            await run.write(trial_status.paused(run.trial, journal, run.clock()))
            return Continue()


def _until_poll(run: TrialRun) -> float:
    """Return the seconds until the next poll of the pod, which are as many as the step has run so far, within bounds.

    So a long phase needs few sessions.
    """
    steps = run.trial.status.steps
    started = steps[-1].start_time if steps else None
    taken = run.clock() - started.timestamp() if started else 0.0
    least = run.settings.poll_seconds
    return max(least, min(taken, MAX_POLL_SECONDS)) * random.uniform(1.0, 1.0 + POLL_JITTER)
