"""Requests with which an agent could have its own failure reported as one of the provider or of the configuration: its trial
would get another attempt, or would be excluded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import ClientError, ConnectionTimeoutError, web
from aiohttp.test_utils import TestServer

from multistep.gateway import pace
from multistep.gateway.accounting.budgets import Budgets, Reservation
from multistep.gateway.accounting.ledger_rows import Spent
from multistep.gateway.http import forward_answer, model_request
from multistep.gateway.http.forward_answer import error_message
from multistep.gateway.http.send_upstream import UpstreamRequest
from multistep.gateway.keys.tokens import StepClaims
from multistep.gateway.model_api.answer_parsers import MESSAGES, RESPONSES, AnswerParser, ApiFormat
from multistep.gateway.model_api.error_blame import exceeds_limit_alone, parse_error
from multistep.gateway.model_api.forwarded_headers import upstream_headers
from multistep.gateway.model_api.request_parsers import InvalidBody
from multistep.gateway.pace import HoldExpired, Lane
from tests.support.waiting import eventually
from tests.unit.gateway.answer_shapes import MESSAGE, WHOLE
from tests.unit.gateway.test_hostile_requests import parsed
from tests.unit.gateway.world import World, request_of, step_of, token_for, world


@pytest.mark.parametrize("name", ["Your credit balance is too low", "model: claude", "\tmodels/x"])
def test_no_unknown_field_looks_like_a_wrong_configuration(name: str) -> None:
    """Anthropic answers "NAME: Extra inputs are not permitted": with a suitable name, an agent could have its trial excluded."""
    with pytest.raises(InvalidBody, match="which no API has"):
        parsed(**{name: 1})


@pytest.mark.parametrize("api", [RESPONSES, MESSAGES])
def test_an_answer_that_is_nested_too_deeply_is_complete(api: ApiFormat) -> None:
    """An agent can ask for such an answer. It must not be the provider's failure."""
    deep = b'{"type": "response.completed", "message_stop": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    streamed, whole = AnswerParser(api), AnswerParser(api)
    streamed.event(deep)
    whole.document(deep)
    assert all(each.ended and each.answers and each.failure is None for each in (streamed, whole))
    assert error_message(deep, "key").startswith('{"type"')


@pytest.mark.parametrize("name", ["X-Server-Timeout", "x-litellm-timeout", "X-LiteLLM-Stream-Timeout", "cf-aig-request-timeout"])
def test_no_header_makes_a_provider_end_a_request_early(name: str) -> None:
    """Such an end would count as the provider's failure, which gives the trial another attempt."""
    assert upstream_headers([(name, "0.001")], ("x-api-key", "k"))[:-2] == []


@pytest.mark.parametrize(("answers", "most"), [(1, 1001), (100, 0)])
async def test_lost_attempts_do_not_explain_why_a_request_for_many_answers_is_refused(
    tmp_path: Path, answers: int, most: int
) -> None:
    """A trial is excluded if its request would have had room without the lost attempts, so an agent could choose a number of
    answers for which this is so."""
    async with world(tmp_path) as it:
        path, headers, body = request_of("chat", "gpt-4o", token_for("chat", limits={"outputTokens": 1000}))
        body |= {"max_tokens": 1001, "n": answers}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert answer.status == 400
        usage = await it.admin.close(step_of())
        assert usage.last_failure is not None
        assert (usage.last_failure.kind, usage.last_failure.most.output_tokens) == ("Budget", most)


@pytest.mark.parametrize(("answers", "kind"), [(1, "SweepBudget"), (2, "Budget")])
async def test_a_request_for_many_answers_does_not_suspend_the_sweep(tmp_path: Path, answers: int, kind: str) -> None:
    """If it did, the trial would get another attempt, and no other trial of the sweep would start."""
    async with world(tmp_path) as it:
        token = token_for("chat", sweep="ns/s/uid", sweepLimits={"outputTokens": 1000})
        path, headers, body = request_of("chat", "gpt-4o", token)
        body |= {"max_tokens": 1001, "n": answers}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert answer.status == 400
        usage = await it.admin.close(step_of())
        assert usage.last_failure is not None and usage.last_failure.kind == kind


