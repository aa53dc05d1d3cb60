"""Sample trials in the form that the API server returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from multistep.report.rows import TrialRow, trial_row

START = datetime(2026, 1, 1, tzinfo=UTC)


def step(name: str, reward: float | None = None, **fields: Any) -> dict[str, Any]:
    """Return a step's entry in a trial's status."""
    return {"name": name, **({} if reward is None else {"rewards": {"reward": reward}}), **fields}


def used(cost: float | None, *, incomplete: int = 0) -> dict[str, Any]:
    """Return a step's usage, as the gateway counts it."""
    counts = {"inputTokens": 10, "outputTokens": 1, "requests": 5, "incomplete": incomplete, "source": "Gateway"}
    return {**counts, **({} if cost is None else {"costUSD": cost})}


def trial(
    task: str = "hello",
    agent: str = "mine",
    attempt: int = 1,
    *,
    reward: float | None = None,
    ended: str | None = "Complete",
    failure: tuple[str, str] | None = None,
    seconds: float = 60,
    steps: list[dict[str, Any]] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """Return a sweep's trial. ended: type of the condition that is true, None for an active trial; failure: class and reason."""
    over = {"completionTime": (START + timedelta(seconds=seconds)).isoformat()} if ended else {}
    conditions = [{"type": ended, "status": "True", "reason": "Because", "lastTransitionTime": START.isoformat()}] if ended else []
    return {
        "metadata": {
            "name": f"s-{task}-{agent}-{attempt}",
            "namespace": "evals",
            "annotations": {"multistep.dev/task": task, "multistep.dev/agent": agent, "multistep.dev/attempt": str(attempt)},
        },
        "spec": {"task": {"bundle": {"configMaps": ["x"], "digest": "sha256:" + "1" * 64}}, "agent": {"name": "nop"}},
        "status": {
            "conditions": conditions,
            "startTime": START.isoformat(),
            "attempt": 1,
            "steps": steps or [],
            **({} if reward is None else {"rewards": {"reward": reward}}),
            **({"failure": {"class": failure[0], "reason": failure[1]}} if failure else {}),
            **(_score(reward, failure, steps or []) if ended else {}),
            **over,
            **status,
        },
    }


def _score(reward: float | None, failure: tuple[str, str] | None, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the status fields about a finished trial's outcome, as the operator sets them."""
    if failure and failure[0] != "Agent":
        return {"outcome": "Excluded"}
    if failure:
        return {"score": 0.0, "passed": False, "outcome": "AgentError"}
    if reward is None:
        return {"outcome": "Unverified"}
    rule = {"steps": max(1, len(steps)), "strategy": "Mean"}
    return {"score": reward, "passed": reward >= 1, "outcome": "Passed" if reward >= 1 else "NotPassed", "scoreRule": rule}


def sweep(outcomes: Mapping[tuple[str, str], Sequence[float | str | None]]) -> list[TrialRow]:
    """Return a report's rows. outcomes: each trial's reward (number) or failure class (str), by task and agent; None: active."""
    found = []
    for (task, agent), those in outcomes.items():
        for attempt, outcome in enumerate(those, 1):
            if outcome is None:
                made = trial(task, agent, attempt, ended=None)
            elif isinstance(outcome, str):
                made = trial(task, agent, attempt, ended="Failed", failure=(outcome, f"{outcome}Reason"))
            else:
                made = trial(task, agent, attempt, reward=outcome, steps=[step("only", outcome, seconds={"agent": 5.0})])
            found.append(trial_row(made))
    return found
