"""Test the tokens of judges: their budget is not their agent's, also after a restart of the gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from multistep.gateway.keys.tokens import StepKey
from tests.unit.gateway.world import token_for, world


def judges_token(**claims: Any) -> str:
    return token_for("chat", sub="uid-1/1/0/judge", agent="judge", **claims)


async def test_the_budgets_of_agent_and_judge_are_apart(tmp_path: Path) -> None:
    small = {"inputTokens": 4000}
    async with world(tmp_path) as here:
        for _ in range(2):
            assert (await here.call("chat", token=token_for("chat", limits={"inputTokens": 10**6}))).status == 200
        long = "say: hello\n" + "x" * 1500
        assert (await here.call("chat", token=judges_token(limits=small), text=long)).status == 200
        spent = (await here.admin.close(StepKey("uid-1", "1", "0", "judge"))).input_tokens
        assert 0 < spent < 4000
    async with world(tmp_path) as here:  # the accounts are loaded from the ledger
        other = token_for("chat", sub="uid-1/1/1/judge", agent="judge", limits={"inputTokens": spent + 100})
        refused = await here.call("chat", token=other)
        assert refused.status == 400
        assert f"the judge's budget has no room for this request: {spent} of {spent + 100} input tokens are used" in str(
            json.loads(refused.body)
        )
        failure = (await here.admin.close(StepKey("uid-1", "1", "1", "judge"))).last_failure
        assert failure is not None and failure.kind == "Budget"
        agents = token_for("chat", step="1", limits={"inputTokens": 10**6})
        assert (await here.call("chat", token=agents)).status == 200


async def test_closing_the_judges_access_leaves_the_agents_open(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        assert (await here.call("chat", token=judges_token())).status == 200
        await here.admin.close(StepKey("uid-1", "1", "0", "judge"))
        assert (await here.call("chat", token=judges_token())).status == 401
        assert (await here.call("chat")).status == 200


async def test_the_token_of_a_phase_that_has_ended_stays_refused_after_a_restart_of_the_gateway(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        assert (await here.call("chat", token=judges_token())).status == 200
        await here.admin.close(StepKey("uid-1", "1", "0", "judge"))
    async with world(tmp_path) as here:
        assert (await here.call("chat", token=judges_token())).status == 401
        assert here.model.entries == []
