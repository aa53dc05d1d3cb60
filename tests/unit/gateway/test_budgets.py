"""Budgets of trials and sweeps are never exceeded, however many requests run at once, and whenever the gateway dies."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from multistep.gateway.accounting.budgets import Budgets, BudgetSpent, Reservation
from multistep.gateway.accounting.ledger_rows import RequestRow, Spent
from multistep.gateway.accounting.prices import cost_usd
from multistep.gateway.accounting.request_ledger import RETENTION_SECONDS, RequestLedger
from multistep.gateway.accounting.step_usage import StepUsage
from multistep.gateway.keys.tokens import Role, StepClaims, StepKey
from multistep.gateway.model_api.answer_parsers import TokenUsage
from tests.support.virtual_time import in_virtual_time
from tests.unit.gateway.answer_shapes import WHOLE
from tests.unit.gateway.test_provider_faults import served
from tests.unit.gateway.world import request_of, step_of, token_for, world

LONG = "say: " + "word " * 400
Unit = Literal["inputTokens", "outputTokens", "costUSD"]


def claims(**changes: Any) -> StepClaims:
    """Return the claims of a step's token. changes: further or replaced claims, by their names in the token."""
    given = {"sub": "uid/1/0/agent", "credential": "c", "exp": int(time.time()) + 600, "sweep": "s", **changes}
    return StepClaims.model_validate(given)


def budgets(before: Spent | None = None) -> Budgets:
    """Return budgets of trials and sweeps. before: usage that the ledger has for each of them; None: no usage."""

    async def load(scope: str, name: str) -> Spent:
        await asyncio.sleep(0)
        return before or Spent()

    return Budgets(load)


def used(usage: StepUsage, unit: Unit) -> float:
    """Return a step's usage in the unit of a budget."""
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens, "costUSD": usage.cost_usd or 0.0}[unit]


@pytest.mark.parametrize(
    ("unit", "limit", "role"),
    [("inputTokens", 10_000, "agent"), ("outputTokens", 3000, "agent"), ("costUSD", 0.1, "agent"), ("costUSD", 0.1, "judge")],
)
async def test_twenty_requests_at_once_stay_within_the_trials_budget(tmp_path: Path, unit: Unit, limit: float, role: Role) -> None:
    async with world(tmp_path) as it:
        token = token_for("messages", limits={unit: limit}, sub=f"uid-1/1/0/{role}", agent=role)
        for _ in range(3):
            seen = await asyncio.gather(*(it.call("messages", "-slow-20", text=LONG, token=token) for _ in range(20)))
        usage = await it.admin.close(StepKey("uid-1", "1", "0", role))
        assert 0 < used(usage, unit) <= limit
        assert {answer.status for answer in seen} <= {200, 400}
        assert usage.requests == len(it.model.entries), "a refused request is not sent"
        assert usage.last_failure is not None
        assert (usage.last_failure.status, usage.last_failure.kind) == (400, "Budget")
        whose = {"agent": "trial", "judge": "judge"}[role]
        assert f"the {whose}'s budget has no room for this request" in usage.last_failure.message


