"""The output of all commands: tables, lines and JSON on stdout, progress on stderr. Ruff forbids them to print in another way.

Texts of tasks, agents and clusters are untrusted, and control characters manipulate a terminal, also at the end of a pipe. So every
function here writes printable characters only. Only `multistep logs`, `shell` and `build --verbose` pass on bytes.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.score import Level
from multistep.api.trial.status import AttemptStatus, StepStatus, TrialStatus, Usage
from multistep.api.trial.values import PRINTING
from multistep.cli.exits import exit_of_outcome
from multistep.client.outcome import brief, level, outcome, words
from multistep.client.task.examine import Report, StepSummary
from multistep.engine.lifecycle.stop_and_suspend import SUSPENDED
from multistep.engine.score.trial_score import REWARD
from multistep.engine.score.usage_totals import omission
from multistep.logs import escaped
from multistep.report.rows import score_explanation, step_row

_PIPED_WIDTH = 250  # output width in characters of tables, and of all output to a pipe: large, so that lines are not folded
_PHASE_STYLES = {"Failed": "red", "Running": "cyan"}
_NOT_PLAIN = re.compile(r"[^\n -~]+")
STYLES: Final[dict[Level, str]] = {"good": "green", "bad": "red", "excluded": "yellow", "neutral": ""}  # by level of an outcome


def clean(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(char if char.isprintable() else " " if char in "\n\t" else "�" for char in text)


def clean_lines(text: str) -> str:
    """Return the text without control characters except line breaks; lines after the first are indented."""
    return "\n  ".join(clean(line) for line in text.rstrip().split("\n"))


def rewards_text(rewards: Mapping[str, float] | None) -> str:
    """Format all rewards. Return "-" for None (no result of the verifier) and "{}" for a result without keys."""
    if rewards is None:
        return "-"
    if set(rewards) == {"reward"}:
        return f"{rewards['reward']:.4g}"
    return clean(", ".join(f"{key}={value:.4g}" for key, value in rewards.items())) or "{}"


def seconds_text(seconds: float | None, *, none: str = "-") -> str:
    """Format a duration with a suitable unit."""
    if seconds is None:
        return none
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if rest == 0 or minutes >= 60:
        return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.3g} h"
    return f"{minutes} min {rest} s"


def bytes_text(size: int) -> str:
    """Format a size with a decimal unit."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


def print_json(document: object, *, indent: int | None = 2) -> None:
    """Print one JSON document to stdout. Strings have control and invisible characters as escapes of JSON."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(_NOT_PLAIN.sub(lambda found: "".join(map(_json_escape, found[0])), text) + "\n")


def _json_escape(char: str) -> str:
    return char if char.isprintable() else json.dumps(char)[1:-1]


def print_line(text: str) -> None:
    """Print a text on one line of stdout."""
    print(clean(text), flush=True)


def print_text(text: str) -> None:
    """Print a text of several lines to stdout, such as a report; its control characters are escaped."""
    sys.stdout.write("\n".join(map(_escaped_line, text.split("\n"))))


def print_bytes(data: bytes) -> None:
    """Write bytes to stdout at once: a file that the user asked for, or the output of `multistep logs`."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _escaped_line(line: str) -> str:
    body = line.removesuffix("\r")
    return escaped(body) + line[len(body) :]


def print_out(*renderables: RenderableType) -> None:
    """Print to stdout."""
    console = _console(sys.stdout)
    width = console.width
    for each in renderables:
        # A table may be wider than the terminal, which then wraps its lines: Rich would break numbers to fold its columns.
        console.width = max(width, _PIPED_WIDTH) if isinstance(each, Table) else width
        console.print(_Printable(each))


@dataclass(frozen=True)
class _Printable:
    """What Rich shows for a renderable, with printable text only; Rich's own styles stay."""

    of: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.of, options):
            yield Segment(text if control else "\n".join(map(clean, text.split("\n"))), style, control)


def print_err(text: str) -> None:
    """Print a message on stderr."""
    print(clean_lines(text), file=sys.stderr, flush=True)


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print_err(f"warning: {text}")


def report_view(report: Report) -> Group:
    """Return the output of `check`."""
    lines: list[RenderableType] = [_steps_of_report(report.steps)] if report.steps else []
    lines += [_line("problem", str(each), "red") for each in report.problems]
    lines += [_line("warning", str(each), "yellow") for each in report.warnings]
    lines += [_line("note", str(each), "cyan") for each in report.notes]
    lines += [_line("needs", f"--var {name} (for {where})", "cyan") for name, where in report.variables.items()]
    verdict = f"{plural(len(report.steps), 'step')}, ready to run"
    if not report.ok:
        verdict = plural(len(report.problems), "problem")
    return Group(*lines, Text(f"{clean(report.name)}: {verdict}", style="bold"))


