"""Test whose failure it is if the budget of a trial is spent after attempts were lost, with the real gateway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.trial import parse_trial
from tests.support.world import manifest
from tests.unit.gateway.world import token_for, world
from tests.unit.reconcile.test_model_gateway import gateway, reported


@pytest.mark.parametrize(
    ("used_in", "refused_in", "kept", "kind"),
    [
        ("1/a", "a", [], "LostBudget"),
        ("1/%2Fsetup", "a", [], "LostBudget"),
        ("1/b", "b", ["a"], "LostBudget"),
        ("1/a", "b", ["a"], "Budget"),
        ("2/a", "b", [], "Budget"),
        ("2/%2Fsetup", "a", [], "Budget"),
    ],
)
async def test_a_budget_that_lost_attempts_used_is_no_failure_of_the_agent(
    tmp_path: Path, used_in: str, refused_in: str, kept: Sequence[str], kind: str
) -> None:
    """The trial is in its second attempt, which keeps these steps of the first. The budget has room for one request, which asks for
    at most 1,000 tokens."""
    limits = {"outputTokens": 1000}
    credentials = [{"name": "ANTHROPIC_API_KEY", "value": "x"}]
    agent = {"name": "codex", "model": "anthropic/m", "credentials": credentials, "limits": limits}
    resumed = {"resumed": {"after": kept[-1], "attempts": [1] * len(kept), "digest": "d"}} if kept else {}
    status: dict[str, Any] = {"attempt": 2, "taskSteps": ["a", "b"], **resumed}
    asked = parse_trial({**manifest({"agent": agent}), "status": status})
    async with world(tmp_path) as here:
        for step, answer in ((used_in, 200), (f"2/{refused_in}", 400)):
            token = token_for("messages", sub=f"{asked.metadata.uid}/{step}/agent", limits=limits)
            assert (await here.call("messages", token=token)).status == answer
        failure = reported(await gateway(here).close(asked, refused_in)).failure
        assert failure.kind == kind
        if kept:  # the names of the kept steps are unknown if the status was too large
            unknown = parse_trial({**manifest({"agent": agent}), "status": {**status, "taskSteps": []}})
            assert reported(await gateway(here).close(unknown, refused_in)).failure.kind == "Budget"
