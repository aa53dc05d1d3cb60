"""What a sweep does next: which trials it makes, what they come to, when it ends. Pure: the clock comes in.

A sweep's trials are numbered and made in that order, so the highest number that is there tells how many were made, and so
does the status, which is written after them: who dies in between goes on behind it, or is refused a name that is taken. A
number below that whose trial is not there was deleted by somebody; it is told, and never made again.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..api.trial import FailureClass

Order = Literal["Attempts", "Tasks"]
MOST_REWARD = 1e100
MAKE_AT_ONCE = 100  # trials, between two writes of the status

_NAME_CHARACTERS = 63  # what fits into a label, whole
_NO_NAME = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Cell:
    """A trial's place in the sweep. task, agent: indexes; attempt: from 1."""

    task: int
    agent: int
    attempt: int


@dataclass(frozen=True)
class Grid:
    """Every task with every agent, a number of times. tasks, agents: their names.

    order: Attempts makes the first attempts of everything before the second ones, so that there is an early estimate over
    all tasks; Tasks finishes a task before the next, so that few images are in use at a time.
    """

    tasks: Sequence[str]
    agents: Sequence[str]
    attempts: int
    order: Order = "Attempts"

    def __len__(self) -> int:
        return len(self.tasks) * len(self.agents) * self.attempts

    def cell(self, number: int) -> Cell:
        """Where the trial with this number, from 0, belongs."""
        if self.order == "Attempts":
            rest, agent = divmod(number, len(self.agents))
            attempt, task = divmod(rest, len(self.tasks))
        else:
            rest, attempt = divmod(number, self.attempts)
            task, agent = divmod(rest, len(self.agents))
        return Cell(task, agent, attempt + 1)

    def trial_name(self, sweep: str, number: int) -> str:
        """``SWEEP-TASK-AGENT-ATTEMPT-HASH``, cut to 63 characters. Always the same, and no other number of the sweep has it."""
        cell = self.cell(number)
        words = (sweep, self.tasks[cell.task], self.agents[cell.agent])
        digest = hashlib.sha256("\0".join((*words, str(cell.attempt))).encode()).hexdigest()[:8]
        ending = f"-{cell.attempt}-{digest}"
        plain = "-".join(_NO_NAME.sub("-", word.lower()).strip("-") for word in words)
        return plain[: _NAME_CHARACTERS - len(ending)].strip("-") + ending


@dataclass(frozen=True)
class TrialFacts:
    """What a sweep needs to know of one of its trials. blame: of one that did not give what it should; pod_seconds: so far."""

    number: int
    state: Literal["Live", "Complete", "Failed"]
    reward: float | None = None
    blame: FailureClass | None = None
    pod_seconds: float = 0.0


@dataclass(frozen=True)
class Limits:
    """When a sweep makes no more trials. None: never. failures: how many of a class are borne."""

    parallelism: int
    pod_hours: float | None = None
    failures: Mapping[FailureClass, int] = field(default_factory=dict)
    deadline: float | None = None


@dataclass(frozen=True)
class AgentTally:
    """An agent's trials that count, and the mean over tasks of each task's mean reward, as reports have it."""

    counted: int
    mean: float | None


@dataclass(frozen=True)
class Tally:
    """What the trials come to. deleted: made, and gone; blames: of those that do not count; agents: by index."""

    total: int
    made: int
    live: int
    complete: int
    failed: int
    deleted: int
    blames: Mapping[FailureClass, int]
    pod_hours: float
    agents: Sequence[AgentTally]

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.made == self.total and not self.live


@dataclass(frozen=True)
class Halt:
    """No trial is made any more."""

    reason: Literal["BudgetSpent", "TooManyFailures", "DeadlineExceeded"]
    message: str


def counted_reward(trial: TrialFacts) -> float | None:
    """What a trial adds to the mean; None: it does not count.

    An agent that leaves no reward by its own doing has failed, which is 0: else the mean would be of what it did not break.
    Nothing else that went wrong says anything about the agent, not even with a reward: one of three steps, say, of which a
    broken verifier ended the second, is the mean of the first alone. A reward that sums cannot hold is no evidence either.
    """
    if trial.state == "Live" or trial.blame not in (None, "Agent"):
        return None
    if trial.reward is None:
        return 0.0 if trial.blame == "Agent" else None
    return float(trial.reward) if trial.state == "Complete" and abs(trial.reward) <= MOST_REWARD else None


def tally(grid: Grid, made: int, trials: Sequence[TrialFacts]) -> Tally:
    """Count. made: how many numbers the status says were made; trials: those that are there."""
    states = Counter(each.state for each in trials)
    there = {each.number for each in trials}
    made = max([made, *(number + 1 for number in there)])
    lost = [each for each in trials if each.state != "Live" and counted_reward(each) is None]
    return Tally(
        total=len(grid),
        made=made,
        live=states["Live"],
        complete=states["Complete"],
        failed=states["Failed"],
        deleted=sum(number not in there for number in range(made)),
        blames=Counter(each.blame or "Task" for each in lost),
        pod_hours=sum(each.pod_seconds for each in trials) / 3600,
        agents=[_agent(grid, index, trials) for index in range(len(grid.agents))],
    )


def _agent(grid: Grid, index: int, trials: Sequence[TrialFacts]) -> AgentTally:
    by_task: dict[int, list[float]] = defaultdict(list)
    for each in trials:
        cell = grid.cell(each.number)
        reward = counted_reward(each) if cell.agent == index else None
        if reward is not None:
            by_task[cell.task].append(reward)
    means = [sum(rewards) / len(rewards) for rewards in by_task.values()]
    return AgentTally(sum(map(len, by_task.values())), sum(means) / len(means) if means else None)


def halt(counts: Tally, limits: Limits, now: float) -> Halt | None:
    """Why no more trials are to be made, if so. now: seconds since the epoch."""
    if limits.deadline is not None and now >= limits.deadline:
        return Halt("DeadlineExceeded", "the sweep's activeDeadlineSeconds are over")
    if limits.pod_hours is not None and counts.pod_hours >= limits.pod_hours:
        return Halt("BudgetSpent", f"the trials have used {counts.pod_hours:.2f} pod-hours, and the budget is {limits.pod_hours:g}")
    for blame, borne in limits.failures.items():
        if (found := counts.blames.get(blame, 0)) > borne:
            return Halt("TooManyFailures", f"{found} trials failed by the class {blame}, and {borne} are borne")
    return None


def to_make(counts: Tally, limits: Limits) -> range:
    """The numbers of the trials to make now."""
    room = max(limits.parallelism - counts.live, 0)
    return range(counts.made, min(counts.made + room, counts.made + MAKE_AT_ONCE, counts.total))
