"""Budgets of steps and sweeps hold, however many requests run at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.gateway.budgets import Budgets, BudgetSpent, Reservation
from multistep.gateway.fair_queue import HoldExpired
from multistep.gateway.ledger import Spent
from multistep.gateway.tokens import StepClaims
from tests.support.virtual_time import in_virtual_time
from tests.unit.gateway.world import step_of, token_for, world

LONG = "say: " + "word " * 400


def claims(**changes: Any) -> StepClaims:
    """Return the claims of a step of a sweep."""
    given = {"sub": "uid/1/0/agent", "credential": "c", "exp": int(time.time()) + 600, "sweep": "ns/s", **changes}
    return StepClaims.model_validate(given)


def budgets(before: Spent | None = None) -> Budgets:
    """Return budgets. before: what each step and each sweep has already spent; None: nothing."""

    async def load(scope: str, name: str) -> Spent:
        await asyncio.sleep(0)
        return before or Spent()

    return Budgets(load)


@pytest.mark.parametrize("limits", [{"inputTokens": 3000}, {"outputTokens": 2000}, {"costUSD": 0.04}])
async def test_concurrent_requests_of_a_step_do_not_exceed_its_budget_together(tmp_path: Path, limits: dict[str, Any]) -> None:
    async with world(tmp_path) as it:
        token = token_for("messages", limits=limits)
        seen = await asyncio.gather(*(it.call("messages", "-slow-20", text=LONG, token=token) for _ in range(20)))
        usage = await it.admin.close(step_of())
        one = it.model.entries[0]
        used = {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens, "costUSD": usage.cost_usd or 0.0}
        each = {"inputTokens": one.input, "outputTokens": one.output, "costUSD": used["costUSD"] / len(it.model.entries)}
        (name,) = limits
        assert limits[name] <= used[name] < limits[name] + each[name], "only the last request may exceed the budget"
        assert {answer.status for answer in seen} == {200, 400}
        assert sum(answer.status == 200 for answer in seen) == len(it.model.entries) == usage.requests
        assert usage.last_failure is not None
        assert (usage.last_failure.status, usage.last_failure.kind) == (400, "Budget")


async def test_the_budget_of_a_sweep_is_shared_by_its_trials(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        tokens = [token_for("messages", f"uid-{n}", sweep="ns/s", sweepLimits={"costUSD": 0.02}) for n in range(12)]
        await asyncio.gather(*(it.call("messages", text=LONG, token=token) for token in tokens))
        costs = [(await it.admin.close(step_of(f"uid-{number}"))).cost_usd or 0.0 for number in range(12)]
        assert 0.02 <= sum(costs) < 0.02 + max(costs)
        other = token_for("messages", "uid-other", sweep="ns/other", sweepLimits={"costUSD": 0.02})
        assert (await it.call("messages", token=other)).status == 200


async def test_what_was_spent_before_a_restart_counts(tmp_path: Path) -> None:
    token = token_for("messages", limits={"inputTokens": 10})
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    async with world(tmp_path / "first") as it:
        assert (await it.call("messages", token=token)).status == 200
    async with world(tmp_path / "second", ledger_file=tmp_path / "first" / "ledger.sqlite") as it:
        assert (await it.call("messages", token=token)).status == 400
        assert it.model.entries == []


async def test_a_budget_in_dollars_needs_a_price(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        token = token_for("chat", limits={"costUSD": 1})
        seen = await it.send("chat", "our-own-model", stream=False, token=token)
        assert seen.status == 400
        assert b"price" in seen.body
        assert it.model.entries == []


@in_virtual_time
async def test_a_request_that_does_not_fit_waits_for_the_others() -> None:
    accounts, who = budgets(), claims(limits={"inputTokens": 100})
    first = await accounts.reserve(who, Spent(80), 1)
    waiting = asyncio.create_task(accounts.reserve(who, Spent(50), 100))
    await asyncio.sleep(1)
    assert not waiting.done()
    first.settle(Spent(10))  # less than the 80 that were reserved
    second = await waiting
    second.settle(Spent(50))


@in_virtual_time
async def test_a_request_waits_at_most_for_the_hold() -> None:
    accounts, who = budgets(), claims(limits={"inputTokens": 100})
    await accounts.reserve(who, Spent(80), 1)
    with pytest.raises(HoldExpired):
        await accounts.reserve(who, Spent(50), 5)


@in_virtual_time
async def test_a_request_alone_is_sent_while_anything_is_left() -> None:
    accounts, who = budgets(Spent(99)), claims(limits={"inputTokens": 100})
    (await accounts.reserve(who, Spent(50), 1)).settle(Spent(20))
    with pytest.raises(BudgetSpent, match=r"step's budget is spent: 119 of 100 input tokens"):
        await accounts.reserve(who, Spent(1), 1)


@given(
    limit=st.integers(1, 300),
    requests=st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=1, max_size=30),
)
def test_requests_within_their_estimates_exceed_a_budget_by_less_than_one_request(
    limit: int, requests: list[tuple[int, float]]
) -> None:
    spent: list[int] = []

    @in_virtual_time
    async def run() -> None:
        accounts, who = budgets(), claims(limits={"inputTokens": limit})

        async def request(estimate: int, share: float) -> None:
            try:
                reservation: Reservation = await accounts.reserve(who, Spent(estimate), 10_000)
            except BudgetSpent:
                return
            await asyncio.sleep(share)
            used = round(estimate * share)
            spent.append(used)
            reservation.settle(Spent(used))

        await asyncio.gather(*(request(*each) for each in requests))

    run()
    assert sum(spent) < limit + max(estimate for estimate, _ in requests)
    assert sum(spent[:-1], 0) < limit, "the budget was exceeded by more than the last request"
