"""Builds the sweep that a client submits, with the objects that it owns. Reads the task directories, and checks them as
`multistep sweep run` does."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from multistep.api.sweep.sweep import parse_sweep
from multistep.client.submit.manifests import Manifest, Submission, TrialImage, checked_name, new_name
from multistep.client.submit.sweep_manifest import SweepOptions, agent_of_text, directories, find_tasks, sweep_of_tasks
from multistep.client.task.task_directory import TaskDirectory
from multistep.client.task.validate import validate_tasks
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
) -> Submission:
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
    planned = sweep_of_tasks(given, images, SweepOptions(name), given_image)
    entries = [_agent(each) for each in agents]
    sweep = {**planned.main, "spec": {**planned.main["spec"], **fields, "agents": entries}}
    spec = parse_sweep(sweep).spec
    validate_tasks(directories(given), spec, show=_show, remedy=_variables_of_spec, image=image)
    return Submission(sweep, planned.owned)


def _agent(agent: Agent) -> Manifest:
    """Return the entry of spec.agents. Raises UsageError, which names the argument and not the option of the command line."""
    if not isinstance(agent, str):
        return dict(agent)
    try:
        return agent_of_text(agent)
    except UsageError as error:
        raise UsageError(str(error).replace("--agent ", "agents: ")) from None


def _variables_of_spec(names: Sequence[str]) -> str:
    return f"set it in spec['template']['spec']['variables']: {', '.join(names)}"


def _show(kind: str, text: str) -> None:
    if kind == "warning":
        logger.warning(text)


def _tasks(task: Task) -> list[TaskDirectory | Manifest]:
    return [dict(task)] if isinstance(task, Mapping) else list(find_tasks([Path(task)]))
