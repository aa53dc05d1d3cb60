"""Whether the records of a pod's runner can be true, by what the trial's status says was done in the same container."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..api.trial_status import StepStatus, TrialStatus
from .journal import StepRun
from .status_size import bounded_rewards


def missing_records(status: TrialStatus, attempt: int, ids: Iterable[str]) -> str:
    """What the runner should have records of and has not; "" if nothing is missing. ids: of all its records.

    A status is written before the first operation of its last step is done, and after all of the steps before.
    """
    known = set(ids)
    if status.steps and not known:
        return f"the runner has no records, but {len(status.steps)} steps were started"
    for step in [*status.steps[:-1], *(each for each in status.steps[-1:] if each.completion_time is not None)]:
        prefix = f"{attempt}/{step.name}/"
        if not any(id.startswith(prefix) for id in known):
            return f"the runner has no records of step {step.name}, which was done"
    return ""


def changed_rewards(status: TrialStatus, runs: Sequence[StepRun]) -> str:
    """Which completed step has other rewards by the runner's records than it had before; "" if none has."""
    for step, run in zip(status.steps, runs, strict=False):
        now = bounded_rewards(run.rewards)
        if step.completion_time is None or run.completed_at is None or step.rewards is None or now is None:
            continue
        if not _agree(step, now):
            return f"the rewards of step {step.name} were {step.rewards}, and by the runner's records are {now}"
    return ""


def _agree(step: StepStatus, now: dict[str, int | float]) -> bool:
    """The status may have fewer keys, where there were too many."""
    return all(now.get(key, value) == value for key, value in (step.rewards or {}).items())
