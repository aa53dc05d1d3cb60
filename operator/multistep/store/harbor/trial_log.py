"""Creates trial.log of Harbor 0.25's trial directory. It does no IO. Times are in seconds since the epoch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from multistep.api.common.plural import plural
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal, StepException, StepRun
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.status.trial_status import LATEST
from multistep.timestamps import rfc3339


def trial_log(plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, *, failure: StepException | None = None) -> str:
    """Return trial.log, which has a line for each event, sorted by time."""
    events = [
        *_trial_events(plan, trial, journal, now, failure),
        *(event for run in journal.steps if run.trial is None for event in _step_events(run)),
    ]
    return "".join(f"{iso_time(time)} {_line(text)}\n" for time, text in sorted(events, key=lambda event: event[0]))


def _trial_events(
    plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, failure: StepException | None
) -> Iterator[tuple[float, str]]:
    start = trial.status.start_time
    if start:
        yield start.timestamp(), f"trial {trial.metadata.name} started: task {plan.task_name}, agent {plan.agent_name}"
    if start and (source := trial.status.started_from):
        yield start.timestamp(), f"it continues after step {source.step} of trial {source.trial}"
    for attempt in trial.status.attempts:
        if attempt.completion_time:
            yield attempt.completion_time.timestamp(), f"attempt {attempt.number} failed: {attempt.reason}: {attempt.message}"
    if journal.started_at is not None:
        yield journal.started_at, "the environment is running"
    if exception := journal.exception or failure:
        yield now, f"the trial ended with {exception.type}: {exception.message}"
    yield now, f"the trial ended; rewards: {json.dumps(None if failure else journal.rewards)}"


def _step_events(run: StepRun) -> Iterator[tuple[float, str]]:
    name = f"step {run.name}"
    if run.started_at is not None:
        yield run.started_at, f"{name} started"
    for phase, (start, end) in run.timings.items():
        yield start, f"{name}: {phase} started"
        if end is not None:
            yield end, f"{name}: {phase} finished after {end - start:.3f} s"
    if run.completed_at is not None:
        for text in _outcome(run):
            yield run.completed_at, f"{name}: {text}"


def _outcome(run: StepRun) -> Iterable[str]:
    if run.exception:
        yield f"{run.exception.type}: {run.exception.message}"
    if run.collected:
        yield f"{plural(run.collected.count, 'file')} collected, {run.collected.bytes} bytes"
        yield from (f"collected incompletely: {line}" for line in run.collected.incomplete)
    if run.gate_failure:
        yield f"the gate was not met: {run.gate_failure}"
    yield f"ended; rewards: {json.dumps(run.rewards)}"


def _line(text: str) -> str:
    return " ".join(text.splitlines())[:4096]


def iso_time(seconds: float | None) -> str | None:
    """Return a time (seconds since the epoch) in the format of Harbor's files, or None for None. The range is limited, because a
    runner may report any number."""
    if seconds is None:
        return None
    return rfc3339(min(max(seconds, 0.0), LATEST), "milliseconds")
