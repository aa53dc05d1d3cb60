"""Builds a trial's status for each of its states. All functions are pure, with the former status and the time as arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from multistep.api.common.plural import plural
from multistep.api.trial.error_policy import ErrorPolicyOverrides
from multistep.api.trial.status import (
    ArtifactsSummary,
    AttemptStatus,
    Condition,
    ExceptionStatus,
    ImageStatus,
    PhaseSeconds,
    ResumeStatus,
    StepStatus,
    TrialException,
    TrialFailure,
    TrialStatus,
    VerifierStatus,
)
from multistep.api.trial.status import total as refused_total
from multistep.api.trial.task_source import TaskSourceStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.api.trial.values import AGENT, BUILT_IN, FINISHED_PHASES, Phase
from multistep.engine.journal.journal import Collected, Journal, StepException, StepRun
from multistep.engine.lifecycle.pod_start import POD_STARTING, starting_message
from multistep.engine.lifecycle.stop_and_suspend import DEADLINE_EXCEEDED, prestarts, suspended_seconds, suspension
from multistep.engine.score import failure_class as failures
from multistep.engine.score.score_in_sweep import agent_may_have_caused, agent_used_deadline
from multistep.engine.score.trial_score import Score, known_score, outcome, step_passes, step_score, trial_score, verdict_of
from multistep.engine.score.usage_totals import total_usage
from multistep.engine.status.status_size import bounded, bounded_rewards, shortened
from multistep.engine.status.tampering_findings import merged, of_failure, summary

LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def conditions(
    former: Sequence[Condition],
    phase: Phase,
    reason: str,
    message: str,
    now: float,
    *,
    suspended: bool,
    stalled: bool = False,
) -> list[Condition]:
    """Return the conditions for a phase: Ready first, then those that are True, all with the same reason and message.

    After a suspension, the condition Suspended stays with status False until the object has finished, because its transition time
    shows since when the object is not suspended. ``former`` are the previous conditions, from which transition times are kept.
    ``stalled`` means that an unfinished object needs a user's help.
    """
    active = phase not in FINISHED_PHASES
    holds = {
        "Ready": phase == "Complete",
        "Complete": phase == "Complete",
        "Failed": phase == "Failed",
        "Reconciling": active,
        "Stalled": phase == "Failed" or stalled,
        "Suspended": suspended,
    }
    since: dict[tuple[str, str], datetime] = {(each.type, each.status): each.last_transition_time for each in former}
    resumed = active and not suspended and any(each.type == "Suspended" for each in former)
    found = []
    for type_, is_true in holds.items():
        if not (is_true or type_ == "Ready" or (type_ == "Suspended" and resumed)):
            continue
        state: Literal["True", "False"] = "True" if is_true else "False"
        own_reason, own_message = ("NotSuspended", "") if type_ == "Suspended" and resumed else (reason, message)
        transition = since.get((type_, state), time(now))
        found.append(Condition(type=type_, status=state, last_transition_time=transition, reason=own_reason, message=own_message))
    return found


def time(seconds: float) -> datetime:
    """Return a time in whole seconds, as Kubernetes writes it.

    Times outside of the range of ``datetime`` are limited to it, because a runner may report any number.
    """
    return datetime.fromtimestamp(math.floor(min(max(seconds, 0.0), LATEST)), UTC)


MAX_REFUSED = 10  # maximum number of refused targets that the status lists per step
MAX_INCOMPLETE = 4  # maximum number of incomplete sources that the status lists per step


def waiting(trial: MultiStepTrial, phase: Phase, reason: str, message: str, now: float, *, gated: bool = False) -> TrialStatus:
    """Return the status of a waiting trial.

    ``gated`` means that the trial waits in a queue or for the results volume. Its condition Suspended is then True, as for a Job
    that Kueue has queued.
    """
    return _with(trial, phase, reason, message, now, gated=gated)


# Status fields of an attempt that are unset when the attempt starts.
_UNSET_AT_START = (
    "pod_uid",
    "node_name",
    "container_id",
    "image_id",
    "runner_image_id",
    "agent_host_image_id",
    "agent_setup_time",
    "current_step",
)


def attempt_started(
    trial: MultiStepTrial,
    attempt: int,
    pod_name: str,
    task: str,
    image_user: str | None,
    now: float,
    *,
    source: TaskSourceStatus | None = None,
    steps: Sequence[str] = (),
    resumed: ResumeStatus | None = None,
    images: Sequence[ImageStatus] = (),
) -> TrialStatus:
    """Return the status at the start of an attempt, before its pod is created. A suspended trial gets the pod later.

    The status still names the verifier's pod of the previous attempt. ``source`` is the revision to which the task was resolved,
    and ``steps`` are the names of the task's steps. ``resumed`` is the checkpoint from which the attempt resumes. ``images`` are
    the images that the cluster built.
    """
    fields: dict[str, Any] = {
        "attempt": attempt,
        "pod_name": pod_name,
        **dict.fromkeys(_UNSET_AT_START),
        "steps": [],
        "task": task,
        "task_steps": trial.status.task_steps or list(steps),
        "task_source": trial.status.task_source or source,
        "images": list(images),
        "image_user": image_user,
        "resumed": resumed,
        "start_time": trial.status.start_time or time(now),
    }
    if trial.spec.suspend and not prestarts(trial):
        return suspended(_changed(trial, **fields), now)
    return _with(trial, "Pending", POD_STARTING, starting_message(attempt, pod_name), now, **fields)


def running(trial: MultiStepTrial, journal: Journal, now: float, **changes: Any) -> TrialStatus:
    """Return the status of a trial whose script is running. ``changes`` has the values of further status fields."""
    current = journal.steps[-1].name if journal.steps else None
    fields: dict[str, Any] = {"steps": [step_status(run) for run in journal.steps], "tampering": merged(trial.status, journal)}
    if trial.status.verifier is not None and journal.steps and journal.steps[-1].untouched is False:
        fields["verifier"] = trial.status.verifier.model_copy(update={"untouched": None})
    if journal.class_ran_at is not None:
        changes["agent_setup_time"] = time(journal.class_ran_at)
    return at_current_step(_changed(trial, **{"current_step": current, **fields, **changes}), now)


def at_current_step(trial: MultiStepTrial, now: float) -> TrialStatus:
    """Return the status of a running trial at its current step. If spec.suspend is true, the status has the reason Suspending."""
    current, count = trial.status.current_step, len(trial.status.steps)
    total = f"step {count}: {current}" if current else "preparing the environment"
    if trial.status.resumed is not None and not trial.status.has_own_step:
        total = f"restoring the environment after step {trial.status.resumed.after}"
    if trial.spec.suspend:
        return _with(trial, "Running", "Suspending", f"{total}; the trial is suspended when this finishes", now)
    return _with(trial, "Running", "Running", total, now)


def suspended(trial: MultiStepTrial, now: float) -> TrialStatus:
    """Return the status of a trial that waits until spec.suspend is false."""
    reason, message = suspension(trial)
    return _with(trial, "Suspended", reason, message, now)


def paused(trial: MultiStepTrial, journal: Journal, now: float) -> TrialStatus:
    """Return the status of a trial that is suspended between steps and retains its pod. The status does not list the next step."""
    steps = [step_status(run) for run in journal.steps if run.started_at is not None]
    found = merged(trial.status, journal)
    return suspended(_changed(trial, steps=steps, current_step=steps[-1].name if steps else None, tampering=found), now)


def verifier_wanted(
    trial: MultiStepTrial, pod_name: str, image_user: str | None, now: float, *, compares: bool = False
) -> VerifierStatus:
    """Return the entry in the status for a verifier's pod that is about to be created.

    If the operator recreates the pod to run it as root, the entry keeps the start time of the first pod. ``compares`` means that
    the pod only verifies a second time, to compare verdicts. No phase is to blame for the end of such a pod.
    """
    former = trial.status.verifier
    same = former is not None and former.pod_name.removesuffix("-root") == pod_name.removesuffix("-root")
    start = former.start_time if former is not None and same else None
    return VerifierStatus(pod_name=pod_name, image_user=image_user, start_time=start or time(now), untouched=not compares or None)


def complete(trial: MultiStepTrial, journal: Journal, results: str | None, now: float) -> TrialStatus:
    """Return the status of a Complete trial, whatever its rewards are. ``results`` is the URL of the results."""
    ended = _ended(trial, journal, results, now)
    return _with(trial, "Complete", "TrialComplete", _summary(journal) + summary(ended["tampering"]), now, **ended)


def observed(trial: MultiStepTrial) -> TrialStatus:
    """Return the status of a finished trial whose spec was changed. Only observedGeneration changes."""
    return trial.status.model_copy(update={"observed_generation": trial.metadata.generation})


def failed(
    trial: MultiStepTrial,
    reason: str,
    message: str,
    now: float,
    *,
    exception: str = "",
    journal: Journal | None = None,
    results: str | None = None,
) -> TrialStatus:
    """Return the status of a Failed trial, which has no rewards.

    ``journal`` is the trial's progress. With None, status.steps does not change.
    """
    ended: dict[str, Any] = {"completion_time": time(now), "current_step": None, "results": results}
    if journal:
        ended = _ended(trial, journal, results, now)
    ended["rewards"] = ended["score_rule"] = None
    step = journal.steps[-1].name if journal and journal.steps else trial.status.current_step
    class_ = failures.class_of_failure(reason, journal, agent_acted=_agent_may_have_acted(trial.status))
    known = ended.get("tampering", trial.status.tampering)
    ended["tampering"] = of_failure(known, trial.status, reason, message) if class_ == "Agent" else known
    slow = reason == DEADLINE_EXCEEDED and agent_used_deadline(trial.status, trial.spec.active_deadline_seconds, now)
    score = Score(0.0, passed=False) if class_ == "Agent" or slow else None
    ended |= _scored(TrialFailure(class_=class_, reason=reason, step=step), score)
    if exception:
        ended["exception"] = TrialException(type=exception, message=bounded(message))
    return _with(trial, "Failed", reason, message, now, **ended)


def _agent_may_have_acted(status: TrialStatus) -> bool:
    """Return whether an agent may have acted in the current attempt, or in an earlier attempt whose files were restored."""
    return status.agent_acted or (status.resumed is not None and any(status.resumed.attempts))


def attempt_failed(trial: MultiStepTrial, reason: str, message: str, now: float) -> TrialStatus:
    """Return the status with the current attempt moved to the failed attempts, before the next one starts or the trial fails."""
    status = trial.status
    attempt = AttemptStatus(
        number=status.attempt or 1,
        pod_name=status.pod_name,
        pod_uid=status.pod_uid,
        node_name=status.node_name,
        image_id=status.image_id,
        runner_image_id=status.runner_image_id,
        start_time=_attempt_start(status),
        completion_time=time(now),
        reason=reason,
        message=bounded(message),
        steps=status.steps,
        resumed=status.resumed,
    )
    return status.model_copy(update={"attempts": [*status.attempts, attempt], "steps": [], "current_step": None})


def _attempt_start(status: TrialStatus) -> datetime | None:
    """Return the start of the current attempt, which is the end of the previous one, or of a later suspension that delayed it."""
    before = status.attempts[-1].completion_time if status.attempts else None
    if before is None:
        return status.start_time
    resumed = next(
        (each.last_transition_time for each in status.conditions if each.type == "Suspended" and each.status == "False"), before
    )
    own = status.steps[status.kept_steps :]
    first = own[0].start_time if own else None
    return before if first is not None and resumed > first else max(before, resumed)


def step_status(run: StepRun) -> StepStatus:
    """Return the status of a step."""
    exception, verdict, shown = run.exception, verdict_of(run), bounded_rewards(run.rewards)
    began = run.completed_at is None and run.phase in run.timings
    return StepStatus(
        name=run.name,
        phase=_step_phase(run),
        rewards=shown,
        omitted_rewards=run.omitted_rewards + len(run.rewards or {}) - len(shown or {}) or None,
        score=None if run.rewards is None else step_score(verdict),
        passed=None if run.rewards is None else step_passes(verdict),
        exception=exception
        and ExceptionStatus(type=exception.type, message=bounded(exception.message), phase=exception.phase or None),
        start_time=_optional_time(run.started_at),
        phase_start_time=_optional_time(run.timings[run.phase][0] if began else None),
        completion_time=_optional_time(run.completed_at),
        seconds=PhaseSeconds(**{phase: round(seconds, 3) for phase, seconds in run.durations.items()}),
        artifacts=run.collected and _artifacts(run.collected),
        verifier_image_id=run.verifier_image_id,
        usage=run.usage,
        judge_usage=run.judge_usage,
        user_usage=run.user_usage,
        egress=run.egress and refused_total([run.egress], MAX_REFUSED),
        gate=run.gate_passed,
        checkpoint=run.checkpoint,
        trial=run.trial,
    )


def _artifacts(collected: Collected) -> ArtifactsSummary:
    """Return the summary of the artifacts with at most MAX_INCOMPLETE incomplete sources. manifest.json and result.json list
    all."""
    lines = [shortened(bounded(each)) for each in collected.incomplete[:MAX_INCOMPLETE]]
    more = len(collected.incomplete) - len(lines)
    shown = [*lines, f"and {more} more sources"] if more > 0 else lines
    return ArtifactsSummary(count=collected.count, bytes=collected.bytes, incomplete=shown or None)


def _exception(exception: ExceptionStatus | None) -> StepException | None:
    return StepException(exception.type, exception.message, exception.phase or "") if exception else None


def step_run(step: StepStatus) -> StepRun:
    """Return a step's journal entry, rebuilt from its status, for steps whose records are lost or belong to another trial."""
    artifacts = step.artifacts
    return StepRun(
        name=step.name,
        started_at=step.start_time.timestamp() if step.start_time else None,
        completed_at=step.completion_time.timestamp() if step.completion_time else None,
        phase=(step.phase or "").lower(),
        rewards=dict(step.rewards) if step.rewards is not None else None,
        omitted_rewards=step.omitted_rewards or 0,
        known_score=known_score(step),
        exception=_exception(step.exception),
        collected=Collected(count=artifacts.count, bytes=artifacts.bytes, incomplete=tuple(artifacts.incomplete or ()))
        if artifacts
        else None,
        verifier_image_id=step.verifier_image_id,
        usage=step.usage,
        judge_usage=step.judge_usage,
        user_usage=step.user_usage,
        egress=step.egress,
        gate_passed=step.gate,
        checkpoint=step.checkpoint,
        trial=step.trial,
    )


