"""Test what a process of the agent that has a judge's token can do to the requests of the tests: a request that it keeps from its
answer counts as unanswered, so that the verdict does not count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from multistep.gateway.accounting.open_steps import OpenSteps
from multistep.gateway.accounting.unanswered import Unanswered
from multistep.gateway.http import model_request, servers
from multistep.gateway.http.reserve_budget import reserve
from tests.support.waiting import eventually
from tests.unit.gateway.test_unanswered import JUDGE, judges_token
from tests.unit.gateway.world import World, world

BY_AGENT = "say: mine\n" + "x" * 1500
"""The agent's request. With its overhead, a budget of 4000 input tokens has room for only one such request."""


@asynccontextmanager
async def occupied(here: World) -> AsyncIterator[None]:
    """Keep a request of the agent's process open in the context. It is answered afterwards."""
    here.model.faults = ["-cap-9-0"]
    here.model.open.clear()
    asking = asyncio.create_task(here.call("chat", text=BY_AGENT, token=limited()))

    async def sent() -> bool:
        return len(here.model.entries) == 1

    await eventually(sent)
    yield
    here.model.open.set()
    assert (await asking).status == 200


def limited() -> str:
    return judges_token(limits={"inputTokens": 4000})


async def leave(asking: asyncio.Task[Any]) -> None:
    asking.cancel()
    await asyncio.wait({asking})


async def lacking(here: World) -> Unanswered:
    (found,) = (await here.admin.close(JUDGE)).unanswered
    return found


@pytest.mark.parametrize(("name", "why"), [("MAX_OPEN", "1 open"), ("MAX_REQUESTS", "1 requests"), ("MAX_MODELS", "1 models")])
async def test_a_request_that_those_of_another_process_leave_no_room_for_is_unanswered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.setattr(f"multistep.gateway.accounting.open_steps.{name}", 1)
    async with world(tmp_path) as here:
        async with occupied(here):
            assert (await here.call("chat", "-other", token=judges_token())).status == 429
        found = await lacking(here)
        assert (found.cause, found.status) == ("Left", 429) and why in found.message


async def test_a_request_that_is_left_while_it_waits_for_other_bodies_is_unanswered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, release = OpenSteps({}), asyncio.Event()
    monkeypatch.setattr(servers, "OpenSteps", lambda *_: steps)
    async with world(tmp_path) as here:

        async def parse_slowly() -> None:
            with steps.open_request(JUDGE):
                async with steps.parsing(JUDGE, 1, "", nullcontext()):
                    await release.wait()

        async def arrived() -> bool:
            return steps.open_requests(JUDGE) == 2

        parsing = asyncio.create_task(parse_slowly())
        asking = asyncio.create_task(here.call("chat", token=judges_token()))
        await eventually(arrived)
        await leave(asking)
        release.set()
        await parsing
        found = await lacking(here)
        assert (found.cause, found.message) == ("Left", "the client left before the gateway had parsed the request")


async def test_a_request_that_is_left_while_others_reserve_the_budget_is_unanswered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = asyncio.Event()

    async def reserved(*given: Any) -> Any:
        asyncio.get_running_loop().call_soon(waits.set)
        return await reserve(*given)

    async with world(tmp_path) as here:
        async with occupied(here):
            monkeypatch.setattr(model_request, "reserve", reserved)
            asking = asyncio.create_task(here.call("chat", text=BY_AGENT + "y", token=limited()))
            await waits.wait()
            await leave(asking)
        found = await lacking(here)
        assert (found.cause, found.message) == ("Left", "the client left while the request waited for room in the budget")
