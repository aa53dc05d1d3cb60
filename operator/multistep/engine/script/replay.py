"""Rebuilds a trial's journal and finds its next operation, by replaying the records into the trial's script.

All functions are pure and deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from multistep.api.common.plural import plural
from multistep.api.trial.runner_records import Record
from multistep.api.trial.status import StepStatus, TrialStatus
from multistep.api.trial.values import VERIFIER
from multistep.engine.journal.journal import Journal, StepRun
from multistep.engine.journal.operations import Operation
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.script.operation_scope import Scope
from multistep.engine.script.regrade_script import regrade_script
from multistep.engine.script.trial_script import AgentScript, trial_script
from multistep.engine.status.status_size import bounded_rewards


@dataclass(frozen=True)
class ScriptProgress:
    """The result of a replay."""

    journal: Journal
    next: Operation | None
    """The next operation, None if the trial or the attempt has ended."""
    running: Record | None = None
    """The record of ``next`` if the operation is already running."""

    @property
    def between_steps(self) -> bool:
        """Return whether the next operation is the first of a step or of the trial."""
        if self.next is None or self.running is not None:
            return False
        steps = self.journal.steps
        return steps[-1].started_at is None if steps else self.journal.started_at is None


def replay(scope: Scope, agent: AgentScript, records: Mapping[str, Record]) -> ScriptProgress:
    """Run the script on the records, up to the first operation that has no record or is still running.

    Return the journal and that operation.
    """
    return Replay(scope, agent).advance(records)


class Replay:
    """An incremental replay, which reads each record only once, because a trial of 100 steps has more than 1,000 records."""

    def __init__(self, scope: Scope, agent: AgentScript) -> None:
        self._journal = Journal()
        self._script = (
            trial_script(scope, agent, self._journal)
            if scope.source is None
            else regrade_script(scope, scope.source, self._journal)
        )
        self._operation: Operation | None = None
        self._forget_running: Callable[[], object] = lambda: None
        self._send(None)

    def advance(self, records: Mapping[str, Record]) -> ScriptProgress:
        """Return what ``replay`` returns. ``records`` are all records until now. Finished ones must never change."""
        self._forget_running()
        self._forget_running = lambda: None
        while self._operation is not None and (record := records.get(self._operation.id)) is not None:
            if not record.done:
                self._forget_running = _note_running(self._journal, record)
                return ScriptProgress(self._journal, self._operation, record)
            self._send(record)
        return ScriptProgress(self._journal, self._operation)

    def _send(self, record: Record | None) -> None:
        try:
            self._operation = self._script.send(record) if record else next(self._script)
        except StopIteration:
            self._operation = None


def _note_running(journal: Journal, record: Record) -> Callable[[], object]:
    """Add the start of the running phase to the journal. Return a function that removes it again."""
    if not journal.steps or journal.steps[-1].completed_at is not None:
        return lambda: None
    run = journal.steps[-1]
    phase, former = run.phase, run.timings.get(run.phase)
    run.timings[phase] = (former[0] if former else record.started_at, None)
    return lambda: run.timings.update({phase: former}) if former else run.timings.pop(phase)


def missing_records(status: TrialStatus, ids: Iterable[str]) -> str:
    """Return a message about missing records, "" if no record is missing. ``ids`` are the ids of all records that the runner has.

    The status also lists steps that an earlier attempt ran (kept_steps). Their records are in the results store and not in the
    runner. The status lists a step before the step's first operation has finished, so the last listed step may have no records.
    """
    known, attempt = set(ids), status.attempt or 1
    steps = status.steps[status.kept_steps :]
    if steps and not known:
        return f"the runner has no records, but {plural(len(steps), 'step was', 'steps were')} started"
    for step in [*steps[:-1], *(last for last in steps[-1:] if last.completion_time is not None)]:
        prefix = f"{attempt}/{step.name}/"
        if not any(id.startswith(prefix) for id in known):
            return f"the runner has no records of step {step.name}, which is completed"
    return ""


def lost_verdict(status: TrialStatus, plan: TrialPlan, stored: Container[int]) -> str:
    """Return a message if the results volume lacks the records of a separate verification, "" if it does not.

    Such records are missing if a completed step of the attempt has a verdict in the status, but is not in ``stored``, the indexes
    of the steps with records. The operator stores the records before it writes the verdict to the status, and no agent can reach
    them. A step whose agent prevented the copy of its files for the verifier has an exception, but no verifier's pod and no
    records.
    """
    for index in range(status.kept_steps, len(status.steps)):
        step, planned = status.steps[index], plan.steps[index]
        failed = step.exception is not None and step.exception.phase == VERIFIER and step.verifier_image_id is not None
        judged = step.rewards is not None or failed
        if planned.verified_apart and step.completion_time is not None and judged and index not in stored:
            return f"the results volume lacks the verdict of step {step.name}, which is completed: an older copy of it was put back"
    return ""


def changed_rewards(status: TrialStatus, runs: Sequence[StepRun]) -> str:
    """Return a message about the first completed step whose rewards differ between records and status, "" if there is none."""
    for step, run in zip(status.steps, runs, strict=False):
        now = bounded_rewards(run.rewards)
        if step.completion_time is None or run.completed_at is None or step.rewards is None or now is None:
            continue
        if not _agree(step, now):
            return f"the rewards of step {step.name} are {step.rewards} in the status, but {now} in the runner's records"
    return ""


def _agree(step: StepStatus, now: dict[str, int | float]) -> bool:
    """Return whether the records (``now``) and the status agree on each reward that both have.

    The status omits some rewards if a step has many.
    """
    return all(now.get(key, value) == value for key, value in (step.rewards or {}).items())
