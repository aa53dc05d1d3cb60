"""Plans the branches of a sweep, which are trials of one step each. All functions are pure.

A branch may start from a checkpoint of an ordinary trial, so branches are planned after these trials have finished. The input is an
immutable record of the tasks' steps and the trials' checkpoints. Branches are numbered after the ordinary trials, in an order that
depends only on the spec and the record.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from multistep.api.sweep.sweep import EACH, SweepBranch
from multistep.engine.sweep.trial_grid import Branch, TrialCell, TrialGrid


@dataclass(frozen=True)
class StepCheckpoints:
    """The steps and checkpoints of an ordinary trial."""

    steps: Sequence[str]
    """Names of the task's steps, [] if the task was never read."""
    stored: Collection[str]
    """Names of the steps after which the trial has a checkpoint and ran another step. A checkpoint after the trial's last step does
    not count, because the agent never started a step from it."""


@dataclass(frozen=True)
class TaskStates:
    """The checkpoints of the ordinary trials of a task."""

    steps: Sequence[str]
    """Names of the task's steps, [] if the task was never read."""
    left: list[list[int]]
    """For each agent and attempt, a number whose bit n is set if the trial has a checkpoint after step n (from 0)."""

    def sources(self, agent: int, step: int) -> list[int]:
        """Return the numbers (from 1) of the agent's attempts that have a checkpoint from which the step can start."""
        return [attempt for attempt, mask in enumerate(self.left[agent], 1) if step and mask >> (step - 1) & 1]


States = Sequence[TaskStates]
_RECORD: Final = TypeAdapter(list[TaskStates])


def step_checkpoints(trial: Mapping[str, Any]) -> StepCheckpoints:
    """Return the steps and checkpoints of an ordinary trial."""
    status = trial.get("status") or {}
    followed = (status.get("steps") or [])[:-1]
    stored = {step["name"] for step in followed if (step.get("checkpoint") or {}).get("digest")}
    return StepCheckpoints(status.get("taskSteps") or [], stored)


def states_of(grid: TrialGrid, checkpoints: Mapping[int, StepCheckpoints]) -> States:
    """Return the ordinary trials' checkpoints, by task. ``checkpoints`` has them by trial number, without deleted trials."""
    by_task = [TaskStates([], [[0] * grid.attempts for _ in grid.agents]) for _ in grid.tasks]
    for number, checkpoint in sorted(checkpoints.items()):
        cell = grid.cell(number)
        former = by_task[cell.task]
        states = replace(former, steps=former.steps or checkpoint.steps)
        states.left[cell.agent][cell.attempt - 1] = sum(
            1 << index for index, name in enumerate(states.steps) if name in checkpoint.stored
        )
        by_task[cell.task] = states
    return by_task


def record_text(states: States) -> str:
    """Return the checkpoints as the text of the record, which parse_record parses."""
    return json.dumps([asdict(task_states) for task_states in states], ensure_ascii=False, separators=(",", ":"))


def parse_record(text: str, grid: TrialGrid) -> States:
    """Parse the text of a record. Raises ValueError if it is invalid, or has other tasks, agents or attempts than the grid."""
    try:
        states = _RECORD.validate_json(text)
    except ValidationError as error:
        raise ValueError(str(error)) from None
    if len(states) != len(grid.tasks) or any(_shape(task_states) != [grid.attempts] * len(grid.agents) for task_states in states):
        raise ValueError("it has other tasks, agents or attempts than the sweep")
    return states


def _shape(states: TaskStates) -> list[int]:
    return [len(masks) for masks in states.left]


def count_branches(grid: TrialGrid, branch: SweepBranch, states: States) -> int:
    """Return the number of branches."""
    return branch.attempts * sum(1 for _ in _groups(grid, branch, states))


def cells_of(grid: TrialGrid, branch: SweepBranch, states: States) -> Sequence[TrialCell]:
    """Return the branches, in the order of their numbers."""
    groups = list(_groups(grid, branch, states))
    attempts = range(1, branch.attempts + 1)
    if grid.order == "Attempts":
        return [_cell(states, *group, attempt) for attempt in attempts for group in groups]
    return [_cell(states, *group, attempt) for group in groups for attempt in attempts]


def _groups(grid: TrialGrid, branch: SweepBranch, states: States) -> Iterator[tuple[int, int, int, bool]]:
    """Yield each group of branches, as the indexes of task, agent and step, and whether the branches start from the agent's own
    state.

    All other branches start from the reference state or the image.
    """
    for task, agent in product(range(len(grid.tasks)), range(len(grid.agents))):
        for step in _chosen(branch, states[task]):
            if states[task].sources(agent, step):
                yield task, agent, step, True
            yield task, agent, step, False


def _cell(states: States, task: int, agent: int, step: int, own: bool, attempt: int) -> TrialCell:
    """Return a branch. Branches from the agent's own state are distributed over the trials that have a checkpoint for the step."""
    names, sources = states[task].steps, states[task].sources(agent, step)
    if not own:
        return TrialCell(task, agent, attempt, Branch(names[step], "Reference" if step else "Start", alone=len(names) == 1))
    source = sources[(attempt - 1) % len(sources)]
    return TrialCell(task, agent, attempt, Branch(names[step], "Own", after=names[step - 1], source=source))


def _chosen(branch: SweepBranch, states: TaskStates) -> Iterator[int]:
    return (index for index, name in enumerate(states.steps) if branch.includes(name))


def count_missing_states(grid: TrialGrid, branch: SweepBranch, states: States) -> int:
    """Return the number of chosen steps, over all tasks and agents, for which no ordinary trial of the agent has a checkpoint.

    The first step of a task is not counted, because it starts from the image.
    """
    pairs = product(states, range(len(grid.agents)))
    return sum(
        index > 0 and not task_states.sources(agent, index)
        for task_states, agent in pairs
        for index in _chosen(branch, task_states)
    )


def unknown_steps(branch: SweepBranch, states: States) -> list[str]:
    """Return the step names in spec.branch.at that no task has."""
    known = {EACH, *(name for task_states in states for name in task_states.steps)}
    return [name for name in branch.at if name not in known]
