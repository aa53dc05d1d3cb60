"""The branches of a sweep: trials of one step each. Pure.

Which branches there are depends on what the sweep's ordinary trials left, so they are planned when these have finished, from an
immutable record of the tasks' steps and the trials' checkpoints. Branches are numbered after the ordinary trials, in an order
that depends only on the spec and the record.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from multistep.api.sweep_branch import EACH, SweepBranch
from multistep.engine.sweeps import Branch, Cell, Grid


@dataclass(frozen=True)
class Left:
    """What an ordinary trial left. steps: names of the task's steps, [] if it never read its task; kept: names of the steps after
    which it has a checkpoint and went on. One after the step that ended the trial is none in which the agent reaches a step."""

    steps: Sequence[str]
    kept: Collection[str]


@dataclass(frozen=True)
class TaskStates:
    """What the ordinary trials of a task left. steps: names of the task's steps, [] if no trial read the task; left: for each
    agent and attempt, a number whose bit n is set if there is a checkpoint after step n (from 0)."""

    steps: Sequence[str]
    left: list[list[int]]

    def sources(self, agent: int, step: int) -> list[int]:
        """Return the agent's attempts, from 1, that have a checkpoint from which the step can start."""
        return [attempt for attempt, mask in enumerate(self.left[agent], 1) if step and mask >> (step - 1) & 1]


States = Sequence[TaskStates]
_RECORD: Final = TypeAdapter(list[TaskStates])


def left_by(trial: Mapping[str, Any]) -> Left:
    """Return what a trial left."""
    status = trial.get("status") or {}
    went_on = (status.get("steps") or [])[:-1]
    kept = {each["name"] for each in went_on if (each.get("checkpoint") or {}).get("digest")}
    return Left(status.get("taskSteps") or [], kept)


def states_of(grid: Grid, left: Mapping[int, Left]) -> States:
    """Return what the ordinary trials left, by task. left: what each of them left, by number; deleted ones are missing."""
    found = [TaskStates([], [[0] * grid.attempts for _ in grid.agents]) for _ in grid.tasks]
    for number, each in sorted(left.items()):
        cell = grid.cell(number)
        states = found[cell.task] = replace(found[cell.task], steps=found[cell.task].steps or each.steps)
        states.left[cell.agent][cell.attempt - 1] = sum(1 << index for index, name in enumerate(states.steps) if name in each.kept)
    return found


def to_text(states: States) -> str:
    """Return the record as text."""
    return json.dumps([asdict(each) for each in states], ensure_ascii=False, separators=(",", ":"))


def from_text(text: str, grid: Grid) -> States:
    """Return the record of a text. Raises ValueError if it is not one of this grid."""
    try:
        found = _RECORD.validate_json(text)
    except ValidationError as error:
        raise ValueError(str(error)) from None
    if len(found) != len(grid.tasks) or any(_shape(each) != [grid.attempts] * len(grid.agents) for each in found):
        raise ValueError("it has other tasks, agents or attempts than the sweep")
    return found


def _shape(states: TaskStates) -> list[int]:
    return [len(masks) for masks in states.left]


def count(grid: Grid, branch: SweepBranch, states: States) -> int:
    """Return the number of branches."""
    return branch.attempts * sum(1 for _ in _groups(grid, branch, states))


def cells_of(grid: Grid, branch: SweepBranch, states: States) -> Sequence[Cell]:
    """Return the branches, in the order of their numbers."""
    groups = list(_groups(grid, branch, states))
    attempts = range(1, branch.attempts + 1)
    if grid.order == "Attempts":
        return [_cell(states, *group, attempt) for attempt in attempts for group in groups]
    return [_cell(states, *group, attempt) for group in groups for attempt in attempts]


def _groups(grid: Grid, branch: SweepBranch, states: States) -> Iterator[tuple[int, int, int, bool]]:
    """Yield task, agent, step (indexes), and whether they start from the agent's own state, for each group of branches."""
    for task, agent in product(range(len(grid.tasks)), range(len(grid.agents))):
        for step in _chosen(branch, states[task]):
            if states[task].sources(agent, step):
                yield task, agent, step, True
            yield task, agent, step, False


def _cell(states: States, task: int, agent: int, step: int, own: bool, attempt: int) -> Cell:
    """Return a branch. The attempts from the agent's own state are spread over the trials that left one."""
    names, sources = states[task].steps, states[task].sources(agent, step)
    if not own:
        return Cell(task, agent, attempt, Branch(names[step], "Reference" if step else "Start", alone=len(names) == 1))
    source = sources[(attempt - 1) % len(sources)]
    return Cell(task, agent, attempt, Branch(names[step], "Own", after=names[step - 1], source=source))


def _chosen(branch: SweepBranch, states: TaskStates) -> Iterator[int]:
    return (index for index, name in enumerate(states.steps) if branch.takes(name))


def missing(grid: Grid, branch: SweepBranch, states: States) -> int:
    """Return how many steps, over all tasks and agents, no ordinary trial left a state for."""
    pairs = product(states, range(len(grid.agents)))
    return sum(index > 0 and not each.sources(agent, index) for each, agent in pairs for index in _chosen(branch, each))


def unknown(branch: SweepBranch, states: States) -> list[str]:
    """Return the names of steps in the spec that no task has."""
    known = {EACH, *(name for each in states for name in each.steps)}
    return [name for name in branch.at if name not in known]