@pytest.mark.parametrize(("budget", "kind"), [(0.001, "SweepBudget"), (0.02, "Budget")])
async def test_a_request_that_names_a_dear_model_does_not_suspend_the_sweep(tmp_path: Path, budget: float, kind: str) -> None:
    """It does if there is no room for the cheap one either: else the trials of harnesses that always name others would count 0."""
    async with world(tmp_path) as it:
        token = token_for("chat", sweep="ns/s/uid", sweepLimits={"costUSD": budget})
        path, headers, body = request_of("chat", "gpt-5", token)
        body |= {"max_completion_tokens": 10, "models": ["gpt-5", "gpt-5-pro"]}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert answer.status == 400
        usage = await it.admin.close(step_of())
        assert usage.last_failure is not None and usage.last_failure.kind == kind


@pytest.mark.parametrize(("before", "kind"), [(0, "SweepBudget"), (1, "Budget")])
async def test_a_request_beyond_the_sweeps_whole_budget_does_not_suspend_it_after_others_that_fitted(
    tmp_path: Path, before: int, kind: str
) -> None:
    """Without any that fitted, the budget may be too small for each request of the agent."""
    async with world(tmp_path) as it:
        token = token_for("chat", sweep="ns/s/uid", sweepLimits={"outputTokens": 1000})
        path, headers, body = request_of("chat", "gpt-4o", token)
        for most, status in [*[(100, 200)] * before, (1001, 400)]:
            async with it.http.post(
                f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body | {"max_tokens": most}
            ) as answer:
                assert answer.status == status
        usage = await it.admin.close(step_of())
        assert usage.last_failure is not None and usage.last_failure.kind == kind


async def test_an_agents_own_reservations_do_not_suspend_the_sweep(tmp_path: Path) -> None:
    async with world(tmp_path, hold_seconds=0.3, drain_seconds=0.1) as it:
        token = token_for("messages", sweep="ns/s/uid", sweepLimits={"outputTokens": 1500})
        first = asyncio.create_task(it.call("messages", "-slow-60000", token=token))
        await eventually(partial(has_requests, it))
        assert (await it.call("messages", token=token)).status == 529
        first.cancel()
        await asyncio.wait([first])
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.last_failure) == (1, None)


