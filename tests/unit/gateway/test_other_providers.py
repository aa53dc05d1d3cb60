"""Answers of services other than the three providers: OpenRouter, vLLM, Kimi, LiteLLM, proxies and web pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from multistep.gateway.accounting.step_usage import StepUsage
from multistep.gateway.model_api.answer_parsers import (
    CHAT,
    GEMINI,
    MESSAGES,
    RESPONSES,
    AnswerParser,
    ApiFormat,
    EventReader,
    TokenUsage,
)
from multistep.gateway.model_api.error_blame import blame
from multistep.gateway.model_api.forwarded_headers import upstream_headers
from tests.support.waiting import eventually
from tests.unit.gateway.world import Seen, World, step_of, world


@pytest.mark.parametrize(
    ("api", "event"),
    [
        (CHAT, {"model": "m", "choices": []}),
        (RESPONSES, {"type": "response.completed", "response": {"model": "m"}}),
        (MESSAGES, {"type": "message_start", "message": {"model": "m"}}),
        (GEMINI, {"modelVersion": "m", "candidates": []}),
    ],
)
def test_an_answer_may_name_its_model(api: ApiFormat, event: dict[str, object]) -> None:
    reading = AnswerParser(api, reads_model=True)
    reading.event(json.dumps({"type": "ping", "model": 1}).encode())
    assert reading.model == ""
    reading.event(json.dumps(event).encode())
    reading.event(b'{"type": "ping"}')
    assert reading.model == "m"


@dataclass
class Service:
    """A service that gives the same answer to each request, after a pause in seconds."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    pause: float = 0.0
    requests: int = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.requests += 1
        await asyncio.sleep(self.pause)
        return web.Response(status=self.status, body=self.body, headers={"Content-Type": "application/json", **self.headers})


@asynccontextmanager
async def serving(service: Service, directory: Path) -> AsyncIterator[World]:
    """Run a gateway whose OpenAI credential has the service's URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with world(directory) as it:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            await it.admin.register("openai", it.credential("openai", base_url=url))
            yield it
    finally:
        await runner.cleanup()


async def asked(service: Service, directory: Path) -> tuple[Seen, StepUsage]:
    """Return the answer to a chat request, and the usage of its step."""
    async with serving(service, directory) as it:
        return await it.call("chat"), await it.admin.close(step_of())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 502, "message": "Provider returned error"}, "Provider"),
        ({"code": 429, "message": "rate limited upstream"}, "Provider"),
        ({"code": {"unusual": 1}, "message": "m"}, "Provider"),
        ({"code": 400, "type": "BadRequestError", "message": "the prompt is too long"}, None),
    ],
)
async def test_an_error_in_an_answer_with_status_200_is_the_providers(tmp_path: Path, error: Any, kind: str | None) -> None:
    """OpenRouter sends status 200 once the model has started, and reports a later error in the answer's body."""
    seen, usage = await asked(Service(body=json.dumps({"error": error}).encode()), tmp_path)
    assert (seen.status, json.loads(seen.body)["error"]) == (200, error)
    assert (usage.last_failure and (usage.last_failure.kind, usage.last_failure.message)) == (
        kind and (kind, f"the provider reported an error in its answer: {error['message']}")
    )
    assert usage.incomplete == 1


@pytest.mark.parametrize(
    ("document", "failed"),
    [
        ({"status": "failed", "error": {"code": "server_error"}, "usage": None}, True),
        ({"status": "completed", "error": None}, False),
    ],
)
def test_a_failed_response_is_the_providers_failure_without_a_stream_too(document: dict[str, Any], failed: bool) -> None:
    reading = AnswerParser(RESPONSES)
    reading.document(json.dumps({"object": "response", **document}).encode())
    assert (reading.failure and blame(200, reading.failure)) == ("Provider" if failed else None)


@pytest.mark.parametrize("api", [CHAT, MESSAGES])
def test_the_data_of_an_event_may_have_several_lines_that_end_with_crlf(api: ApiFormat) -> None:
    (event,) = EventReader().feed(b'data: {"type": "error",\r\ndata: "error": {"message": "m"}}\r\n\r\n')
    reading = AnswerParser(api)
    reading.event(event.data)
    assert reading.failure is not None


