"""Builds the sweep that a client submits, with the objects that it owns. Reads the task directories, and checks them as
`multistep sweep run` does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from multistep.api.sweep.sweep import SweepSpec, parse_sweep
from multistep.cli.sweep.sweep_manifest import SweepOptions, SweepSubmission, agent_of_text, find_tasks, sweep_of_tasks
from multistep.cli.task.examine import examine
from multistep.cli.task.task_directory import TaskDirectory
from multistep.cli.trial.run.manifests import Manifest, TrialImage, checked_name, new_name
from multistep.cli.trial.run.run_trial import refuse
from multistep.errors import UsageError

logger = logging.getLogger(__name__)

Task: TypeAlias = str | Path | Mapping[str, Any]
Agent: TypeAlias = str | Mapping[str, Any]


def submission(
    tasks: Sequence[Task],
    agents: Sequence[Agent],
    fields: Mapping[str, Any],
    *,
    name: str | None,
    image: str | None,
    namespace: str,
) -> SweepSubmission:
    """Return the sweep with its objects. fields: the spec's fields other than tasks and agents. Raises UsageError if a task's image
    or a variable is missing, InvalidTask if a task cannot be run, InvalidSpec if a field is invalid. Logs the tasks' warnings."""
    for argument, value in (("tasks", tasks), ("agents", agents)):
        if isinstance(value, str | Path | Mapping):
            raise UsageError(f"{argument}: must be a list, such as [{value!r}]")
    given = [entry for each in tasks for entry in _tasks(each)]
    given_image = TrialImage(image) if image else None
    images = {each.name: given_image for each in given if isinstance(each, TaskDirectory) and given_image}
    for each in given:
        if isinstance(each, TaskDirectory) and each.needs_build and given_image is None:
            raise UsageError(f"{each.path}: its image must be built first: `multistep build {each.path}`, then pass image=")
    name = checked_name(name, "name") if name else new_name("rollouts")
    planned = sweep_of_tasks(given, images, SweepOptions(name), namespace, given_image)
    entries = [_agent(each) for each in agents]
    sweep = {**planned.sweep, "spec": {**planned.sweep["spec"], **fields, "agents": entries}}
    spec = parse_sweep(sweep).spec
    for each in given:
        if isinstance(each, TaskDirectory):
            _check(each, spec, image)
    return SweepSubmission(sweep, planned.owned, planned.others)


def _agent(agent: Agent) -> Manifest:
    """Return the entry of spec.agents. Raises UsageError, which names the argument and not the option of the command line."""
    if not isinstance(agent, str):
        return dict(agent)
    try:
        return agent_of_text(agent)
    except UsageError as error:
        raise UsageError(str(error).replace("--agent ", "agents: ")) from None


def _check(task: TaskDirectory, spec: SweepSpec, image: str | None) -> None:
    specs = [spec.template.spec, *(each.spec for each in spec.overrides)]
    agents = [each.agent for each in spec.agents]
    verification = not spec.template.spec.verifier.disable
    report = examine(task.bundle(), task.directory_name, verification=verification, agents=agents, image=image)
    for warning in report.warnings:
        logger.warning("task %s: %s", task.name, warning)
    given = {variable.name for each in specs for variable in each.variables}
    refuse(report, task.directory_name, given, "set it in spec['template']['spec']['variables']: {}")


def _tasks(task: Task) -> list[TaskDirectory | Manifest]:
    return [dict(task)] if isinstance(task, Mapping) else list(find_tasks([Path(task)]))
