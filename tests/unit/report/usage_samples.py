"""A sample sweep of 1,000 finished trials with the usage of their models: 2 agents x 50 tasks x 10 attempts, 3 steps each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.unit.report.samples import step, trial

TASKS, ATTEMPTS, STEPS = 50, 10, 3


@dataclass(frozen=True)
class Agent:
    """An agent of the sample sweep. passes: number of each task's trials that pass; input_tokens, output_tokens, cost_usd: usage of
    one step.

    lost: whether the last trial of each task has an earlier failed attempt, whose first step has the same usage.
    """

    name: str
    passes: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    lost: bool = False

    @property
    def usages(self) -> int:
        """Return the number of steps with usage in all of the agent's trials."""
        return TASKS * (ATTEMPTS * STEPS + self.lost)

    def usage(self) -> dict[str, Any]:
        """Return the usage of one step, as in a trial's status."""
        tokens = {"inputTokens": self.input_tokens, "cachedTokens": self.input_tokens // 2, "outputTokens": self.output_tokens}
        return {**tokens, "costUSD": self.cost_usd, "requests": 4, "incomplete": 0, "heldSeconds": 0.0, "source": "Gateway"}

    def trial(self, task: int, attempt: int) -> dict[str, Any]:
        """Return one of the agent's trials."""
        reward = float(attempt <= self.passes)
        steps = [step(f"step-{number}", reward, usage=self.usage(), seconds={"agent": 30.0}) for number in range(STEPS)]
        made = trial(f"task-{task:02}", self.name, attempt, reward=reward, steps=steps)
        if self.lost and attempt == ATTEMPTS:
            failed = {"number": 1, "reason": "ProviderFailed", "steps": [step("step-0", usage=self.usage())]}
            made["status"] |= {"attempt": 2, "attempts": [failed]}
        return made


AGENTS = (Agent("cc", 5, 20_000, 800, 0.25), Agent("t2", 2, 3_000_000, 90, 0.5, lost=True))


def trials() -> Iterator[dict[str, Any]]:
    """Yield the sweep's trials in the form that the API server returns."""
    for agent in AGENTS:
        for task in range(TASKS):
            yield from (agent.trial(task, attempt) for attempt in range(1, ATTEMPTS + 1))
