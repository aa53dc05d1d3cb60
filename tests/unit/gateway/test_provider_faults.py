"""The provider is to blame for an agent's failure although the step's last request did not fail: another request at the same time
failed, the provider refused all requests, or it was silent until the agent's own timeout."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from multistep.gateway.accounting.open_steps import OpenSteps
from multistep.gateway.accounting.waiting_seconds import Silence
from multistep.gateway.http import model_request
from tests.support.waiting import eventually
from tests.unit.gateway.answer_shapes import DONE, SAID, STREAM, WHOLE
from tests.unit.gateway.world import World, request_of, step_of, token_for, world

Answer = Callable[[web.Request, int], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(directory: Path, answer: Answer, **settings: Any) -> AsyncIterator[World]:
    """Run a gateway in front of a provider whose answers the function gives. It gets the number of the request, from 1 on."""
    app, numbers = web.Application(), iter(range(1, 1000))

    async def provide(request: web.Request) -> web.StreamResponse:
        return await answer(request, next(numbers))

    app.router.add_post("/{path:.*}", provide)
    async with TestServer(app, shutdown_timeout=0) as provider, world(directory, **settings) as it:
        await it.admin.register("openai", it.credential("openai", base_url=str(provider.make_url("/v1"))))
        yield it


async def is_held(it: World) -> bool:
    """Return whether a request of the step waits because the provider refuses requests."""
    headers = {"Authorization": f"Bearer {token_for('chat')}"}
    async with it.http.get(f"http://127.0.0.1:{it.port}/multistep/stalls", headers=headers) as found:
        return bool((await found.json())["stalledSeconds"])


@pytest.mark.parametrize("fault", ["status", "cut"])
async def test_a_fault_of_one_of_two_requests_counts_if_the_agent_fails_though_the_other_is_answered_later(
    tmp_path: Path, fault: str
) -> None:
    failed = asyncio.Event()

    async def answer(request: web.Request, number: int) -> web.StreamResponse:
        if number == 1:
            await second.wait()
            if fault == "status":
                return web.json_response({}, status=500)
            assert request.transport is not None
            request.transport.abort()
        second.set()
        await failed.wait()
        return web.json_response(WHOLE)

    second = asyncio.Event()
    async with served(tmp_path, answer) as it:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(it.call("chat"))
            other = group.create_task(it.call("chat"))
            await asyncio.wait([first, other], return_when=asyncio.FIRST_COMPLETED)
            failed.set()
        usage = await it.admin.close(step_of())
        assert (usage.last_failure, usage.fault and usage.fault.kind) == (None, "Provider")


@pytest.mark.parametrize(("second", "fault"), [("gpt-5-mini", None), ("gpt-4o-mini", "gpt-5-mini")])
async def test_a_fault_does_not_count_if_the_provider_answered_a_new_request_for_the_model(
    tmp_path: Path, second: str, fault: str | None
) -> None:
    async with world(tmp_path) as it:
        it.model.faults = ["-fail-500", ""]
        for model in ("gpt-5-mini", second):
            await it.send("chat", model, stream=False)
        usage = await it.admin.close(step_of())
        assert (usage.last_failure, usage.fault and usage.fault.model) == (None, fault)


@pytest.mark.parametrize(("status", "least"), [(429, True), (503, True), (529, True), (0, True), (503, False)])
async def test_a_request_that_the_provider_refuses_until_the_agent_leaves_counts_for_an_agent_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, least: bool
) -> None:
    """If the agent leaves before the least time, the failure counts only at the agent's timeout: else an agent could get another
    attempt at will while other trials use up the rate limit. Status 0: the provider refuses connections."""
    if least:
        monkeypatch.setattr(model_request, "LEFT_SECONDS", 0.0)

    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        return web.json_response({}, status=status, headers={"Retry-After": "100"})

    async with served(tmp_path, answer) as it:
        if not status:
            await it.admin.register("openai", it.credential("openai", base_url="http://127.0.0.1:9/v1"))
        call = asyncio.create_task(it.call("chat"))
        await eventually(partial(is_held, it))
        call.cancel()
        await asyncio.wait([call])
        usage = await it.admin.close(step_of())
        assert usage.last_failure is None and usage.fault is not None
        assert (usage.fault.kind, usage.fault.status, usage.fault.at_timeout) == ("Provider", status, not least)
        assert "the provider refused the request" in usage.fault.message


async def test_a_request_that_was_left_while_it_was_refused_counts_only_for_an_agent_that_fails_if_another_was_answered(
    tmp_path: Path,
) -> None:
    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        if "title" in await request.text():
            return web.json_response({}, status=503, headers={"Retry-After": "100"})
        return web.json_response(WHOLE)

    async with served(tmp_path, answer) as it:
        title = asyncio.create_task(it.send("chat", "gpt-4o-mini", stream=False, text="title"))
        await eventually(partial(is_held, it))
        assert (await it.call("chat")).status == 200
        title.cancel()
        await asyncio.wait([title])
        usage = await it.admin.close(step_of())
        assert (usage.last_failure, usage.fault and usage.fault.status) == (None, 503)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_silence_is_the_time_in_which_requests_waited_since_the_last_answer() -> None:
    clock, step = Clock(), step_of()
    silence = Silence(clock)
    silence.start_wait(step)
    clock.now = 20.0
    silence.start_wait(step)
    silence.end_wait(step)
    clock.now = 30.0
    silence.end_wait(step)
    clock.now = 100.0  # the agent worked without a request
    assert silence.seconds(step) == 30.0
    silence.start_wait(step)
    clock.now = 105.0
    assert silence.seconds(step) == 35.0
    silence.heard(step)
    clock.now = 107.0
    assert silence.seconds(step) == 2.0
    silence.end_wait(step)
    assert silence.seconds(step) == 2.0 and silence.seconds(step_of("other")) == 0.0


@pytest.mark.parametrize("sent", ["nothing", "a part", "comments"])
async def test_a_silence_until_the_agent_leaves_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    clock, silent = Clock(), asyncio.Event()

    async def answer(request: web.Request, _: int) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM)
        clock.now += 25.0
        if sent != "nothing":
            await response.prepare(request)
            text = b": wait\n\nevent: ping\ndata: {}\n\n" if sent == "comments" else b'data: {"choices": []}\n\n'
            await response.write(text)
        silent.set()
        await asyncio.Event().wait()
        return response

    monkeypatch.setattr("multistep.gateway.http.servers.Silence", lambda: Silence(clock))
    async with served(tmp_path, answer, drain_seconds=0.0) as it:
        path, headers, body = request_of("chat", "gpt-5", token_for("chat"), stream=True)
        call = asyncio.create_task(it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body).__aenter__())
        await silent.wait()
        if sent != "nothing":
            assert await (await call).content.readany()  # the gateway has read it, too
        clock.now += 40.0
        call.cancel() if sent == "nothing" else (await call).close()
        await asyncio.wait([call])
        usage = await it.admin.close(step_of())
        assert usage.silent_seconds == (40.0 if sent == "a part" else 65.0)
        assert usage.last_failure is None


async def test_a_request_of_a_process_that_the_agent_left_running_makes_no_silence_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that leaves a slow request to such a process and exits at once could get another attempt otherwise."""
    clock, arrived, closing = Clock(), asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        arrived.set()
        await asyncio.Event().wait()
        return web.json_response(WHOLE)

    async def wait(*_: Any) -> None:
        clock.now += 70.0
        closing.set()

    monkeypatch.setattr("multistep.gateway.http.servers.Silence", lambda: Silence(clock))
    monkeypatch.setattr(OpenSteps, "wait", wait)
    async with served(tmp_path, answer, drain_seconds=0.0) as it:
        call = asyncio.create_task(it.call("chat"))
        await arrived.wait()
        clock.now += 3.0
        before = time.time()
        usage = await it.admin.close(step_of())
        assert closing.is_set() and usage.silent_seconds == 3.0
        assert usage.silent_until is not None and before <= usage.silent_until <= time.time()
        call.cancel()
        await asyncio.wait([call])


