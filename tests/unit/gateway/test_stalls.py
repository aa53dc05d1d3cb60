"""How long the provider stalled a step: simultaneous waits count once, and stalls survive a restart of the gateway."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.gateway.accounting.open_steps import OpenSteps
from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.accounting.waiting_seconds import Stalls
from multistep.gateway.keys.credentials import Credential, Credentials
from multistep.gateway.keys.tokens import LONGEST_SECONDS, StepKey
from multistep.gateway.model_api.routes import STALLS_PATH
from tests.unit.gateway.world import World, step_of, token_for, world

STEP, OTHER = StepKey("uid", "1", "a", "agent"), StepKey("uid", "1", "b", "agent")
spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=12)


class Written:
    """A ledger that keeps the written stalls in memory."""

    def __init__(self) -> None:
        self.stalls: dict[str, float] = {}

    async def write_stall(self, step: StepKey, seconds: float) -> None:
        self.stalls[str(step)] = seconds


@given(spans)
async def test_a_second_in_which_any_request_waits_counts_once(found: list[tuple[int, int]]) -> None:
    """found: start and length of each request's wait, in seconds."""
    now, ledger, waits = 0, Written(), dict[int, Any]()
    stalls = Stalls(ledger, {}, lambda: float(now))  # type: ignore[arg-type]
    for now in range(61):
        for number, (start, length) in enumerate(found):
            if start + length == now:
                await waits.pop(number).__aexit__(None, None, None)
            if start == now:
                waits[number] = stalls.waiting(STEP)
                await waits[number].__aenter__()
        stalled = len({second for start, length in found for second in range(start, start + length) if second < now})
        assert (stalls.seconds(STEP), stalls.seconds(OTHER)) == (stalled, 0)
    assert ledger.stalls == ({str(STEP): stalled} if found else {})


async def test_ended_steps_leave_nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway runs for months. What steps, stalls and credentials leave is dropped, but nothing that is in use."""
    now, ledger = 0.0, Written()
    stalls = Stalls(ledger, {}, lambda: now)  # type: ignore[arg-type]
    for step in (STEP, OTHER):
        async with stalls.waiting(step):
            now += 5
    stalls.forget({STEP}.__contains__)
    assert (stalls.seconds(STEP), stalls.seconds(OTHER), ledger.stalls[str(STEP)]) == (0, 5, 5), "the ledger keeps it"

    steps = OpenSteps({}, clock=lambda: now)
    with steps.open_request(STEP), steps.open_request(OTHER):
        steps.count_model(STEP, "m")
        steps.close(STEP, until=now + 10)
    now += 10
    steps.forget()
    assert not steps.is_closed(STEP) and list(steps._steps) == [OTHER]
    now += LONGEST_SECONDS
    steps.forget()
    assert not steps._steps

    monkeypatch.setattr("multistep.gateway.keys.credentials.time", SimpleNamespace(monotonic=lambda: now))
    credentials, credential = Credentials(), Credential.model_validate({"provider": "openai", "key": "k", "baseURL": None})
    for name in ("used", "unused"):
        credentials.register(name, credential)
    now += 80_000
    assert await credentials.get("used", 0.0) == credential
    now += 80_000
    credentials.forget()
    assert (credentials.has("used"), credentials.has("unused")) == (True, False)


async def reported(it: World, token: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{it.port}{STALLS_PATH}"
    async with it.http.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status, await answer.json()


async def test_a_refused_requests_wait_stalls_its_step_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the stalls' clock is a second later than the one before."""
    ticks = itertools.count()
    monkeypatch.setattr("multistep.gateway.http.servers.Stalls", partial(Stalls, clock=lambda: float(next(ticks))))
    async with world(tmp_path, retry_after=0) as it:
        token = token_for("chat")
        await it.call("chat", token=token)
        assert await reported(it, token) == (200, {"stalledSeconds": 0.0})
        await it.call("chat", "-fail-429-2", token=token)
        status, found = await reported(it, token)
        assert status == 200 and found["stalledSeconds"] >= 2, "two waits of a second or more each"
    async with world(tmp_path) as it:
        assert await reported(it, token) == (status, found)
        assert (await it.admin.close(step_of())).stalled_seconds == round(found["stalledSeconds"], 3)
        assert (await reported(it, token))[0] == 401


async def test_a_step_is_stalled_while_its_request_still_waits(tmp_path: Path) -> None:
    async with world(tmp_path, retry_after=30) as it:
        token = token_for("chat")
        waiting = asyncio.create_task(it.call("chat", "-fail-429-2", token=token))
        while (await reported(it, token))[1]["stalledSeconds"] < 0.1:
            await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_without_a_valid_token_nothing_is_reported(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        assert (await reported(it, "wrong"))[0] == 401


async def test_the_ledger_forgets_stalls_of_long_ago(tmp_path: Path) -> None:
    ledger = RequestLedger(tmp_path / "ledger")
    await ledger.write_stall(STEP, 1.5)
    assert await ledger.stalls() == {str(STEP): 1.5}
    await ledger.forget(float("inf"))
    assert await ledger.stalls() == {}
    ledger.stop()
