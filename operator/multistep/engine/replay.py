"""Replay: from a trial's plan and its records to what is done and what is next. Pure, and the same each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..api.records import Record
from .journal import Journal
from .operations import Operation
from .scope import Scope
from .script import AgentScript, trial


@dataclass(frozen=True)
class Progress:
    """Where a trial is. next: the operation to do, or to wait for if it is running; None when the trial is finished."""

    journal: Journal
    next: Operation | None
    running: Record | None = None

    @property
    def between_steps(self) -> bool:
        """Whether the next operation would begin a step, or the trial."""
        if self.next is None or self.running is not None:
            return False
        steps = self.journal.steps
        return steps[-1].started_at is None if steps else self.journal.started_at is None


def replay(scope: Scope, agent: AgentScript, records: Mapping[str, Record]) -> Progress:
    """Feed the script with the records there are, up to the first operation that has none or is still running."""
    journal = Journal()
    script = trial(scope, agent, journal)
    try:
        operation = next(script)
        while (record := records.get(operation.id)) is not None:
            if not record.done:
                _note_running(journal, record)
                return Progress(journal, operation, record)
            operation = script.send(record)
    except StopIteration:
        return Progress(journal, None)
    return Progress(journal, operation)


def _note_running(journal: Journal, record: Record) -> None:
    """The phase that runs now has a start, if no end yet."""
    if journal.steps and journal.steps[-1].completed_at is None:
        run = journal.steps[-1]
        start, _ = run.timings.get(run.phase, (record.started_at, None))
        run.timings[run.phase] = (start, None)
