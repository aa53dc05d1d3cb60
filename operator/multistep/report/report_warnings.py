"""Warnings about a report's means: broken tasks, uneven exclusions, tampering, missing branches. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from multistep.api.common.plural import plural
from multistep.report.branches import Branches
from multistep.report.rows import TrialRow

UNEVEN = 0.05  # means are not comparable if the agents' shares of excluded trials differ by more than this
_ORACLE = "oracle"
_BROKEN = ("Verifier", "Task")
_EPSILON = 1e-9
_SOME = 3


@dataclass(frozen=True)
class BrokenTask:
    """A task whose verifier, setup.sh or healthcheck failed for the agent oracle."""

    task: str
    reasons: Sequence[str]
    trials: int
    """Number of these failures."""
    why: str = ""
    """Message of the first of these failures."""

    def __str__(self) -> str:
        trials = plural(self.trials, "trial")
        text = f"task {self.task} is broken: it failed for the agent oracle, too, in {trials} ({', '.join(self.reasons)})"
        return f"{text}: {self.why}" if self.why else text


def broken_tasks(rows: Iterable[TrialRow]) -> list[BrokenTask]:
    """Return the tasks that have a failure of class Verifier or Task with the agent oracle. A trial whose verification is disabled
    has class Task, too, but nothing failed in it."""
    failed: dict[str, list[TrialRow]] = defaultdict(list)
    for row in rows:
        if row.program == _ORACLE and row.state != "Active" and row.failure_class in _BROKEN and row.outcome != "Unverified":
            failed[row.task].append(row)
    return [
        BrokenTask(task, sorted({row.reason for row in those}), len(those), those[0].message)
        for task, those in sorted(failed.items())
    ]


def uneven_exclusions(agents: Mapping[str, Sequence[TrialRow]]) -> str | None:
    """Return a warning if the largest and the smallest share of excluded trials among the agents differ by more than UNEVEN."""
    shares = {agent: share for agent, rows in agents.items() if (share := _share(rows)) is not None}
    if len(shares) < 2:
        return None
    most, least = max(shares, key=lambda agent: shares[agent]), min(shares, key=lambda agent: shares[agent])
    if shares[most] - shares[least] <= UNEVEN + _EPSILON:
        return None
    text = f"{shares[most]:.0%} of the finished trials of {most} are excluded, but {shares[least]:.0%} of {least}'s"
    return f"{text}: their means are of different samples; compare them by the mean if 0, or run the excluded trials again"


def warnings(agents: Mapping[str, Sequence[TrialRow]]) -> Iterator[str]:
    """Yield all warnings about the agents' means."""
    if (uneven := uneven_exclusions(agents)) is not None:
        yield uneven
    for agent, rows in agents.items():
        if tampered := sum(row.tampering != "" for row in rows):
            yield f"{tampered} of {len(rows)} trials of {agent} have evidence of tampering: their rewards may be forged"
    yield from map(str, broken_tasks(row for rows in agents.values() for row in rows))


def branch_warnings(branches: Branches) -> Iterator[str]:
    """Yield warnings about missing branches: steps without trials from the agent's own state, and tasks without branches."""
    if lacking := sum(step.has_no_own_state for step in branches.steps):
        yield f"{lacking} of {len(branches.steps)} branched steps have no trials from the agent's own state: no trial left one"
    if branches.without:
        more = f" and {len(branches.without) - _SOME} more" if len(branches.without) > _SOME else ""
        yield f"these tasks have no branches: {', '.join(branches.without[:_SOME])}{more}"


def _share(rows: Sequence[TrialRow]) -> float | None:
    finished = [row for row in rows if row.state != "Active"]
    return sum(row.excluded for row in finished) / len(finished) if finished else None