def _step_phase(run: StepRun) -> str:
    if run.completed_at is None:
        return run.phase.capitalize()
    return "Failed" if run.exception else "Complete"


def _summary(journal: Journal) -> str:
    ran = plural(sum(run.trial is None for run in journal.steps), "step")
    last = journal.steps[-1] if journal.steps else None
    exception = journal.exception or (last and last.exception)
    if exception:
        return f"ended after {ran} with {exception.type}: {exception.message}"
    if last and last.gate_failure and not journal.all_steps:
        return f"stopped after {ran}: {last.name}: {last.gate_failure}"
    return f"ran {ran}"


def _ended(trial: MultiStepTrial, journal: Journal, results: str | None, now: float) -> dict[str, Any]:
    shown = bounded_rewards(journal.rewards)
    exception = journal.exception
    return {
        "steps": [step_status(run) for run in journal.steps],
        "tampering": merged(trial.status, journal),
        "current_step": None,
        "completion_time": time(now),
        "rewards": shown,
        "exception": exception and TrialException(type=exception.type, message=bounded(exception.message)),
        "score_rule": journal.score_rule,
        **_verdict(
            journal,
            trial.spec.scoring.override_error_policy,
            hosted=_ran_hosted_agent(trial),
            from_reference=_starts_from_reference(trial),
        ),
        "usage": total_usage([journal.setup_usage, *(run.usage for run in journal.steps)]),
        "judge_usage": total_usage(run.judge_usage for run in journal.steps),
        "user_usage": total_usage(run.user_usage for run in journal.steps),
        "results": results,
    }