async def test_a_request_that_alone_exceeds_a_rate_limit_is_not_the_providers_failure(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        assert (await it.call("chat", "-too-large")).status == 400
        usage = await it.admin.close(step_of())
        assert (len(it.model.entries), usage.last_failure, usage.refusals) == (1, None, {"429": 1})


@pytest.mark.parametrize(
    ("message", "alone"),
    [
        ("Request too large for gpt-4o (TPM): Limit 30000, Requested 36278. The tokens must be reduced.", True),
        ("Rate limit reached for gpt-4o (TPM): Limit 30000, Used 29000, Requested 3082. Try again in 4s.", False),
        ("Limit 30000, Requested 30000 tokens", False),
        ("TPM limit: 1,000, requested: 2,500", True),
        ("Your request of 45,000 tokens exceeds the limit of 30,000 tokens per minute", True),
        ("You sent requests: 5, the limit is 3 per second", False),
        ("You exceeded the limit of 20 requests per 60 seconds", False),
        ("Rate limit of 20 requests or 40,000 tokens per minute", False),
        ("Request 123456789 was refused: limit of 30,000 tokens per minute", False),
        ("Limit of 30,000 tokens per minute; this request has 45,000 input tokens", True),
        ("This request would exceed your organization's rate limit of 30,000 input tokens per minute", False),
        ("Request too large for gpt-5 on requests per min (RPM): Limit 0, Requested 1.", False),
        (None, False),
    ],
)
def test_a_refusal_shows_whether_the_request_alone_exceeds_the_limit(message: str | None, alone: bool) -> None:
    assert exceeds_limit_alone(parse_error({"error": {"message": message}})) == alone


@pytest.mark.parametrize(
    ("size", "headers", "alone"),
    [
        (400_000, {}, True),
        (60_000, {}, False),  # Anthropic's words are the same if other requests used up the limit
        (0, {}, False),  # e.g. the request has images
        (60_000, {"x-ratelimit-limit-tokens": "8000"}, True),
        (60_000, {"x-ratelimit-limit-tokens": "0"}, False),
    ],
)
def test_a_request_that_has_more_tokens_than_the_limit_exceeds_it_alone(size: int, headers: dict[str, str], alone: bool) -> None:
    message = "This request would exceed your organization's rate limit of 30,000 input tokens per minute"
    assert exceeds_limit_alone(parse_error({"error": {"message": message}}), size, headers) == alone


async def test_a_request_with_a_cached_prompt_is_sent_again_after_the_same_words(tmp_path: Path) -> None:
    """Tokens that Anthropic reads from its cache do not count, and its refusals name the limit in any case."""
    message = "This request would exceed your organization's rate limit of 100 input tokens per minute"
    refused = {"type": "error", "error": {"type": "rate_limit_error", "message": message}}
    sent: list[bytes] = []

    async def provide(request: web.Request) -> web.StreamResponse:
        sent.append(await request.read())
        if len(sent) == 1:
            headers = {"Retry-After": "0", "anthropic-ratelimit-input-tokens-limit": "100"}
            return web.json_response(refused, status=429, headers=headers)
        return web.json_response(MESSAGE)

    app = web.Application()
    app.router.add_post("/{path:.*}", provide)
    async with TestServer(app) as provider, world(tmp_path) as it:
        await it.admin.register("anthropic", it.credential("anthropic", base_url=str(provider.make_url("/"))))
        path, headers, body = request_of("messages", "claude-sonnet-4-5", token_for("messages"))
        text = {"type": "text", "text": "word " * 1000, "cache_control": {"type": "ephemeral"}}
        body |= {"messages": [{"role": "user", "content": [text]}]}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert answer.status == 200
        assert len(sent) == 2


@pytest.mark.parametrize("words", ["request" * 5_000 + "1" * 50_000, "limit" + "1," * 50_000, "1" * 100_000])
def test_the_search_for_a_limit_ends_in_any_servers_words(words: str) -> None:
    """Tenants may give the URL of a server of their own. The first words took hours."""
    assert not exceeds_limit_alone(parse_error({"error": {"message": words}}))


async def test_a_request_that_is_too_large_for_the_limit_keeps_no_other_request_waiting(tmp_path: Path) -> None:
    """If the lane were narrowed for it, an agent could slow down all other trials with the same key and model."""
    message = "This request would exceed your organization's rate limit of 100 input tokens per minute"

    async def provide(request: web.Request) -> web.StreamResponse:
        if len(await request.read()) < 1000:
            return web.json_response(WHOLE)
        error = {"type": "error", "error": {"type": "rate_limit_error", "message": message}}
        return web.json_response(error, status=429, headers={"Retry-After": "30"})

    app = web.Application()
    app.router.add_post("/{path:.*}", provide)
    async with TestServer(app) as provider, world(tmp_path) as it:
        await it.admin.register("openai", it.credential("openai", base_url=str(provider.make_url("/v1"))))
        large = [it.call("chat", text="word " * 1000, token=token_for("chat", uid="large")) for _ in range(3)]
        small = [it.call("chat", token=token_for("chat", uid="small")) for _ in range(30)]
        seen = await asyncio.gather(*large, *small)
        assert [each.status for each in seen] == [400] * 3 + [200] * 30
        usage = await it.admin.close(step_of("large"))
        assert (usage.last_failure, usage.fault, usage.stalled_seconds) == (None, None, 0.0)


async def has_requests(it: World) -> bool:
    return bool(it.model.entries)


@pytest.mark.parametrize(
    ("retry_after", "own_seconds", "kind"),
    [(0.2, 239.9, "answered"), (60, 239.9, None), (60, 0.0, "Provider"), (300, 239.9, "Provider")],
)
async def test_the_wait_for_an_agents_own_budget_is_not_the_providers_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry_after: float, own_seconds: float, kind: str | None
) -> None:
    """An agent chooses when its other request ends, and so how much of the hold is left for the provider."""
    budget_waits(monkeypatch, 239.9, own_seconds)
    assert await kind_of_failure(tmp_path, 240.0, "-fail-429-1", retry_after) == kind


