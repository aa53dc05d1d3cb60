"""Checks a task before a trial or sweep of it is submitted. The command line and the Python client check in this way only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from multistep.api.sweep.sweep import SweepSpec
from multistep.api.trial.agent_spec import AgentSpec
from multistep.client.task.examine import Report, examine
from multistep.client.task.task_directory import TaskDirectory
from multistep.errors import InvalidTask, UsageError

Remedy = Callable[[Sequence[str]], str]
"""Returns how to give variables a value. Its argument: their names."""
Show = Callable[[str, str], object]
"""Shows a finding that does not make the task invalid. Its arguments: "warning" or "note", and the text."""


def validate(
    task: TaskDirectory,
    *,
    agents: Sequence[AgentSpec],
    given: Collection[str],
    show: Show,
    remedy: Remedy,
    verification: bool = True,
    image: str | None = None,
) -> Report:
    """Show a task's warnings and notes, and return the report on it.

    agents: agents of the trials. given: names of the variables that have a value. verification: whether the trials run verifiers.
    image: image that replaces the task's image. Raises InvalidTask if the task cannot be run, UsageError if a variable is missing.
    """
    report = examine(task.bundle(), task.directory_name, verification=verification, agents=agents, image=image or None)
    for kind, findings in (("warning", report.warnings), ("note", report.notes)):
        for finding in findings:
            show(kind, f"task {task.name}: {finding}")
    if not report.ok:
        raise InvalidTask("\n".join([f"the task {task.directory_name} cannot be run:", *map(str, report.problems)]))
    if missing := [name for name in report.variables if name not in given]:
        raise UsageError(f"{report.variables[missing[0]]} needs a variable: {remedy(missing)}")
    return report


def validate_tasks(
    tasks: Sequence[TaskDirectory], spec: SweepSpec, *, show: Show, remedy: Remedy, image: str | None = None
) -> list[Report]:
    """Validate the tasks of a sweep, and return their reports. Arguments and errors are those of ``validate``."""
    trials = [spec.template.spec, *(each.spec for each in spec.overrides)]
    return [
        validate(
            task,
            agents=[each.agent for each in spec.agents],
            given={variable.name for trial in trials for variable in trial.variables},
            show=show,
            remedy=remedy,
            verification=not spec.template.spec.verifier.disable,
            image=image,
        )
        for task in tasks
    ]
