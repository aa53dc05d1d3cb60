"""What a report says, as data: the leaderboard, the steps of each task, durations, what was lost and by whose doing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from .rows import Row, StepRow
from .statistics import Difference, Estimate, difference, mean_reward, pass_at


@dataclass(frozen=True)
class Standing:
    """An agent. passes: pass@k by k.

    trials: all of them; live: those that are not over; counted: those that the mean is of; lost: the others, by class.
    """

    agent: str
    mean: Estimate | None
    passes: Mapping[int, Estimate]
    trials: int
    live: int
    counted: int
    lost: Mapping[str, int]


@dataclass(frozen=True)
class StepCell:
    """A step of a task: of the trials that count, how many reached it and passed it.

    reward, seconds: the mean of those that have one.
    """

    step: str
    trials: int
    reached: int
    passed: int
    reward: float | None
    seconds: float | None


@dataclass(frozen=True)
class TaskSteps:
    """A task with one agent."""

    task: str
    agent: str
    mean: float | None
    steps: Sequence[StepCell]


@dataclass(frozen=True)
class Durations:
    """How long something took, in seconds."""

    what: str
    count: int
    median: float
    p90: float
    longest: float


@dataclass(frozen=True)
class Loss:
    """Trials that ended before their time for one reason, and whose doing it was."""

    blame: str
    reason: str
    trials: Sequence[Row]


@dataclass(frozen=True)
class Summary:
    """All of it."""

    standings: Sequence[Standing]
    tasks: Sequence[TaskSteps]
    durations: Sequence[Durations]
    losses: Sequence[Loss]
    rows: Sequence[Row]


def summarize(found: Sequence[Row]) -> Summary:
    """What the rows come to; standings with the best mean first."""
    agents = sorted({row.agent for row in found})
    standings = [_standing(agent, [row for row in found if row.agent == agent]) for agent in agents]
    standings.sort(key=lambda each: (-each.mean.value if each.mean else float("inf"), each.agent))
    return Summary(standings, list(_tasks(found)), list(_durations(found)), list(_losses(found)), found)


def rewards_by_task(found: Iterable[Row]) -> dict[str, list[float]]:
    """Of the trials that count."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for row in found:
        if row.counts is not None:
            by_task[row.task].append(row.counts)
    return by_task


def compare(first: Iterable[Row], second: Iterable[Row]) -> Difference | None:
    """How much better the first are, task by task; None when no task has trials that count in both."""
    return difference(rewards_by_task(first), rewards_by_task(second))


def _standing(agent: str, found: Sequence[Row]) -> Standing:
    counted = [row for row in found if row.counts is not None]
    passed: dict[str, list[bool]] = defaultdict(list)
    for row in counted:
        passed[row.task].append(row.passed)
    most = max(map(len, passed.values()), default=0)
    passes = {k: pass_at(k, passed) for k in range(1, most + 1)}
    return Standing(
        agent=agent,
        mean=mean_reward(rewards_by_task(found)),
        passes={k: each for k, each in passes.items() if each is not None},
        trials=len(found),
        live=sum(row.state == "Live" for row in found),
        counted=len(counted),
        lost=Counter(row.blame or "Task" for row in found if row.state != "Live" and row.counts is None),
    )


def _tasks(found: Sequence[Row]) -> Iterable[TaskSteps]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in found:
        groups[row.task, row.agent].append(row)
    for (task, agent), members in sorted(groups.items()):
        counted = [row for row in members if row.counts is not None]
        rewards = [row.counts for row in counted if row.counts is not None]
        longest_first = sorted(counted, key=lambda row: -len(row.steps))
        names = list(dict.fromkeys(step.name for row in longest_first for step in row.steps))
        yield TaskSteps(task, agent, fmean(rewards) if rewards else None, [_cell(name, counted) for name in names])


def _cell(name: str, counted: Sequence[Row]) -> StepCell:
    steps = [step for row in counted for step in row.steps if step.name == name]
    rewards = [step.reward for step in steps if step.reward is not None]
    seconds = [sum(step.seconds.values()) for step in steps if step.seconds]
    return StepCell(
        step=name,
        trials=len(counted),
        reached=len(steps),
        passed=sum(step.passed for step in steps),
        reward=fmean(rewards) if rewards else None,
        seconds=fmean(seconds) if seconds else None,
    )


def _durations(found: Sequence[Row]) -> Iterable[Durations]:
    yield from _duration("trial", [row.seconds for row in found if row.seconds is not None])
    steps: list[StepRow] = [step for row in found for step in row.steps]
    for phase in ("setup", "healthcheck", "agent", "verifier", "artifacts"):
        yield from _duration(phase, [step.seconds[phase] for step in steps if phase in step.seconds])


def _duration(what: str, seconds: Sequence[float]) -> Iterable[Durations]:
    if seconds:
        p90 = quantiles(seconds, n=10, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
        yield Durations(what, len(seconds), median(seconds), p90, max(seconds))


def _losses(found: Sequence[Row]) -> Iterable[Loss]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in found:
        if row.blame:
            groups[row.blame, row.reason].append(row)
    for (blame, reason), members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        yield Loss(blame, reason, members)