def _ran_hosted_agent(trial: MultiStepTrial) -> bool:
    """Return whether the trial, or the source of a regrade, ran a Harbor agent or a custom agent class."""
    source = trial.status.regraded
    return trial.spec.agent.hosted if source is None else source.agent.name not in BUILT_IN


def _starts_from_reference(trial: MultiStepTrial) -> bool:
    """Return whether the trial, or the source of a regrade, started from the task's reference state."""
    source = trial.status.regraded
    return trial.spec.from_step is not None or (source is not None and bool(source.from_reference))


def _verdict(journal: Journal, overrides: ErrorPolicyOverrides, *, hosted: bool, from_reference: bool) -> dict[str, Any]:
    """Return the failure, score and outcome of a Complete trial. It has no score after a failure that no agent can have caused, and
    after an exception that its spec excludes.

    ``hosted`` is whether a hosted agent ran. The code of a hosted agent may raise any exception, including types that otherwise
    only the task can cause. ``from_reference`` is whether the trial started from the task's reference state.
    """
    own = [run for run in journal.steps if run.trial is None]
    score = trial_score([verdict_of(run) for run in own], journal.score_rule) if journal.score_rule else None
    last = journal.steps[-1] if journal.steps else None
    exception, step = (last.exception, last.name) if last and last.exception else (journal.exception, None)
    if (refused := _excluded_by_spec(journal, overrides)) is not None:
        exception, step = refused
    if exception is None:
        return _scored(None, score, gate_failed=last is not None and last.gate_passed is False)
    by_agent = hosted and exception.phase == AGENT
    class_ = "Agent" if by_agent else failures.class_of_exception(exception.type, exception.phase)
    failure = TrialFailure(class_=class_, reason=exception.type, step=step)
    may_have_caused = by_agent or agent_may_have_caused(exception, journal, from_reference=from_reference)
    return _scored(failure, score if may_have_caused and refused is None else None)


