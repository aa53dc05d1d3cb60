"""Ends attempts and trials: counts model usage, writes results and the final status, and deletes what is no longer needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from multistep.api.trial.failure_table import AGENT_SETUP_FAILED, SOURCE_UNUSABLE
from multistep.api.trial.status import TrialStatus, Usage
from multistep.api.trial.values import AGENT, AGENT_SETUP
from multistep.api.trial.waiting_reasons import GATEWAY_UNAVAILABLE
from multistep.engine.journal.journal import Journal, StepException
from multistep.engine.lifecycle import decisions, next_decision
from multistep.engine.lifecycle.failure_causes import Interruption, unless_model_failed
from multistep.engine.lifecycle.retry_by_spec import retried_by_spec
from multistep.engine.plan.judge_plan import access_names
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.score.usage_totals import SETUP_ACCESS, ModelReport, parse_report, total_usage
from multistep.engine.script.compare_verdicts import with_missed_comparison
from multistep.engine.script.trial_script import add_trial_rewards, copy_exception_to_trial, goes_on
from multistep.engine.status import trial_status
from multistep.errors import Conflict, GatewayError, NotFound, NotLeading, Unavailable
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.resources import TRIALS
from multistep.pods import pod_identity
from multistep.reconcile.models.model_gateway import ModelAccess
from multistep.reconcile.queue.error_outcome import message
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, Requeue
from multistep.reconcile.trial.checkpoint_transfers import Checkpointing
from multistep.reconcile.trial.complete_results import Finisher
from multistep.reconcile.trial.owned_pods import TrialPods, named_verifiers
from multistep.reconcile.trial.trial_run import STOP_SECONDS, Continue, FailTrial, Finish, Observed, Result, TrialRun
from multistep.sources.load.load_trial import TrialLoader

logger = logging.getLogger(__name__)

GATEWAY_RETRY_SECONDS = 10.0


async def interrupt(
    run: TrialRun, observed: Observed, decision: Interruption, models: ModelAccess | None, checkpointing: Checkpointing
) -> Result:
    """Count the model usage of the interrupted step, then end the attempt or the trial.

    If the trial ends, for example at its deadline, the operator waits for the gateway at most STOP_SECONDS. That is safe, because
    the gateway blocks the step's token before it answers, and keeps the usage in its ledger.
    """
    ends, setup_usage = isinstance(decision, decisions.Fail), None
    try:
        async with asyncio.timeout(STOP_SECONDS if ends else None):
            reports, setup_usage = await _end_model_access(run, models, died=isinstance(decision, decisions.PhaseDied))
            for report in reports:
                decision = unless_model_failed(decision, run.trial, report, run.clock())
    except (GatewayError, TimeoutError) as error:
        if not ends:
            return await run.wait(GATEWAY_UNAVAILABLE, str(error), seconds=GATEWAY_RETRY_SECONDS)
    match decision:
        case decisions.FailAttempt():
            return await _end_failed_attempt(run, observed, decision, checkpointing)
        case decisions.PhaseDied():
            finished = _end_killed_phase(run, observed.plan, decision, setup_usage)
            if (again := retried_by_spec(run.trial, finished.journal)) is None:
                return finished
            steps = [trial_status.step_status(each) for each in finished.journal.steps]
            run.prepare(run.trial.status.model_copy(update={"steps": steps}))
            return await _end_failed_attempt(run, observed, again, checkpointing)
        case decisions.Fail():
            return FailTrial(decision)


async def _end_model_access(
    run: TrialRun, models: ModelAccess | None, *, died: bool = False
) -> tuple[Sequence[ModelReport], Usage | None]:
    """Block the tokens of the step or the agent's setup that the end of the attempt interrupts. Raises GatewayUnavailable.

    Return the gateway's reports on agent and simulated user in the step, whose usage is added to the status, and the usage of the
    setup. If ``died`` is true, the token of the setup is blocked even if a step has started.
    """
    if models is None:
        return (), None
    await _count_judge_usage(run, models)
    if not run.trial.spec.agent.uses_gateway:
        return (), None
    found = await _count_interrupted_usage(run, models)
    if run.trial.spec.agent.captures and run.trial.status.has_own_step:  # its attempt has no samples
        await models.delete_tokens(run.trial, run.trial.status.steps[-1].name)
    began = run.trial.status.node_name is not None  # written with the first progress of the attempt
    if began and (died or not run.trial.status.has_own_step):
        return found, parse_report(await models.close(run.trial, SETUP_ACCESS)).usage  # usually the script does this
    return found, None


async def _count_judge_usage(run: TrialRun, models: ModelAccess) -> None:
    """Block the judge's tokens of the step that the end of the attempt interrupts, and add what they used to the status. Raises
    GatewayUnavailable."""
    steps = run.trial.status.steps
    if run.trial.spec.models.judge is None or not run.trial.status.has_own_step or steps[-1].completion_time is not None:
        return
    names = [name for apart in (False, True) for name in access_names(steps[-1].name, apart=apart)]
    found = await asyncio.gather(*(models.close_judge(run.trial, name) for name in names))
    usage = total_usage(parse_report(report).usage for report in found)
    run.prepare(run.trial.status.model_copy(update={"steps": [*steps[:-1], steps[-1].model_copy(update={"judge_usage": usage})]}))


async def _count_interrupted_usage(run: TrialRun, models: ModelAccess) -> Sequence[ModelReport]:
    """Block the tokens of the step that the end of the attempt interrupts, and add the step's model usage to the status.

    Return the gateway's reports on agent and simulated user, () if no step runs or the script has already read them. Usually the
    script does all this, but it cannot continue without the attempt's pod. Raises GatewayUnavailable.
    """
    steps = run.trial.status.steps
    if not run.trial.status.has_own_step or steps[-1].usage is not None:
        return ()
    name = steps[-1].name
    found, usages = [parse_report(await models.close(run.trial, name))], dict[str, Usage | None]()
    usages["usage"] = found[0].usage
    if run.trial.spec.models.user is not None:
        found.append(parse_report(await models.close(run.trial, name, "user")))
        usages["user_usage"] = found[1].usage
    run.prepare(run.trial.status.model_copy(update={"steps": [*steps[:-1], steps[-1].model_copy(update=usages)]}))
    return found


async def _end_failed_attempt(
    run: TrialRun, observed: Observed, failure: decisions.FailAttempt, checkpointing: Checkpointing
) -> Result:
    """Record an attempt that an infrastructure failure ended. Then start the next attempt, or fail the trial without a reward."""
    trial, now = run.trial, run.clock()
    run.memory.hints.forget(run.key)
    failed = trial_status.attempt_failed(trial, failure.reason, failure.message, now)
    number = (trial.status.attempt or 1) + 1
    retries, counted = trial.spec.infrastructure_retries, next_decision.count_failed_attempts(failed.attempts)
    if counted > retries:
        run.prepare(failed)
        message = f"{failure.message}; this was attempt {counted} of {retries + 1}"
        return FailTrial(decisions.Fail(failure.reason, message), before=trial.status)
    plan = observed.plan
    resumed, refused = await checkpointing.last(trial, failed, plan)
    if resumed is None and plan.branch.kept:
        return _fail_unusable(run, failed, [failure.message, *refused])
    if refused:
        failed = trial_status.attempt_failed(trial, failure.reason, "; ".join([failure.message, *refused]), now)
    again = trial.model_copy(update={"status": failed})
    name = pod_identity.pod_name(trial.metadata.name, number, as_root=failed.image_user is not None)
    await run.write(trial_status.attempt_started(again, number, name, plan.task_name, failed.image_user, now, resumed=resumed))
    return Continue()


def _fail_unusable(run: TrialRun, failed: TrialStatus, why: Sequence[str]) -> FailTrial:
    """Fail a trial whose copy of another trial's checkpoint cannot be used.

    The trial cannot restart without the copy, because the other trial ran the first steps. The agent is not to blame, because it
    has not changed the copy.
    """
    before = run.trial.status
    run.prepare(failed)
    return FailTrial(decisions.Fail(SOURCE_UNUSABLE, "; ".join(why)), before=before)


def _end_killed_phase(run: TrialRun, plan: TrialPlan, death: decisions.PhaseDied, setup_usage: Usage | None) -> Finish:
    """Finish a trial in which a phase ended its own container.

    The runner's records are lost with the container, so the steps are read from the status.
    """
    known = run.trial.status
    journal = Journal(steps=[trial_status.step_run(step) for step in known.steps], finished=True)
    journal.class_ran_at = known.agent_setup_time.timestamp() if known.agent_setup_time else None
    journal.setup_usage = setup_usage
    if death.phase == AGENT_SETUP:
        journal.exception, journal.broken = StepException(death.type, death.message, AGENT_SETUP), True
    elif (last := journal.steps[-1]).completed_at is not None:  # between steps, only processes that the agent left behind run
        journal.exception = StepException(death.type, death.message, AGENT)
    else:
        last.untouched = death.untouched
        last.fail(StepException(death.type, death.message, death.phase or last.phase))
        last.completed_at = run.clock()
        goes_on(plan, plan.steps[len(journal.steps) - 1], last)  # called because it sets gate_passed and gate_failure
    add_trial_rewards(plan, journal)
    if plan.single:
        copy_exception_to_trial(journal)
    run.prepare(known.model_copy(update={"tampering": with_missed_comparison(known, plan)}))
    return Finish(journal)


async def finish(run: TrialRun, observed: Observed, journal: Journal, finisher: Finisher, pods: TrialPods) -> Continue:
    """Write the results and then the final status, so that the results of a Complete trial always exist."""
    await run.writer.require_current()
    run.prepare(run.trial.status.model_copy(update=run.container_fields(observed.pods.agent)))
    logs = await finisher.service_logs(run.trial, observed.task)
    now = run.clock()
    new = _final_status(run, journal, now)
    location = await finisher.finish(run.trial, observed.task, journal, new, now, logs=logs)
    await finisher.record(run.readable_object, new, journal)
    await _end(run, new.model_copy(update={"results": location.uri, "results_store": location.store}), pods)
    return Continue(observed.pods)  # the clean-up lists the pods that it deletes


def _final_status(run: TrialRun, journal: Journal, now: float) -> TrialStatus:
    """Return the status of a trial whose script has finished, without the location of the results."""
    if not journal.broken or journal.exception is None:
        return trial_status.complete(run.trial, journal, None, now)
    error = journal.exception
    reason = AGENT_SETUP_FAILED if error.phase == AGENT_SETUP else "EnvironmentFailed"
    return trial_status.failed(run.trial, reason, error.message, now, exception=error.type, journal=journal)


async def fail(run: TrialRun, observed: Observed, failing: FailTrial, finisher: Finisher, pods: TrialPods) -> Continue:
    """Write the results of a trial, if it has started and its task is loaded, and then the status Failed."""
    failure = failing.failure
    new = trial_status.failed(run.trial, failure.reason, failure.message, run.clock(), exception=failure.exception)
    if observed.loaded is not None and new.attempt is not None:
        await run.writer.require_current()
        logs = await finisher.service_logs(run.trial, observed.loaded)
        location = await finisher.finish_failed(run.trial, observed.loaded, new, run.clock(), logs=logs)
        new = new.model_copy(update={"results": location.uri, "results_store": location.store})
        await finisher.record(run.readable_object, new)
    else:
        await _try_to_record(run, new, finisher)
    await _end(run, new, pods, before=failing.before)
    return Continue()


async def _try_to_record(run: TrialRun, new: TrialStatus, finisher: Finisher) -> None:
    """Write the row of the history of a trial that ends without results, so that the row stays if the trial is deleted at once. If
    this fails, the trial ends all the same, and the clean-up writes the row."""
    await run.writer.require_current()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await finisher.record(run.readable_object, new)
    except Exception as error:
        logger.warning("the row of a failed trial could not be written to the history yet: %s", message(error))


async def give_up(
    run: TrialRun, failure: decisions.Fail, models: ModelAccess | None, pods: TrialPods, finisher: Finisher
) -> Continue:
    """Fail the trial without storing its results, because this may fail again.

    If the gateway answers within STOP_SECONDS, the token of the trial's step is blocked and the step's model usage is counted.
    """
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await _end_model_access(run, models)
    except Exception as error:
        logger.warning("the model usage of a failed trial could not be counted: %s", message(error))
    new = trial_status.failed(run.trial, failure.reason, failure.message, run.clock())
    await _try_to_record(run, new, finisher)
    try:
        await _end(run, new, pods)
    except (Conflict, NotFound, NotLeading, Unavailable):
        raise
    except Exception:
        logger.exception("the pods of a failed trial could not be released")
        await run.write(new)
    return Continue()


async def _end(run: TrialRun, new: TrialStatus, pods: TrialPods, *, before: TrialStatus | None = None) -> None:
    """Delete the pods' disruption budgets, so that a retained pod does not block a drain, and then write the final status."""
    names = [run.trial.status.pod_name] if run.trial.status.pod_name else []
    await pods.unguard(run.trial, [*names, *named_verifiers(run.trial)])
    await run.write(new, before=before)


async def clean_up(
    run: TrialRun, due: decisions.CleanUp, pods: TrialPods, finisher: Finisher, loader: TrialLoader, cluster: Cluster
) -> Requeue:
    """Delete what a finished trial no longer needs, and the trial itself after its TTL. Return when to reconcile it again."""
    trial = run.trial
    loader.forget(trial.metadata.uid)
    run.memory.hints.forget(run.key)
    if due.pod_in == 0:
        await pods.remove_all(trial)
    await finisher.clear(trial)
    if trial.status.results is None:  # it may have no row yet
        await finisher.record(run.readable_object, trial.status)
    if due.trial_in == 0:
        await cluster.delete(TRIALS, trial.metadata.namespace, trial.metadata.name, uid=trial.metadata.uid)
        return AT_NEXT_EVENT
    if run.readable and trial.status.observed_generation != trial.metadata.generation:
        await run.write(trial_status.observed(trial))  # kstatus waits until observedGeneration is current
    return Requeue(due.next)
