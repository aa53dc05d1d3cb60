"""Compares the runner's records with the trial's status, to detect records that a process in the container forged or deleted."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from multistep.api.common.plural import plural
from multistep.api.trial.phases import VERIFIER
from multistep.api.trial.status import StepStatus, TrialStatus
from multistep.engine.journal.journal import StepRun
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.status.status_size import bounded_rewards


def missing_records(status: TrialStatus, ids: Iterable[str]) -> str:
    """Return a message about missing records; "" if no record is missing. ids: the ids of all records that the runner has.

    The status also lists steps that an earlier attempt ran (kept_steps); their records are in the results store, not in the runner.
    The status lists a step before the step's first operation is finished, so the last listed step may have no records.
    """
    known, attempt = set(ids), status.attempt or 1
    steps = status.steps[status.kept_steps :]
    if steps and not known:
        return f"the runner has no records, but {plural(len(steps), 'step was', 'steps were')} started"
    for step in [*steps[:-1], *(each for each in steps[-1:] if each.completion_time is not None)]:
        prefix = f"{attempt}/{step.name}/"
        if not any(id.startswith(prefix) for id in known):
            return f"the runner has no records of step {step.name}, which is completed"
    return ""


def lost_verdict(status: TrialStatus, plan: TrialPlan, stored: Container[int]) -> str:
    """Return a message about the first completed step of the attempt whose separate verifier has a verdict in the status, but no
    records on the results volume; "" if there is none. stored: indexes of the steps with records.

    The records are stored before the status shows the verdict, and no agent can reach them. A step whose agent prevented that its
    files were copied for the verifier has an exception, but no verifier's pod."""
    for index in range(status.kept_steps, len(status.steps)):
        step, planned = status.steps[index], plan.steps[index]
        failed = step.exception is not None and step.exception.phase == VERIFIER and step.verifier_image_id is not None
        judged = step.rewards is not None or failed
        if planned.verified_apart and step.completion_time is not None and judged and index not in stored:
            return f"the results volume lacks the verdict of step {step.name}, which is completed: an older copy of it was put back"
    return ""


def changed_rewards(status: TrialStatus, runs: Sequence[StepRun]) -> str:
    """Return a message about the first completed step whose rewards differ between records and status; "" if there is none."""
    for step, run in zip(status.steps, runs, strict=False):
        now = bounded_rewards(run.rewards)
        if step.completion_time is None or run.completed_at is None or step.rewards is None or now is None:
            continue
        if not _agree(step, now):
            return f"the rewards of step {step.name} are {step.rewards} in the status, but {now} in the runner's records"
    return ""


def _agree(step: StepStatus, now: dict[str, int | float]) -> bool:
    """Return whether the records (now) and the status agree on each reward that both have: the status omits some if there are
    many."""
    return all(now.get(key, value) == value for key, value in (step.rewards or {}).items())
