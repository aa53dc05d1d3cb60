"""Numbers the trials of a sweep: tasks x agents x attempts, then branches, then retries. All functions are pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry of one trial of a sweep."""

    number: int
    """Number in the sweep of the trial that is retried."""
    count: int
    """Index of the retry among all retries of that trial, from 1."""


def retries_of(numbers: Iterable[int], total: int) -> Sequence[Retry]:
    """Return the retries that spec.retries requests, in order, without numbers that the sweep does not have.

    ``total`` is the number of the sweep's trials without retries.
    """
    counts = Counter[int]()
    retries = []
    for number in numbers:
        if number < total:
            counts[number] += 1
            retries.append(Retry(number, counts[number]))
    return retries


def unknown_numbers(numbers: Iterable[int], total: int) -> Sequence[int]:
    """Return the numbers in spec.retries that the sweep does not have."""
    return [number for number in numbers if number >= total]


Order = Literal["Attempts", "Tasks"]

BranchState = Literal["Start", "Own", "Reference"]

_NAME_CHARACTERS = 63  # maximum length of a label's value
_NO_NAME = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Branch:
    """The step that a branch runs, and the state from which it starts."""

    step: str
    state: BranchState
    """Start means the image, for a task's first step. Own means the agent's own checkpoint after step ``after`` of its ordinary
    attempt ``source``. Reference means the task's reference state before the step."""
    after: str = ""
    source: int = 0
    alone: bool = False
    """Whether the task has no other step."""


@dataclass(frozen=True, slots=True)
class TrialCell:
    """The task, agent and attempt of one trial of the sweep."""

    task: int
    """Index in TrialGrid.tasks."""
    agent: int
    """Index in TrialGrid.agents."""
    attempt: int
    """Number of the attempt, from 1. For branches it is counted per step and state."""
    branch: Branch | None = None
    """The branch, None for an ordinary trial."""
    retry: int = 0
    """Number of the retry: 0 for the first trial, 1 for its first retry, 2 for its second retry, and so on."""


@dataclass(frozen=True)
class TrialGrid:
    """The trials of a sweep, numbered in this order: the ordinary trials, the branches, the retries.

    The ordinary trials are the product of tasks, agents and attempts.
    """

    tasks: Sequence[str]
    """Names of the tasks."""
    agents: Sequence[str]
    """Names of the agents."""
    attempts: int
    """Number of attempts per task and agent."""
    order: Order = "Attempts"
    """Attempts creates all first attempts before the second ones, for an early estimate over all tasks. Tasks creates all trials of
    one task before those of the next, so that few images are in use at the same time."""
    branches: Sequence[TrialCell] | None = ()
    """The branches. None until they are planned, which is after the ordinary trials have finished. Retries are numbered after the
    branches, so no retries exist until then."""
    retries: Sequence[Retry] = ()

    @property
    def ordinary(self) -> int:
        """Return the number of ordinary trials."""
        return len(self.tasks) * len(self.agents) * self.attempts

    @property
    def total(self) -> int:
        """Return the number of trials without retries."""
        return self.ordinary + len(self.branches or ())

    def __len__(self) -> int:
        return self.total + len(self.retries)

    def sweep_number(self, number: int) -> int:
        """Return the number for which a trial counts, which for a retry is the number of the retried trial."""
        return number if number < self.total else self.retries[number - self.total].number

    def cell(self, number: int) -> TrialCell:
        """Return task, agent and attempt of a trial. ``number`` is the trial's number in the sweep, from 0."""
        if number >= self.total:
            retry = self.retries[number - self.total]
            return replace(self.cell(retry.number), retry=retry.count)
        if self.branches and number >= self.ordinary:
            return self.branches[number - self.ordinary]
        if self.order == "Attempts":
            rest, agent = divmod(number, len(self.agents))
            attempt, task = divmod(rest, len(self.tasks))
        else:
            rest, attempt = divmod(number, self.attempts)
            task, agent = divmod(rest, len(self.agents))
        return TrialCell(task, agent, attempt + 1)

    def number(self, task: int, agent: int, attempt: int) -> int:
        """Return the number of an ordinary trial."""
        if self.order == "Attempts":
            return ((attempt - 1) * len(self.tasks) + task) * len(self.agents) + agent
        return (task * len(self.agents) + agent) * self.attempts + attempt - 1

    def trial_name(self, sweep: str, number: int) -> str:
        """Return the name of a trial, ``SWEEP-TASK-AGENT-ATTEMPT-HASH`` with at most 63 characters.

        The name of a branch has step and state before the attempt. The name of a retry has ``rN`` after the attempt. Names are
        deterministic, and unique in the sweep.
        """
        cell = self.cell(number)
        where = () if cell.branch is None else (cell.branch.step, cell.branch.state)
        words = (sweep, self.tasks[cell.task], self.agents[cell.agent], *where)
        attempt = f"{cell.attempt}-r{cell.retry}" if cell.retry else str(cell.attempt)
        digest = hashlib.sha256("\0".join((*words, attempt)).encode()).hexdigest()[:8]
        ending = f"-{attempt}-{digest}"
        plain = "-".join(_NO_NAME.sub("-", word.lower()).strip("-") for word in words)
        return plain[: _NAME_CHARACTERS - len(ending)].strip("-") + ending
