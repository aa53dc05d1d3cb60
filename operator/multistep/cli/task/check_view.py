"""What `multistep check` prints: the steps, the findings and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from multistep.api.common.plural import plural
from multistep.cli.terminal import clean, labelled_line, seconds_text, table
from multistep.client.task.check_task import Report, StepSummary


def report_view(report: Report) -> Group:
    """Return the output of `check`."""
    lines: list[RenderableType] = [_steps_of_report(report.steps)] if report.steps else []
    lines += [labelled_line("problem", str(each), "red") for each in report.problems]
    lines += [labelled_line("warning", str(each), "yellow") for each in report.warnings]
    lines += [labelled_line("note", str(each), "cyan") for each in report.notes]
    lines += [labelled_line("needs", f"--var {name} (for {where})", "cyan") for name, where in report.variables.items()]
    verdict = f"{plural(len(report.steps), 'step')}, ready to run"
    if not report.ok:
        verdict = plural(len(report.problems), "problem")
    return Group(*lines, Text(f"{clean(report.name)}: {verdict}", style="bold"))


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
