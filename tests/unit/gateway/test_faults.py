"""Providers that refuse or fail, and agents that disconnect: what the agent receives, and what the ledger records."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from aiohttp.test_utils import TestServer

from multistep.errors import StepUnknownToGateway
from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.http import operator_port
from multistep.gateway.keys.tokens import StepKey
from multistep.gateway.model_api.error_blame import blame, parse_error
from tests.support.fake_model import fake_model
from tests.support.model_answers import Api
from tests.support.waiting import eventually
from tests.unit.gateway.test_usage import APIS
from tests.unit.gateway.world import World, request_of, step_of, token_for, world


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("api", APIS)
async def test_a_refused_request_waits_and_is_sent_again(tmp_path: Path, api: Api, status: int) -> None:
    async with world(tmp_path) as it:
        seen = await it.call(api, f"-fail-{status}-3", stream=True)
        assert seen.status == 200
        usage = await it.admin.close(step_of())
        assert usage.requests == 1
        assert usage.refusals == {str(status): 3}
        assert usage.last_failure is None
        assert usage.held_seconds >= 0.6
        assert usage.input_tokens == it.model.entries[-1].input
        assert [each.outcome for each in it.model.entries] == ["refused"] * 3 + ["answered"]


@pytest.mark.parametrize("api", APIS)
async def test_after_the_longest_hold_the_answer_is_529_and_not_429(tmp_path: Path, api: Api) -> None:
    async with world(tmp_path, hold_seconds=1.0, retry_after=0.3) as it:
        seen = await it.call(api, "-fail-429")
        assert seen.status == 529
        assert "Rate limit exceeded" in seen.body.decode()
        assert len(it.model.entries) <= 4
        usage = await it.admin.close(step_of())
        assert usage.last_failure is not None
        assert (usage.last_failure.status, usage.last_failure.kind) == (429, "Provider")
        assert (usage.input_tokens, usage.incomplete) == (0, 0)


async def test_a_retry_after_beyond_the_hold_is_not_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path, hold_seconds=300, retry_after=600) as it:  # the agent would leave after 60 s
        assert (await it.call("messages", "-fail-529")).status == 529
        assert len(it.model.entries) == 1
        assert (await it.admin.close(step_of())).held_seconds < 60


@pytest.mark.parametrize(("status", "kind"), [(500, "Provider"), (401, "Configuration"), (404, "Configuration"), (422, None)])
async def test_other_errors_pass_unchanged_and_are_sent_once(tmp_path: Path, status: int, kind: str | None) -> None:
    async with world(tmp_path) as it:
        seen = await it.call("chat", f"-fail-{status}", stream=True)
        assert seen.status == status
        assert len(it.model.entries) == 1
        usage = await it.admin.close(step_of())
        found = usage.last_failure
        assert (found and (found.status, found.kind)) == (kind and (status, kind))
        assert (usage.input_tokens, usage.incomplete) == (0, 0)


GEMINI_KEY = {"code": 400, "status": "INVALID_ARGUMENT", "message": "not valid", "details": [{"reason": "API_KEY_INVALID"}]}


@pytest.mark.parametrize(
    ("document", "blamed"),
    [
        ({"error": GEMINI_KEY}, True),
        ([{"error": GEMINI_KEY}], True),  # as streamGenerateContent answers without alt=sse
        ({"error": {**GEMINI_KEY, "details": [{"reason": "BAD_FIELD"}, "text"]}}, False),
        ({"error": {"type": "invalid_request_error", "code": "model_not_found", "message": "The model does not exist"}}, True),
        ({"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded"}}, True),
        ({"type": "error", "error": {"type": "not_found_error", "message": "model: claude-none"}}, True),
        ({"error": {"code": 404, "status": "NOT_FOUND", "message": "models/none is not found for API version v1beta"}}, True),
        ({"error": {"code": 403, "message": "You do not have permission to access the File models/none"}}, False),
        ({"error": {"type": "invalid_request_error", "code": None, "message": "max_tokens is too large"}}, False),
        ({"error": "Your credit balance"}, False),
        ([], False),
        (None, False),
    ],
)
def test_an_error_shows_whether_the_key_or_the_model_is_wrong(document: Any, blamed: bool) -> None:
    assert (blame(400, parse_error(document)) in ("Account", "Model")) == blamed


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/openai/v1/responses", {"model": "gpt-5", "input": "x", "conversation": "conv_none"}, 404, None),
        ("/openai/v1/responses", {"model": "gpt-5", "input": "x"}, 404, "Configuration"),
        ("/openai/v1/responses", {"model": "gpt-5", "input": "x", "conversation": "conv_none"}, 401, "Configuration"),
        (
            "/gemini/v1beta/models/gemini-2.5-pro:generateContent",
            {"contents": [{"role": "user", "parts": [{"fileData": {"fileUri": "https://x/v1beta/files/none"}}]}]},
            403,
            None,
        ),
    ],
)
async def test_a_reference_to_nothing_is_no_misconfiguration(
    tmp_path: Path, path: str, body: dict[str, Any], status: int, kind: str | None
) -> None:
    """If it counted as one, an agent could send such a request, so that its trial is excluded instead of scored."""
    async with world(tmp_path) as it:
        it.model.faults = [f"-fail-{status}"]
        token = token_for("gemini" if "gemini" in path else "responses")
        headers = {"x-goog-api-key": token} if "gemini" in path else {"Authorization": f"Bearer {token}"}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert answer.status == status
        failure = (await it.admin.close(step_of())).last_failure
        assert (failure and failure.kind) == kind


async def test_an_account_without_credit_is_no_failure_of_the_agent(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.call("messages")
        it.model.faults = ["-credit"]
        assert (await it.call("messages")).status == 400
        failure = (await it.admin.close(step_of())).last_failure
        assert failure is not None
        assert (failure.kind, failure.message) == ("Configuration", "Your credit balance is too low to access the Anthropic API.")


async def test_an_openai_account_without_credit_fails_at_once_as_configuration(tmp_path: Path) -> None:
    async with fake_model() as openai, world(tmp_path, base_urls={"openai": f"{openai.url}/v1"}) as it:
        await it.admin.register("openai", it.credential("openai", base_url=None))
        await it.call("chat")
        openai.faults = ["-quota"]
        seen = await it.call("chat")
        assert seen.status == 400 and "You exceeded your current quota." in seen.body.decode()
        assert len(openai.entries) == 2
        usage = await it.admin.close(step_of())
        assert usage.last_failure is not None
        assert (usage.last_failure.status, usage.last_failure.kind) == (429, "Configuration")
        assert usage.last_failure.message == "429 You exceeded your current quota."
        assert (usage.refusals, usage.incomplete) == ({"429": 1}, 0)


async def test_another_providers_quota_is_waited_for(tmp_path: Path) -> None:
    """Some OpenAI-compatible providers report per-minute rate limits with the code that OpenAI uses for an account without
    credit."""
    async with world(tmp_path) as it:
        it.model.faults = ["-quota", ""]
        assert (await it.call("chat")).status == 200


async def test_a_quota_with_a_retry_after_is_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.model.faults = ["-quota-retry", ""]
        assert (await it.call("responses")).status == 200
        assert (await it.admin.close(step_of())).last_failure is None


@pytest.mark.parametrize(("status", "kind"), [(401, "Configuration"), (403, None), (404, None), (500, "Provider")])
async def test_a_wrong_request_after_a_right_one_is_no_misconfiguration(tmp_path: Path, status: int, kind: str | None) -> None:
    async with world(tmp_path) as it:
        await it.call("chat", token=token_for("chat", step="0"))
        it.model.faults = [f"-fail-{status}"]
        await it.call("chat", token=token_for("chat", step="1"))
        failure = (await it.admin.close(step_of(step="1"))).last_failure
        assert (failure and failure.kind) == kind


async def test_the_last_request_decides_about_the_failure(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.call("chat", "-500")
        await it.call("chat")
        assert (await it.admin.close(step_of())).last_failure is None


@pytest.mark.parametrize("fault", ["-cut", "-short"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_an_answer_without_its_end_breaks_the_agents_connection(tmp_path: Path, api: Api, stream: bool, fault: str) -> None:
    async with world(tmp_path) as it:
        seen = await it.call(api, fault, stream=stream)
        assert seen.error
        assert len(it.model.entries) == 1
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete, usage.input_tokens) == (1, 1, 0)
        assert usage.last_failure is not None
        assert usage.last_failure.kind == "Provider"


async def test_an_error_inside_a_stream_reaches_the_agent_and_is_the_providers_failure(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        seen = await it.call("messages", "-error", stream=True)
        assert (seen.status, seen.error) == (200, "")
        assert b"overloaded_error" in seen.body
        usage = await it.admin.close(step_of())
        assert usage.incomplete == 1
        assert usage.last_failure is not None


async def test_a_request_without_an_answer_is_not_sent_again_as_it_may_be_charged(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        seen = await it.call("messages", "-drop")
        assert seen.status == 529
        assert len(it.model.entries) == 1
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete) == (1, 1)


async def test_a_provider_that_cannot_be_reached_is_tried_until_the_hold_ends(tmp_path: Path) -> None:
    async with world(tmp_path, hold_seconds=1.5, base_urls={"openai": "http://127.0.0.1:9/v1"}) as it:
        await it.admin.register("openai", it.credential("openai", base_url=None))
        seen = await it.call("chat")
        assert seen.status == 529
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete) == (1, 0)
        assert usage.last_failure is not None
        assert "no connection" in usage.last_failure.message


@pytest.mark.parametrize("api", APIS)
async def test_an_agent_that_hangs_up_before_the_end_is_charged_what_the_provider_charged(tmp_path: Path, api: Api) -> None:
    """The agent codex closes its connection before an answer's end. The gateway must not retry: no agent would read the answer."""
    async with world(tmp_path) as it:
        tokens = [token_for(api, uid=f"uid-{number}") for number in range(6)]
        seen = await asyncio.gather(*(it.call(api, "-slow-20", stream=True, token=each, read=1) for each in tokens))
        assert {each.status for each in seen} == {200}
        usages = [await it.admin.close(step_of(f"uid-{number}")) for number in range(6)]
        assert len(it.model.entries) == 6
        assert sum(each.input_tokens for each in usages) == sum(each.input for each in it.model.entries)
        assert sum(each.output_tokens for each in usages) == sum(each.output for each in it.model.entries)
        assert [each.incomplete for each in usages] == [0] * 6