async def test_an_answer_that_is_complete_after_the_agent_left_ends_the_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that asks for a long answer and leaves could get another attempt otherwise."""
    clock, arrived, left = Clock(), asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request, __: int) -> web.StreamResponse:
        arrived.set()
        await left.wait()
        return web.json_response(WHOLE)

    async def has_left() -> bool:
        before = silence.seconds(step_of())
        clock.now += 1.0
        return silence.seconds(step_of()) == before

    silence = Silence(clock)
    monkeypatch.setattr("multistep.gateway.http.servers.Silence", lambda: silence)
    async with served(tmp_path, answer) as it:
        call = asyncio.create_task(it.call("chat"))
        await arrived.wait()
        clock.now += 40.0
        call.cancel()
        await asyncio.wait([call])
        await eventually(has_left)
        left.set()
        usage = await it.admin.close(step_of())
        assert (usage.incomplete, usage.silent_seconds) == (0, 0.0)


async def test_no_silence_is_left_after_an_answer(tmp_path: Path) -> None:
    async def answer(_: web.Request, number: int) -> web.StreamResponse:
        body = f"data: {json.dumps(SAID)}\n\ndata: {DONE}\n\n" if number == 2 else ""
        return web.Response(body=body.encode(), headers=STREAM)

    async with served(tmp_path, answer) as it:
        for _ in range(2):
            await it.call("chat", stream=True)
        assert (await it.admin.close(step_of())).silent_seconds == 0.0