async def test_a_trials_budget_counts_all_its_steps_and_attempts(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        limits = {"outputTokens": 1000}  # each request sets a maximum of 1000 output tokens
        assert (await it.call("messages", token=token_for("messages", limits=limits))).status == 200
        for sub in ("uid-1/1/1/agent", "uid-1/2/0/agent"):
            assert (await it.call("messages", token=token_for("messages", sub=sub, limits=limits))).status == 400
        failure = (await it.admin.close(StepKey("uid-1", "2", "0", "agent"))).last_failure
        assert failure is not None
        assert failure.kind == "Budget"
        assert (await it.call("messages", token=token_for("messages", "uid-10", limits=limits))).status == 200


async def test_the_budget_of_a_sweep_is_shared_by_its_trials(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        tokens = [token_for("messages", f"uid-{n}", sweep="s", sweepLimits={"costUSD": 0.1}) for n in range(20)]
        for _ in range(3):
            await asyncio.gather(*(it.call("messages", text=LONG, token=token) for token in tokens))
        usages = [await it.admin.close(step_of(f"uid-{number}")) for number in range(20)]
        assert 0.05 < sum(each.cost_usd or 0.0 for each in usages) <= 0.1
        assert {each.last_failure.kind for each in usages if each.last_failure} == {"SweepBudget"}
        other = token_for("messages", "uid-other", sweep="other", sweepLimits={"costUSD": 0.1})
        assert (await it.call("messages", token=other)).status == 200


async def test_what_was_spent_before_a_restart_counts(tmp_path: Path) -> None:
    token = token_for("messages", limits={"outputTokens": 1000})
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    async with world(tmp_path / "first") as it:
        assert (await it.call("messages", token=token)).status == 200
    async with world(tmp_path / "second", ledger_file=tmp_path / "first" / "ledger.sqlite") as it:
        assert (await it.call("messages", token=token)).status == 400
        assert it.model.entries == []


async def test_a_request_that_could_not_be_recorded_costs_nothing(tmp_path: Path) -> None:
    """If such requests counted, a full volume would use up the budgets of all trials until the gateway was restarted."""
    async with world(tmp_path) as it:
        token = token_for("messages", limits={"outputTokens": 1500})
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(RequestLedger, "write", AsyncMock(side_effect=sqlite3.OperationalError("disk full")))
        assert (await it.call("messages", token=token)).status == 500
        monkeypatch.undo()
        assert (await it.call("messages", token=token)).status == 200
        assert len(it.model.entries) == 1


async def test_a_crash_between_reservation_and_settlement_keeps_the_reservation(tmp_path: Path) -> None:
    most = RequestRow("a", "uid/1/0/agent", "s", "x", "openai", "m", reserved_input=70, reserved_output=30, reserved_usd=0.5)
    ledger = RequestLedger(tmp_path / "ledger.sqlite")
    await ledger.write(most)
    ledger.stop()  # the request was never settled
    ledger = RequestLedger(tmp_path / "ledger.sqlite")
    accounts = Budgets(ledger.spent)
    who = claims(limits={"inputTokens": 100}, sweepLimits={"costUSD": 1})
    with pytest.raises(BudgetSpent, match=r"trial's budget has no room .*: 70 of 100 input tokens are used, and it may use 40"):
        await accounts.reserve(who, Spent(40), 1)
    with pytest.raises(BudgetSpent, match=r"sweep's budget has no room .*: 0\.5 of 1\.0 US dollars are used, and it may use 0\.6"):
        await accounts.reserve(who, Spent(1, 0, 0.6), 1)
    ledger.stop()


async def test_what_a_sweep_used_long_ago_still_counts(tmp_path: Path) -> None:
    month = RETENTION_SECONDS + 60
    old = RequestRow("a", "uid/1/0/agent", "s", "x", "openai", "m", 70, 30, 0.5, began=time.time() - month, state="lost")
    for number, row in enumerate((old, replace(old, input_tokens=8, output_tokens=2, cost_usd=0.25))):
        ledger = RequestLedger(tmp_path / "ledger.sqlite")
        await ledger.write(replace(row, id=str(number), ended=time.time() - month))
        ledger.stop()
    ledger = RequestLedger(tmp_path / "ledger.sqlite")
    await ledger.write(replace(old, id="new", ended=time.time(), input_tokens=1, output_tokens=1, cost_usd=0.125))
    assert await ledger.spent("sweep", "s") == Spent(79, 33, 0.875)
    assert await ledger.spent("sweep", "other") == Spent()
    ledger.stop()


async def test_a_budget_in_dollars_needs_a_price(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        token = token_for("chat", limits={"costUSD": 1})
        seen = await it.send("chat", "our-own-model", stream=False, token=token)
        assert seen.status == 400
        assert b"the price of our-own-model is unknown" in seen.body
        assert it.model.entries == []
        failure = (await it.admin.close(step_of())).last_failure
        assert failure is not None
        assert failure.kind == "Configuration"


@pytest.mark.parametrize(("limits", "status"), [({"costUSD": 1}, 400), ({"outputTokens": 1000}, 200)])
async def test_a_budget_in_dollars_refuses_a_service_tier_of_unknown_price(
    tmp_path: Path, limits: dict[str, float], status: int
) -> None:
    async with world(tmp_path) as it:
        path, headers, body = request_of("chat", "gpt-5", token_for("chat", limits=limits))
        body |= {"service_tier": "priority", "max_completion_tokens": 10}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert (answer.status, "service tier" in await answer.text()) == (status, status == 400)


DEAR = ["gpt-5", "gpt-5-pro"]
MANY = [*map(str, range(33))]


@pytest.mark.parametrize(
    ("field", "limits", "refused"),
    [
        ({"models": DEAR}, {"costUSD": 0.1}, ""),
        ({"models": DEAR}, {"costUSD": 0.02}, "of 0.02 US dollars are used"),  # enough for gpt-5
        ({"fallbacks": [{"gpt-5": DEAR}]}, {"costUSD": 0.02}, "of 0.02 US dollars are used"),
        ({"context_window_fallback_dict": {"gpt-5": "gpt-5-pro"}}, {"costUSD": 0.02}, "of 0.02 US dollars are used"),
        ({"Content_Policy_Fallbacks": [{"gpt-5": DEAR}]}, {"costUSD": 0.02}, "of 0.02 US dollars are used"),
        ({"models": ["gpt-5"], "fallbacks": None}, {"costUSD": 0.02}, ""),
        ({"models": ["our-own"]}, {"costUSD": 1}, "the price of 'our-own', a model that the request to gpt-5 names, is unknown"),
        ({"models": MANY}, {"costUSD": 100}, "the price of '32'"),
        ({"models": MANY}, {"outputTokens": 1000}, ""),
        ({"models": ["our-own"]}, {"outputTokens": 1000}, ""),
        ({"models": ["our-own"], "max_completion_tokens": None}, {"outputTokens": 200_000}, "names no maximum of output tokens"),
        ({"models": ["our-own"], "max_completion_tokens": None}, {}, ""),
    ],
)
async def test_a_budget_holds_whichever_model_answers(
    tmp_path: Path, field: dict[str, Any], limits: dict[str, float], refused: str
) -> None:
    """An agent chooses the other models, so a refusal is never the configuration's fault, nor that of lost attempts."""
    async with world(tmp_path) as it:
        path, headers, body = request_of("chat", "gpt-5", token_for("chat", limits=limits))
        body |= {"max_completion_tokens": 10, **field}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert (answer.status, refused in await answer.text()) == (400 if refused else 200, True)
        failure = (await it.admin.close(step_of())).last_failure
        assert (failure and (failure.kind, failure.most)) == (("Budget", Spent()) if refused else None)


@pytest.mark.parametrize(
    ("models", "answered", "charged"),
    [
        (DEAR, None, "gpt-5-pro"),
        (DEAR, "our-own-name", "gpt-5-pro"),
        (DEAR, "gpt-5-2025-08-07", "gpt-5"),
        (["gpt-5-mini"], None, "gpt-5"),
        (["our-own"], None, "gpt-5"),
        ([], "gpt-5-pro", "gpt-5"),
    ],
)
async def test_the_model_that_answers_is_charged_or_else_the_dearest(
    tmp_path: Path, models: list[str], answered: str | None, charged: str
) -> None:
    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response(WHOLE | ({"model": answered} if answered else {}))

    async with served(tmp_path, answer) as it:
        path, headers, body = request_of("chat", "gpt-5", token_for("chat"))
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json={**body, "models": models}) as found:
            assert found.status == 200
        assert (await it.admin.close(step_of())).cost_usd == cost_usd("openai", charged, TokenUsage(100, output=7))


async def test_a_budget_needs_a_maximum_of_output_tokens(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        token = token_for("chat", limits={"outputTokens": 1000})
        seen = await it.send("chat", "our-own-model", stream=False, token=token)
        assert seen.status == 400
        assert b"names no maximum of output tokens" in seen.body
        assert it.model.entries == []
        assert (await it.send("chat", "our-own-model", stream=False)).status == 200, "without a budget none is needed"


@in_virtual_time
async def test_a_request_that_does_not_fit_waits_for_the_others() -> None:
    accounts, who = budgets(), claims(limits={"inputTokens": 100})
    first = await accounts.reserve(who, Spent(80), 1)
    waiting = asyncio.create_task(accounts.reserve(who, Spent(50), 100))
    await asyncio.sleep(1)
    assert not waiting.done()
    first.release(Spent(10))  # 10 tokens used, 80 reserved: the second request fits now
    second = await waiting
    assert second.own_seconds == pytest.approx(1)
    second.release(Spent(50))


@in_virtual_time
async def test_a_request_that_other_requests_leave_no_room_is_refused_after_the_hold() -> None:
    accounts, who = budgets(), claims(sweepLimits={"inputTokens": 100})
    first, other = await accounts.reserve(who, Spent(80), 1), claims(sub="other/1/0/agent", sweepLimits={"inputTokens": 100})
    with pytest.raises(BudgetSpent, match=r"sweep's budget .*: 80 of 100 input tokens are used or reserved by other re") as caught:
        await accounts.reserve(other, Spent(50), 5)
    assert not caught.value.by_own_requests
    waiting = asyncio.create_task(accounts.reserve(other, Spent(50), 5))
    await asyncio.sleep(1)
    first.release(Spent(10))
    second = await waiting
    assert second.own_seconds == 0
    second.release(Spent(50))


@in_virtual_time
async def test_no_trial_reserves_what_is_left_of_its_sweeps_budget() -> None:
    """Otherwise an agent could suspend its sweep and get another attempt, and all other trials would lose their attempts."""
    accounts, who = budgets(), claims(sweepLimits={"costUSD": 100})
    other = claims(sub="other/1/0/agent", sweepLimits={"costUSD": 100})
    held = [await accounts.reserve(who, Spent(0, 0, 20), 1) for _ in range(3)]
    with pytest.raises(BudgetSpent, match=r"other requests leave no room .*: 120\.0 of 100\.0 US dollars are used or") as caught:
        await accounts.reserve(who, Spent(0, 0, 20), 1)
    assert caught.value.by_own_requests
    with pytest.raises(BudgetSpent) as caught:
        await accounts.reserve(who, Spent(0, 0, 50), 1)
    assert caught.value.by_own_requests
    (await accounts.reserve(other, Spent(0, 0, 40), 1)).release(Spent())
    for each in held:
        each.release(Spent(0, 0, 1))
    (await accounts.reserve(who, Spent(0, 0, 97), 1)).release(Spent())


@in_virtual_time
async def test_a_request_that_cannot_fit_is_refused_although_something_is_left() -> None:
    accounts, who = budgets(Spent(60)), claims(limits={"inputTokens": 100})
    (await accounts.reserve(who, Spent(40), 1)).release(Spent(20))
    with pytest.raises(BudgetSpent, match="80 of 100 input tokens are used, and it may use 21"):
        await accounts.reserve(who, Spent(21), 1)
    (await accounts.reserve(who, Spent(20), 1)).release(Spent(20))


@given(
    limit=st.integers(1, 300),
    requests=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.floats(0, 1)), min_size=1, max_size=40),
    kill_at=st.floats(0, 3),
)
def test_no_order_of_requests_and_no_crash_exceeds_a_sweeps_budget(
    limit: int, requests: list[tuple[int, int, float]], kill_at: float
) -> None:
    charged: list[int] = []  # tokens that the provider charged, even if the gateway died before it got the answer

    @in_virtual_time
    async def run() -> None:
        who = claims(sweepLimits={"inputTokens": limit})
        counted = [0]  # total in the ledger: usage of settled requests, and reservations of the other requests

        async def request(accounts: Budgets, most: int, share: float) -> None:
            try:
                reservation: Reservation = await accounts.reserve(who, Spent(most), 10_000)
            except BudgetSpent:
                return
            counted[0] += most
            charged.append(used := round(most * share))
            assert sum(charged) <= limit
            await asyncio.sleep(share)
            counted[0] += used - most
            reservation.release(Spent(used))

        for rounds in range(2):
            accounts = budgets(Spent(counted[0]))
            tasks = []
            for delay, most, share in requests:
                await asyncio.sleep(delay / 10)
                tasks.append(asyncio.create_task(request(accounts, most, share)))
            await asyncio.wait(tasks, timeout=None if rounds else kill_at)
            for task in tasks:
                task.cancel()  # the gateway dies: nothing is settled any more
            await asyncio.gather(*tasks, return_exceptions=True)

    run()
    assert sum(charged) <= limit


async def test_an_account_that_could_not_be_loaded_is_loaded_again() -> None:
    load = AsyncMock(side_effect=[sqlite3.OperationalError("disk I/O error"), Spent()])
    accounts, who = Budgets(load), claims(sweep="", limits={"inputTokens": 10})
    with pytest.raises(sqlite3.OperationalError):
        await accounts.reserve(who, Spent(1), 1)
    assert await accounts.reserve(who, Spent(1), 1)
