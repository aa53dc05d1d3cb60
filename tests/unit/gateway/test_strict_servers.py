"""Servers that reject the field stream_options, which the gateway adds, and answers that have no end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from multistep.gateway.accounting.open_steps import OpenSteps
from multistep.gateway.model_api import answer_memory
from multistep.gateway.model_api.answer_memory import MAX_ANSWER, MAX_SMALL, MAX_STEP, MAX_TOTAL, AnswerMemory, AnswerTooLarge
from tests.unit.gateway.answer_shapes import CHAT_USAGE, COUNTED, DONE, SAID, STOP, STREAM, WHOLE
from tests.unit.gateway.world import World, request_of, step_of, world

FORBIDDEN = {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}
UNKNOWN = {"error": {"message": "Unknown field: stream_options", "type": "invalid_request_error"}}


@asynccontextmanager
async def provided(directory: Path, handler: Any) -> AsyncIterator[World]:
    app = web.Application()
    app.router.add_post("/{path:.*}", handler)
    async with TestServer(app, shutdown_timeout=0) as server, world(directory) as it:
        await it.admin.register("openai", it.credential("openai", base_url=str(server.make_url("/v1"))))
        yield it


@pytest.mark.parametrize(("status", "refusal"), [(422, FORBIDDEN), (400, UNKNOWN)])
@pytest.mark.parametrize("end", [[], [DONE]])
async def test_a_field_that_the_gateway_added_and_a_server_rejects_is_left_out(
    tmp_path: Path, status: int, refusal: Any, end: list[str]
) -> None:
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.read())
        if b"stream_options" in bodies[-1]:
            return web.json_response(refusal, status=status)
        events = [json.dumps(SAID), json.dumps(STOP), *end]
        return web.Response(body="".join(f"data: {each}\n\n" for each in events).encode(), headers=STREAM)

    async with provided(tmp_path, answer) as it:
        for _ in range(2):
            seen = await it.call("chat", stream=True)
            assert (seen.status, seen.error) == (200, "") and b"stop" in seen.body
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete, usage.last_failure, usage.fault) == (2, 2, None, None)
    _, _, sent = request_of("chat", "gpt-5-mini", "", stream=True)
    assert [json.loads(each) for each in bodies[1:]] == [sent, sent], "the field is added to no further request"


async def test_a_rejection_of_another_field_reaches_the_agent_unchanged(tmp_path: Path) -> None:
    refusal = {"error": {"message": "x" * 10_000}}

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(refusal, status=400)

    async with provided(tmp_path, answer) as it:
        seen = await it.call("chat", stream=True)
        assert (seen.status, json.loads(seen.body)) == (400, refusal)
        assert (await it.admin.close(step_of())).last_failure is None


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_an_end_is_cut_off_and_no_failure_of_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A tenant may give the URL of a server of its own."""
    monkeypatch.setattr(answer_memory, "MAX_ANSWER", 1 << 20)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM if stream else {"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b"data: ")
        while True:
            await response.write(b"x" * 65536)

    async with provided(tmp_path, answer) as it:
        assert (await it.send("chat", "gpt-5", stream=stream)).error
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete, usage.last_failure, usage.fault) == (1, 1, None, None)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_whose_values_would_fill_the_memory_is_cut_off_and_no_failure_of_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A tenant may give the URL of a server of its own. Parsed values need up to 30 times the memory of their text."""
    monkeypatch.setattr(answer_memory, "MAX_PARTS", 1000)

    async def answer(_: web.Request) -> web.StreamResponse:
        document = json.dumps({**WHOLE, "more": [[]] * 1000}).encode()
        return web.Response(body=b"data: " + document + b"\n\n", headers=STREAM) if stream else web.Response(body=document)

    async with provided(tmp_path, answer) as it:
        assert (await it.call("chat", stream=stream)).error
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete, usage.last_failure, usage.fault) == (1, 1, None, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("size", "times"), [(1000, 1), (1 << 20, 2)])
async def test_a_large_answer_is_parsed_in_the_time_that_a_step_may_parse_bodies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, size: int, times: int
) -> None:
    """A tenant's own server could send one after the other, and the gateway would serve nobody else."""
    parsing, entered = vars(OpenSteps)["parsing"], 0

    def counting(*arguments: Any) -> AbstractAsyncContextManager[None]:
        nonlocal entered
        entered += 1
        found: AbstractAsyncContextManager[None] = parsing(*arguments)
        return found

    async def answer(_: web.Request) -> web.StreamResponse:
        document = json.dumps({**(STOP if stream else WHOLE), "usage": CHAT_USAGE, "more": "x" * size}).encode()
        return web.Response(body=b"data: " + document + b"\n\n", headers=STREAM) if stream else web.Response(body=document)

    monkeypatch.setattr(OpenSteps, "parsing", counting)
    async with provided(tmp_path, answer) as it:
        assert not (await it.call("chat", stream=stream)).error
        assert entered == times


@pytest.mark.parametrize("more", ["x" * (2 << 20), [[]] * 1000])
async def test_an_error_that_is_larger_than_any_reaches_the_agent_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any
) -> None:
    monkeypatch.setattr(answer_memory, "MAX_PARTS", 1000)
    refusal = {"error": {"code": "invalid_api_key", "message": "no"}, "more": more}

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(refusal, status=400)

    async with provided(tmp_path, answer) as it:
        seen = await it.call("chat")
        assert (seen.status, json.loads(seen.body)) == (400, refusal)
        assert (await it.admin.close(step_of())).last_failure is None


async def test_a_long_stream_of_short_events_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_memory, "MAX_ANSWER", 200_000)

    async def answer(_: web.Request) -> web.StreamResponse:
        event = f"data: {json.dumps(SAID)}\n\n"
        end = "".join(f"data: {each}\n\n" for each in (json.dumps(STOP), json.dumps(COUNTED), DONE))
        return web.Response(body=(event * 10_000 + end).encode(), headers=STREAM)

    async with provided(tmp_path, answer) as it:
        seen = await it.call("chat", stream=True)
        assert (seen.error, seen.body.count(b"hi")) == ("", 10_000)
        assert (await it.admin.close(step_of())).incomplete == 0


def test_memory_for_answers_is_bounded_per_answer_per_step_and_in_total() -> None:
    memory, first, second = AnswerMemory(), step_of("1"), step_of("2")
    memory.count_bytes(first, MAX_ANSWER, 0)
    with pytest.raises(AnswerTooLarge):
        memory.count_bytes(first, 1, MAX_ANSWER)
    with pytest.raises(AnswerTooLarge):
        memory.count_bytes(first, MAX_STEP - MAX_ANSWER + 1, 0)
    memory.count_bytes(first, -MAX_ANSWER, MAX_ANSWER)
    for number in range(MAX_TOTAL // MAX_ANSWER):
        memory.count_bytes(step_of(f"other-{number}"), MAX_ANSWER, 0)
    memory.count_bytes(second, 1 << 20, 0)  # large answers take no room from a usual one
    with pytest.raises(AnswerTooLarge):
        memory.count_bytes(second, 8 << 20, 1 << 20)


def test_memory_for_the_answers_of_any_number_of_steps_is_bounded() -> None:
    memory, steps = AnswerMemory(), (step_of(f"step-{number}") for number in range(10_000))
    with pytest.raises(AnswerTooLarge) as refused:
        for each in steps:
            memory.count_bytes(each, 2 << 20, 0)
    assert memory._total <= MAX_TOTAL + MAX_SMALL
    assert refused.value.crowded, "no agent is to blame"