@pytest.mark.parametrize(("own_seconds", "kind"), [(100.0, None), (0.0, "Provider")])
async def test_the_end_of_a_hold_in_a_narrowed_lane_is_blamed_on_who_took_more_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_seconds: float, kind: str | None
) -> None:
    async def never_admitted(lane: Lane, sweep: str, trial: str, seconds: float, *, retry: bool = False) -> None:
        raise HoldExpired

    monkeypatch.setattr(Lane, "enter", never_admitted)
    monkeypatch.setattr(Lane, "narrowed", True)
    budget_waits(monkeypatch, 100.0, own_seconds)
    assert await kind_of_failure(tmp_path, 90.0) == kind


@pytest.mark.parametrize("fault", ["-fail-429", "-fail-503"])
async def test_a_provider_that_refuses_for_longer_than_the_agents_own_wait_took_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    budget_waits(monkeypatch, 50.1, 50.1)
    assert await kind_of_failure(tmp_path, 1.0, fault) == "Provider"


async def test_no_wait_of_the_agents_own_explains_that_the_provider_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(_: UpstreamRequest, seconds: float) -> None:
        raise ConnectionTimeoutError

    monkeypatch.setattr(UpstreamRequest, "send", unreachable)
    monkeypatch.setattr(model_request, "pause_without_advice", lambda _: 60.0)
    budget_waits(monkeypatch, 100.0, 100.0)
    assert await kind_of_failure(tmp_path, 90.0) == "Provider"


def budget_waits(monkeypatch: pytest.MonkeyPatch, seconds: float, own_seconds: float) -> None:
    """Let each request wait for a budget, without taking the time: only this wait and the pauses after refusals advance the clock.
    own_seconds: how much of the wait the trial's own requests caused."""
    now, reserve = [0.0], Budgets.reserve

    async def reserve_late(budgets: Budgets, claims: StepClaims, most: Spent, hold: float) -> Reservation:
        now[0] += seconds
        return replace(await reserve(budgets, claims, most, hold), own_seconds=own_seconds)

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(Budgets, "reserve", reserve_late)
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(model_request, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))


async def kind_of_failure(tmp_path: Path, hold_seconds: float, fault: str = "", retry_after: float = 0.2) -> str | None:
    """Send a request; return "answered", or why it failed: None if neither provider nor budget is to blame."""
    async with world(tmp_path, hold_seconds=hold_seconds, retry_after=retry_after) as it:
        answer = await it.call("messages", fault)
        usage = await it.admin.close(step_of())
        assert usage.held_seconds > 50 and bool(usage.refusals) == bool(fault)
        if answer.status == 200:
            return "answered"
        assert answer.status == 529
        return usage.last_failure.kind if usage.last_failure else None


async def cut_off_when_not_read(request: web.Request) -> web.StreamResponse:
    """Stream an answer without an end, and break the connection when the client has read nothing for a second. The second is 100
    turns of the event loop, because a busy machine can stop the loop for longer."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    assert request.transport is not None
    sent = still = 0

    async def send() -> None:
        nonlocal sent
        while True:
            await response.write(b'data: {"choices": []}' + b" " * 65536 + b"\n\n")
            sent += 1

    sending = asyncio.create_task(send())
    while still < 100:
        before = sent
        await asyncio.sleep(0.01)
        still = still + 1 if sent == before else 0
    sending.cancel()
    request.transport.abort()
    return response


async def test_an_answer_that_is_cut_off_because_the_agent_does_not_read_it_is_not_the_providers_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_answer, "SLOW_SECONDS", 0.5)
    app, cut = web.Application(), asyncio.Event()

    async def provide(request: web.Request) -> web.StreamResponse:
        try:
            return await cut_off_when_not_read(request)
        finally:
            cut.set()

    app.router.add_post("/{path:.*}", provide)
    async with TestServer(app) as provider, world(tmp_path) as it:
        await it.admin.register("openai", it.credential("openai", base_url=str(provider.make_url("/v1"))))
        path, headers, body = request_of("chat", "gpt-5", token_for("chat"), stream=True)
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            await cut.wait()
            with pytest.raises(ClientError):
                async for _ in answer.content.iter_any():
                    pass
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete, usage.last_failure) == (1, 1, None)