def _excluded_by_spec(journal: Journal, overrides: ErrorPolicyOverrides) -> tuple[StepException, str | None] | None:
    """Return the first exception after which spec.scoring.overrideErrorPolicy says that no reward is valid, with its step; None if
    there is none."""
    excluding = {type_ for type_, change in overrides.items() if change.valid is False}
    for run in journal.steps:
        if run.trial is None and run.exception is not None and run.exception.type in excluding:
            return run.exception, run.name
    return (journal.exception, None) if journal.exception is not None and journal.exception.type in excluding else None


def _scored(failure: TrialFailure | None, score: Score | None, *, gate_failed: bool = False) -> dict[str, Any]:
    """Return the status fields failure, score, passed and outcome of a finished trial."""
    return {
        "failure": failure,
        "score": score and score.value,
        "passed": score and score.passed,
        "outcome": outcome(failure.class_ if failure else None, score, gate_failed=gate_failed),
    }


def _with(
    trial: MultiStepTrial, phase: Phase, reason: str, message: str, now: float, *, gated: bool = False, **changes: Any
) -> TrialStatus:
    waits = gated or phase == "Suspended"
    fields: dict[str, Any] = {
        "observed_generation": trial.metadata.generation,
        "phase": phase,
        "conditions": conditions(trial.status.conditions, phase, reason, bounded(message), now, suspended=waits),
    }
    if not waits:
        fields["suspended_seconds"] = round(suspended_seconds(trial.status, now)) or None
    return trial.status.model_copy(update={**fields, **changes})


def _changed(trial: MultiStepTrial, **changes: Any) -> MultiStepTrial:
    return trial.model_copy(update={"status": trial.status.model_copy(update=changes)})


def _optional_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else time(seconds)