async def test_an_agent_that_leaves_before_the_answer_is_charged_too(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await leave_when(it, "-slow-500", partial(has_requests, it, 1))
        usage = await it.admin.close(step_of())
        assert usage.input_tokens == it.model.entries[0].input > 0


async def test_an_answer_that_does_not_end_within_the_drain_is_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        operator_port, "MARGIN_SECONDS", 500
    )  # so the gateway reports the usage only after it has given up the request
    async with world(tmp_path, drain_seconds=0.3) as it:
        await leave_when(it, "-slow-60000", partial(has_requests, it, 1))
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete, usage.last_failure) == (1, 1, None)


async def test_an_agent_that_leaves_the_queue_costs_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, lane_requests=1) as it:
        first = asyncio.create_task(it.call("messages", "-slow-60000", token=token_for("messages", uid="first")))
        await eventually(partial(has_requests, it, 1))
        await leave_when(it, "-slow-60000", partial(has_queued, it, 1))
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete, usage.input_tokens) == (1, 0, 0)
        assert len(it.model.entries) == 1 and not first.done()
        first.cancel()
        await asyncio.wait([first])


async def test_an_agent_that_leaves_as_its_request_is_admitted_keeps_no_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: such a request kept its slot. If that was the model's only one, no other agent could use the model."""
    writes, written, write = Counter[str](), asyncio.Event(), RequestLedger.write_stall

    async def write_stall(ledger: RequestLedger, step: StepKey, seconds: float) -> None:
        writes["begun"] += 1
        if writes["begun"] == 2:  # the first stall is written after the pause, the second when the request has a slot again
            written.set()
            await asyncio.sleep(600)
        await write(ledger, step, seconds)

    monkeypatch.setattr(RequestLedger, "write_stall", write_stall)
    async with world(tmp_path, lane_requests=1) as it:
        leaving = asyncio.create_task(it.call("messages", "-fail-429-1", token=token_for("messages", uid="first")))
        await written.wait()
        leaving.cancel()
        await asyncio.wait([leaving])
        assert (await it.call("messages", "-fail-429-1")).status == 200


