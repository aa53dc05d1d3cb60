"""The branches of a sweep (trials of a single step) as data: how often each step is passed, by the state that trials start from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from multistep.report.pass_at_k import pass_at_ks
from multistep.report.rows import TrialRow
from multistep.report.statistics import Difference, Estimate, difference_of_chances, paired_difference, pass_at


@dataclass(frozen=True)
class Group:
    """The trials that start a step from one state."""

    trials: int
    """Number of all trials."""
    active: int
    """Number of active trials."""
    counted: int
    """Number of trials with a verdict that counts."""
    passed: int
    """Number of trials that passed the step."""
    passes: Mapping[int, float]
    """Pass@k by k, {} if no trial counts."""
    sources: int = 0
    """Number of other trials whose state these trials start from."""

    @property
    def excluded(self) -> int:
        """Return the number of finished trials that do not count."""
        return self.trials - self.active - self.counted


@dataclass(frozen=True)
class BranchedStep:
    """A step of a task with one agent."""

    task: str
    agent: str
    step: str
    start: Group | None
    """Trials of the task's first step, which can only start from the image."""
    own: Group | None
    """Trials from the agent's own state."""
    reference: Group | None
    """Trials from the reference state."""
    reached: int
    """Number of ordinary trials that started the step."""
    ordinary: int
    """Number of ordinary trials of the task with this agent."""
    difference: Estimate | None
    """Chance to pass from the agent's own state minus the chance from the reference state."""

    @property
    def has_no_own_state(self) -> bool:
        """Return whether no ordinary trial left a state from which the step could start."""
        return self.own is None and self.reference is not None


@dataclass(frozen=True)
class BranchedAgent:
    """An agent's mean difference over its tasks. All tasks have the same weight, and so have all steps of a task."""

    agent: str
    difference: Difference


@dataclass(frozen=True)
class Branches:
    """The branches of a sweep."""

    steps: Sequence[BranchedStep] = ()
    agents: Sequence[BranchedAgent] = ()
    """The agents that have a difference in several tasks."""
    without: Sequence[str] = field(default=())
    """Tasks that have ordinary trials but no branches, if the sweep has branches of other tasks."""


def branches_of(rows: Sequence[TrialRow]) -> Branches:
    """Return the branches among a sweep's trials."""
    if not any(row.branch for row in rows):
        return Branches()
    steps = list(_steps(rows))
    branched = {step.task for step in steps}
    return Branches(steps, list(_agents(rows, steps)), sorted({row.task for row in rows} - branched))


def _steps(rows: Iterable[TrialRow]) -> Iterator[BranchedStep]:
    ordinary: dict[tuple[str, str], list[TrialRow]] = defaultdict(list)
    groups: dict[tuple[str, str, str], dict[str, list[TrialRow]]] = defaultdict(lambda: defaultdict(list))
    numbers: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        if row.branch:
            numbers[row.task, row.step] = max(numbers[row.task, row.step], row.step_number)
            groups[row.task, row.agent, row.step][row.branch].append(row)
        else:
            ordinary[row.task, row.agent].append(row)
    for task, agent, step in sorted(groups, key=lambda key: (key[0], key[1], numbers[key[0], key[2]], key[2])):
        by_state, before = groups[task, agent, step], ordinary[task, agent]
        yield BranchedStep(
            task=task,
            agent=agent,
            step=step,
            start=_group(by_state["Start"]),
            own=_group(by_state["Own"]),
            reference=_group(by_state["Reference"]),
            reached=sum(any(step_row.name == step for step_row in row.steps) for row in before),
            ordinary=len(before),
            difference=difference_of_chances(_verdicts(by_state["Own"]), _verdicts(by_state["Reference"])),
        )


def _group(rows: Sequence[TrialRow]) -> Group | None:
    if not rows:
        return None
    verdicts = _verdicts(rows)
    passes = {k: estimate.value for k in pass_at_ks(len(verdicts)) if (estimate := pass_at(k, {"": verdicts})) is not None}
    active = sum(row.state == "Active" for row in rows)
    sources = len({row.source for row in rows if row.source})
    return Group(len(rows), active, len(verdicts), sum(verdicts), passes, sources)


def _verdicts(rows: Iterable[TrialRow]) -> list[bool]:
    """Return, for each trial that counts, whether it passed its only step."""
    return [row.passed for row in rows if row.passed is not None]


def _agents(rows: Iterable[TrialRow], steps: Sequence[BranchedStep]) -> Iterator[BranchedAgent]:
    """Yield the agents' differences. A task's chance to pass is the mean over its steps with trials from the agent's own state and
    from the reference state."""
    for agent in sorted({row.agent for row in rows}):
        own: dict[str, list[float]] = defaultdict(list)
        reference: dict[str, list[float]] = defaultdict(list)
        for step in steps:
            if step.agent == agent and step.difference is not None and step.own is not None and step.reference is not None:
                own[step.task].append(step.own.passed / step.own.counted)
                reference[step.task].append(step.reference.passed / step.reference.counted)
        mean_difference = paired_difference(own, reference)
        if mean_difference is not None and mean_difference.estimate.tasks > 1:
            yield BranchedAgent(agent, mean_difference)