@pytest.mark.parametrize("location", ["https://www.example.com/v1/chat/completions", ""])
async def test_a_redirect_is_a_wrong_base_url(tmp_path: Path, location: str) -> None:
    headers = {"Location": location} if location else {}
    seen, usage = await asked(Service(status=308, headers=headers), tmp_path)
    assert seen.status == 400
    assert usage.last_failure is not None
    assert (usage.last_failure.kind, usage.last_failure.status) == ("Configuration", 308)
    to = f" to {location}" if location else ""
    assert usage.last_failure.message == f"the provider answered with a redirect{to}: baseURL must be the URL of the API itself"


async def test_a_web_page_is_named_as_what_it_is(tmp_path: Path) -> None:
    seen, usage = await asked(Service(body=b"<html>Sign in</html>", headers={"Content-Type": "text/html; charset=utf-8"}), tmp_path)
    assert seen.error
    assert usage.last_failure is not None
    assert (usage.last_failure.kind, usage.last_failure.message) == ("Provider", "the provider's answer is text/html and no JSON")


async def test_a_refused_request_is_not_sent_again_for_an_agent_that_left(tmp_path: Path) -> None:
    service = Service(status=429, headers={"Retry-After": "0"}, pause=0.3)
    async with serving(service, tmp_path) as it:
        call = asyncio.create_task(it.call("chat"))

        async def is_sent() -> bool:
            return service.requests == 1

        await eventually(is_sent)
        call.cancel()
        await asyncio.wait([call])
        await asyncio.sleep(1.0)  # longer than the service's and the gateway's pause
        usage = await it.admin.close(step_of())
        assert (service.requests, usage.incomplete, usage.last_failure) == (1, 0, None)


@pytest.mark.parametrize("end", ["", "data: [DONE]\n\n"])
async def test_an_error_in_a_stream_is_reported_in_the_providers_words_without_the_key(tmp_path: Path, end: str) -> None:
    error = {"code": 502, "message": "upstream of sk-REAL-openai is down"}
    body = f'data: {{"choices": []}}\n\ndata: {json.dumps({"error": error})}\n\n{end}'.encode()
    _, usage = await asked(Service(body=body, headers={"Content-Type": "text/event-stream"}), tmp_path)
    assert usage.last_failure is not None
    assert usage.last_failure.message == "the provider reported an error in its answer: upstream of [REDACTED] is down"


def test_an_error_of_a_response_has_a_message() -> None:
    reading = AnswerParser(RESPONSES)
    reading.event(json.dumps({"type": "response.failed", "response": {"error": {"code": "x", "message": "words"}}}).encode())
    assert reading.failure is not None and reading.failure.message == "words"


@pytest.mark.parametrize("name", ["X-Goog-FieldMask", "X-HTTP-Method-Override"])
def test_no_header_makes_an_answer_look_cut_off(name: str) -> None:
    """An answer without a finish reason counts as the provider's failure, which gives the trial another attempt."""
    assert upstream_headers([(name, "x")], ("x-goog-api-key", "k"))[:-2] == []


@pytest.mark.parametrize("streamed", [False, True])
def test_the_tokens_of_a_compaction_are_counted(streamed: bool) -> None:
    """Anthropic's counts outside of ``iterations`` are those of the messages only."""
    compaction = {"type": "compaction", "input_tokens": 180_000, "cache_read_input_tokens": 1000, "output_tokens": 3500}
    message = {"type": "message", "input_tokens": 23_000, "output_tokens": 1000}
    usage = {"input_tokens": 23_000, "output_tokens": 1000, "iterations": [compaction, message]}
    reading = AnswerParser(MESSAGES)
    if streamed:
        reading.event(json.dumps({"type": "message_start", "message": {"usage": {"input_tokens": 23_000}}}).encode())
        for output in (1, 1000):
            reading.event(json.dumps({"type": "message_delta", "usage": {**usage, "output_tokens": output}}).encode())
    else:
        reading.document(json.dumps({"type": "message", "usage": usage}).encode())
    assert reading.usage == TokenUsage(input=204_000, cached=1000, output=4500)


def test_cached_tokens_may_be_beside_the_details() -> None:
    reading = AnswerParser(CHAT)
    reading.document(json.dumps({"usage": {"prompt_tokens": 32, "completion_tokens": 9, "cached_tokens": 20}}).encode())
    assert reading.usage == TokenUsage(32, 20, output=9)
