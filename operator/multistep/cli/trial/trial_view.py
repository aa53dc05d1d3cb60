"""What `multistep run` and `multistep show` print of a trial: its steps, faults, score, tokens and cost, and its progress."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.status import AttemptStatus, StepStatus, TrialStatus
from multistep.api.trial.values import PRINTING
from multistep.cli.costs import usage_text
from multistep.cli.exit_codes import exit_of_outcome
from multistep.cli.terminal import (
    STYLES,
    Following,
    bytes_text,
    clean,
    clean_lines,
    labelled_line,
    rewards_text,
    seconds_text,
    table,
)
from multistep.client.outcome import brief, level, outcome, words
from multistep.engine.lifecycle.stop_and_suspend import SUSPENDED
from multistep.engine.score.trial_score import REWARD
from multistep.report.rows import score_explanation, step_row

_PHASE_STYLES: Final = {"Failed": "red", "Running": "cyan"}


def trial_view(name: str, status: TrialStatus, *, now: datetime | None = None, namespace: str = "") -> Group:
    """Return the output of `run` and `show`. With ``now``, show elapsed times. With ``namespace``, suggest the next command."""
    found = outcome(status)
    lines: list[RenderableType] = [_steps_of_status(status, now)] if status.steps else []
    if (start := status.started_from) is not None:
        lines.append(labelled_line("started", f"after step {start.step} of trial {start.trial}", "cyan"))
    lines += [labelled_line("fault", each, "red") for each in found.faults if found.phase == "Complete"]
    lines += [
        labelled_line("attempt", attempt_text(each).removeprefix("attempt "), "yellow") for each in status.attempts if each.reason
    ]
    lines += [labelled_line("regrades", f"trial {source.trial} ({source.uid})", "cyan")] if (source := status.regraded) else []
    lines += [labelled_line("tampering", f"step {each.step}: {each.kind}: {each.detail}", "red") for each in status.tampering]
    lines.append(_outcome_line(name, status))
    if how := _score_text(status):
        lines.append(Text(how))
    if status.usage:
        lines.append(Text(usage_text(status.usage)))
    if status.judge_usage:
        lines.append(Text(f"judge {usage_text(status.judge_usage)}"))
    if status.user_usage:
        lines.append(Text(f"user {usage_text(status.user_usage)}"))
    if status.results_store:
        lines.append(Text(stored_text(status.results_store)))
    if namespace and found.faults:
        lines.append(Text(f"more: {_command_for_more(name, status, namespace)}"))
    return Group(*lines)


def _outcome_line(name: str, status: TrialStatus) -> Text:
    """Return the line with a trial's outcome or progress, in the colour of the outcome."""
    found = outcome(status)
    parts = [words(status)]
    if found.phase == "Complete":
        parts += [f"score {status.score:.4g}"] if status.score is not None else []
        parts.append(f"reward {rewards_text(status.rewards)}")
    text = brief(status) if found.phase == "Complete" else found.why
    shown = ": ".join(filter(None, [found.phase, ", ".join(filter(None, parts)), clean_lines(text)]))
    style = STYLES[level(status)] or _PHASE_STYLES.get(found.phase, "")
    return Text(f"{clean(name)} {shown}", style=f"bold {style}".strip())


def _score_text(status: TrialStatus) -> str:
    """Return a line that explains a score that is not simply the reward; "" for other trials."""
    plain = status.rewards is not None and set(status.rewards) == {REWARD} and status.rewards[REWARD] == status.score
    if status.score is None or status.score_rule is None or plain:
        return ""
    steps = [step_row(each, None) for each in status.own_steps]
    return f"score {status.score:.4g}: {score_explanation(status, steps, status.score, Scoring(), why='', zeroed=False)}"


def _command_for_more(name: str, status: TrialStatus, namespace: str) -> str:
    """Return the command that shows more about a fault: the failed phase's output, or the trial and its Events."""
    step = next((each for each in status.own_steps if each.exception or each.gate is False), None)
    if step is None:
        return f"kubectl describe mst {name} -n {namespace}"
    phase = step.exception.phase if step.exception else "verifier"
    chosen = f" --phase {phase}" if phase in PRINTING else ""
    return f"multistep logs {name} --step {shlex.quote(clean(step.name))}{chosen} -n {namespace}"


def stored_text(url: str) -> str:
    """Return a line with the results' URL in the object store."""
    return f"its results are in the object store: {clean(url)}"


def attempt_text(attempt: AttemptStatus) -> str:
    """Return a line with the reason why an earlier attempt failed or was suspended."""
    if attempt.reason == SUSPENDED:
        return f"attempt {attempt.number} was suspended: {attempt.message}"
    return f"attempt {attempt.number} failed: {attempt.reason}: {attempt.message}"


def _steps_of_status(status: TrialStatus, now: datetime | None) -> Table:
    numbers = ("AGENT", "VERIFIER")
    found = table("STEP", "PHASE", "REWARD", *numbers, "GATE", "EXCEPTION", "ARTIFACTS", numbers=numbers)
    for step in status.steps:
        seconds, exception, artifacts = step.phase_seconds, step.exception, step.artifacts
        found.add_row(
            Text(clean(step.name)),
            Text(_phase(step, now), style=_step_style(step)),
            Text(rewards_text(step.rewards)),
            seconds_text(seconds.agent if seconds else None),
            seconds_text(seconds.verifier if seconds else None),
            "-" if step.gate is None else "met" if step.gate else Text("not met", style="red"),
            Text(clean(exception.type), style="red") if exception else "-",
            f"{artifacts.count} ({bytes_text(artifacts.bytes)})" if artifacts else "-",
        )
    return found


def _step_style(step: StepStatus) -> str:
    if step.completion_time is None:
        return "cyan"
    return "red" if step.passed is False or step.exception else "green"


def _phase(step: StepStatus, now: datetime | None) -> str:
    if step.trial is not None:
        return clean(f"by {step.trial}")
    phase = clean(step.phase or "Running")
    if now is None or step.start_time is None or step.completion_time is not None:
        return phase
    return f"{phase} {seconds_text(max(0, round((now - step.start_time).total_seconds())))}"


class Progress(Following):
    """Shows the progress of a trial on stderr."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._status: TrialStatus | None = None
        super().__init__(self._view)  # must be last, because _view reads the fields above

    def show(self, status: TrialStatus, lines: Sequence[str]) -> None:
        """Update the display. lines: texts on the changes of the status. They are printed if stderr is not a terminal."""
        self._status = status
        for line in lines:
            self.line(line)

    def _view(self) -> RenderableType:
        if self._status is None:
            return Text(f"{self._name} Submitted")
        return trial_view(self._name, self._status, now=datetime.now(UTC))


def status_document(namespace: str, name: str, status: TrialStatus, results: str | None = None) -> dict[str, Any]:
    """Return the JSON document of `run` and `show`. results: directory of the fetched results."""
    found = outcome(status)
    return {
        "namespace": namespace,
        "name": name,
        "phase": found.phase,
        "outcome": status.outcome,
        "exitCode": exit_of_outcome(found),
        "why": found.why,
        "faults": list(found.faults),
        "results": results,
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