async def test_a_closed_step_is_refused_and_closes_again_with_the_same_usage(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.call("chat")
        usage = await it.admin.close(step_of())
        seen = await it.call("chat")
        assert seen.status == 401
        assert await it.admin.close(step_of()) == usage
        assert len(it.model.entries) == 1


async def test_the_usage_of_a_step_without_requests_is_unknown(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        with pytest.raises(StepUnknownToGateway):
            await it.admin.close(step_of("nobody"))


async def leave_when(it: World, suffix: str, condition: Callable[[], Awaitable[bool]]) -> None:
    """Send a request, and close the connection when the condition holds."""
    call = asyncio.create_task(it.call("messages", suffix))
    await eventually(condition)
    call.cancel()
    await asyncio.wait([call])


async def has_requests(it: World, number: int) -> bool:
    return len(it.model.entries) == number


async def has_queued(it: World, number: int) -> bool:
    async with it.http.get(f"http://127.0.0.1:{it.admin_port}/metrics") as answer:
        return f"\nmultistep_gateway_requests_waiting {number}.0\n" in await answer.text()


async def test_websockets_are_refused_with_426(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        path, headers, _ = request_of("responses", "gpt-5.2-codex", token_for("responses"))
        upgrade = {**headers, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        async with it.http.get(f"http://127.0.0.1:{it.port}{path}", headers=upgrade) as answer:
            assert answer.status == 426
        assert it.model.entries == []


async def test_an_offer_of_http_2_is_answered_with_http_1(tmp_path: Path) -> None:
    """Java's HTTP client offers HTTP/2 in its first request to a URL without TLS."""
    async with world(tmp_path) as it:
        path, headers, body = request_of("chat", "gpt-5-mini", token_for("chat"))
        offer = {**headers, "Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAA"}
        for _ in range(2):  # the second request is sent over the same connection
            async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=offer, json=body) as answer:
                assert (answer.status, (await answer.json())["model"]) == (200, "gpt-5-mini")
        assert not {"http2-settings", "upgrade"} & {name.lower() for each in it.model.entries for name in each.headers}


def prolong_silence(monkeypatch: pytest.MonkeyPatch, over: asyncio.Event) -> None:
    """Let no wait for a provider's next byte time out before the event: a busy machine may delay what happens before it."""
    timed_out = vars(ResponseHandler)["_on_read_timeout"]

    def time_out(connection: Any) -> None:
        if over.is_set():
            timed_out(connection)
        else:
            connection._reschedule_timeout()

    monkeypatch.setattr(ResponseHandler, "_on_read_timeout", time_out)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("other", ["sent later", "sent before", ""])
async def test_silence_is_the_providers_failure_only_if_it_answered_no_request_for_the_model_that_was_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, other: str
) -> None:
    """Otherwise an agent could get another attempt by asking for an answer that takes long. An overloaded provider, such as a vLLM
    with a long queue, may still answer requests that were sent before."""
    app, arrived, silent, answered = web.Application(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    if other:
        prolong_silence(monkeypatch, answered)

    async def ask_other() -> None:
        assert (await it.call("chat", token=token_for("chat", uid="uid-2"))).status == 200
        answered.set()

    async def provide(request: web.Request) -> web.StreamResponse:
        if "hang" not in await request.text():
            arrived.set()
            if other == "sent before":
                await silent.wait()
            return web.json_response({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if stream:
            await response.prepare(request)
        if other == "sent later":
            await ask_other()
        silent.set()
        await asyncio.Event().wait()
        return response

    app.router.add_post("/{path:.*}", provide)
    async with TestServer(app, shutdown_timeout=0) as provider, world(tmp_path, answer_timeout_seconds=0.3) as it:
        await it.admin.register("openai", it.credential("openai", base_url=str(provider.make_url("/v1"))))
        async with asyncio.TaskGroup() as group:
            if other == "sent before":
                group.create_task(ask_other())
                await arrived.wait()
            await it.call("chat", stream=stream, text="hang")
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.incomplete, usage.last_failure is None) == (1, 1, other == "sent later")
