"""Replay: rebuilds a trial's journal and finds its next operation from the plan and the records. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from multistep.api.trial.runner_records import Record
from multistep.engine.journal.journal import Journal
from multistep.engine.journal.operations import Operation
from multistep.engine.script.operation_scope import Scope
from multistep.engine.script.regrade_script import regrade
from multistep.engine.script.trial_script import AgentScript, trial


@dataclass(frozen=True)
class Progress:
    """Progress of a trial. next: the operation to start, or to wait for if it runs; None if the trial or the attempt has ended."""

    journal: Journal
    next: Operation | None
    running: Record | None = None

    @property
    def between_steps(self) -> bool:
        """Return whether the next operation is the first of a step or of the trial."""
        if self.next is None or self.running is not None:
            return False
        steps = self.journal.steps
        return steps[-1].started_at is None if steps else self.journal.started_at is None


def replay(scope: Scope, agent: AgentScript, records: Mapping[str, Record]) -> Progress:
    """Run the script on the records, up to the first operation that has no record or is still running."""
    return Replay(scope, agent).advance(records)


class Replay:
    """An incremental replay: it reads each record once, because a trial of 100 steps has more than 1,000 records."""

    def __init__(self, scope: Scope, agent: AgentScript) -> None:
        self._journal = Journal()
        self._script = trial(scope, agent, self._journal) if scope.source is None else regrade(scope, scope.source, self._journal)
        self._operation: Operation | None = None
        self._forget_running: Callable[[], object] = lambda: None
        self._send(None)

    def advance(self, records: Mapping[str, Record]) -> Progress:
        """Return the same progress as replay(). records: all records so far, of which finished ones must not change."""
        self._forget_running()
        self._forget_running = lambda: None
        while self._operation is not None and (record := records.get(self._operation.id)) is not None:
            if not record.done:
                self._forget_running = _note_running(self._journal, record)
                return Progress(self._journal, self._operation, record)
            self._send(record)
        return Progress(self._journal, self._operation)

    def _send(self, record: Record | None) -> None:
        try:
            self._operation = self._script.send(record) if record else next(self._script)
        except StopIteration:
            self._operation = None


def _note_running(journal: Journal, record: Record) -> Callable[[], object]:
    """Add the start of the running phase to the journal. Return a function that undoes this."""
    if not journal.steps or journal.steps[-1].completed_at is not None:
        return lambda: None
    run = journal.steps[-1]
    phase, former = run.phase, run.timings.get(run.phase)
    run.timings[phase] = (former[0] if former else record.started_at, None)
    return lambda: run.timings.update({phase: former}) if former else run.timings.pop(phase)