def trial_view(name: str, status: TrialStatus, *, now: datetime | None = None, namespace: str = "") -> Group:
    """Return the output of `run` and `show`. now: if given, show elapsed times; namespace: if given, suggest the next command."""
    found = outcome(status)
    lines: list[RenderableType] = [_steps_of_status(status, now)] if status.steps else []
    if (start := status.started_from) is not None:
        lines.append(_line("started", f"after step {start.step} of trial {start.trial}", "cyan"))
    lines += [_line("fault", each, "red") for each in found.faults if found.phase == "Complete"]
    lines += [_line("attempt", attempt_text(each).removeprefix("attempt "), "yellow") for each in status.attempts if each.reason]
    lines += [_line("regrades", f"trial {source.trial} ({source.uid})", "cyan")] if (source := status.regraded) else []
    lines += [_line("tampering", f"step {each.step}: {each.kind}: {each.detail}", "red") for each in status.tampering]
    lines.append(_outcome_line(name, status))
    if how := _score_text(status):
        lines.append(Text(how))
    if status.usage:
        lines.append(Text(usage_text(status.usage)))
    if status.judge_usage:
        lines.append(Text(f"judge {usage_text(status.judge_usage)}"))
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


def usage_text(usage: Usage) -> str:
    """Return a line with the tokens and the cost of a trial. The line says whether the gateway or the agent counted them."""
    parts = [
        f"{_amount(usage.input_tokens)} input tokens ({_amount(usage.cached_tokens)} cached)",
        f"{_amount(usage.output_tokens)} output tokens",
        "unknown cost" if usage.cost_usd is None else f"${usage.cost_usd:.4f}",
    ]
    parts += [plural(usage.requests, "request")] if usage.requests is not None else []
    parts += [f"held {usage.held_seconds:.0f} s"] if (usage.held_seconds or 0.0) >= 1 else []
    parts += [omission(usage.incomplete)] if usage.incomplete else []
    return f"used {', '.join(parts)}, counted by the {usage.source.lower()}"


def _amount(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


def stored_text(url: str) -> str:
    """Return a line with the results' URL in the object store."""
    return f"its results are in the object store: {clean(url)}"


def attempt_text(attempt: AttemptStatus) -> str:
    """Return a line with the reason why an earlier attempt failed or was suspended."""
    if attempt.reason == SUSPENDED:
        return f"attempt {attempt.number} was suspended: {attempt.message}"
    return f"attempt {attempt.number} failed: {attempt.reason}: {attempt.message}"


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show on stderr that an operation is active: a spinner on a terminal, otherwise one line."""
    console = _console(sys.stderr)
    if not console.is_terminal:
        print_err(text)
        yield
        return
    with console.status(Text(clean(text))):
        yield


class Following:
    """Shows progress on stderr: a live display of ``view()`` on a terminal, otherwise single lines."""

    def __init__(self, view: Callable[[], RenderableType]) -> None:
        console = _console(sys.stderr)
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(get_renderable=lambda: _Printable(view()), console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def line(self, text: str) -> None:
        """Print a progress line if stderr is not a terminal; on a terminal the live view shows the progress."""
        if self._live is None:
            print_err(text)

    def note(self, text: str) -> None:
        """Print a message; on a terminal, print it above the live view."""
        if self._live:
            self._live.console.print(Text(clean(text)))
        else:
            print_err(text)


class Progress(Following):
    """Shows the progress of a trial on stderr."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._status: TrialStatus | None = None
        super().__init__(self._view)  # must be last, because _view reads the fields above

    def show(self, status: TrialStatus, lines: Sequence[str]) -> None:
        """Update the display. status: the trial's current status; lines: texts on its changes, printed if stderr is no terminal."""
        self._status = status
        for line in lines:
            self.line(line)

    def _view(self) -> RenderableType:
        if self._status is None:
            return Text(f"{self._name} Submitted")
        return trial_view(self._name, self._status, now=datetime.now(UTC))


def _console(stream: TextIO) -> Console:
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table. numbers: columns to align to the right."""
    created = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        created.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return created


def _steps_of_report(steps: Sequence[StepSummary]) -> Table:
    timeouts = ("AGENT TIMEOUT", "VERIFIER TIMEOUT")
    found = table("STEP", *timeouts, "GATE", "SETUP", "HEALTHCHECK", "TESTS", numbers=timeouts)
    for step in steps:
        gate = "-" if step.gate is None else ", ".join(f"{key} >= {value:.4g}" for key, value in step.gate.items()) or "always met"
        found.add_row(
            Text(clean(step.name)),
            seconds_text(step.agent_limit, none="none"),
            seconds_text(step.verifier_limit, none="none"),
            Text(clean(gate)),
            "yes" if step.setup else "-",
            "yes" if step.healthcheck else "-",
            step.tests,
        )
    return found


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


def _line(kind: str, text: str, style: str) -> Text:
    return Text.assemble((kind, style), ": ", clean_lines(text))


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
