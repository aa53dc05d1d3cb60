"""Requests with which an agent could harm other trials, or have its own trial excluded instead of scored."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientError, web
from aiohttp.test_utils import TestServer

from multistep.errors import StepUnknownToGateway
from multistep.gateway import pace
from multistep.gateway.accounting import open_steps, parsing_turns
from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.accounting.open_steps import LARGE_BYTES, MAX_BODIES, MAX_OPEN, MAX_REQUESTS, OpenSteps
from multistep.gateway.accounting.request_ledger import DatabaseThread, RequestLedger
from multistep.gateway.accounting.upper_bounds import upper_bound
from multistep.gateway.http import agent_port, client_connection, operator_port, servers
from multistep.gateway.keys.tokens import StepKey
from multistep.gateway.model_api.answer_parsers import MESSAGES, RESPONSES, AnswerParser, ApiFormat
from multistep.gateway.model_api.error_answers import Refused
from multistep.gateway.model_api.error_blame import blame
from multistep.gateway.model_api.forwarded_headers import upstream_headers
from multistep.gateway.model_api.request_parsers import InvalidBody, ParsedRequest, parse_request
from multistep.gateway.model_api.routes import Route, find_route
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time
from tests.support.waiting import eventually
from tests.unit.gateway.test_stalls import reported
from tests.unit.gateway.world import World, request_of, step_of, token_for, world

ROW = RequestRow("a", "uid/1/0/agent", "s", "x", "openai", "m", 1, 1, 0.0)


def parsed(**body: Any) -> ParsedRequest:
    route = find_route("POST", "/openai/v1/chat/completions")
    assert route is not None
    return parse_request(json.dumps({"model": "gpt-4o", "messages": [], **body}).encode(), route)


async def test_a_row_that_cannot_be_stored_fails_no_other_row_of_its_transaction(tmp_path: Path) -> None:
    ledger = RequestLedger(tmp_path / "ledger.sqlite")
    rows = [replace(ROW, id=str(number)) for number in range(20)]
    rows[7] = replace(rows[7], reserved_output=10**30)
    results = await asyncio.gather(*(ledger.write(row) for row in rows), return_exceptions=True)
    assert [number for number, result in enumerate(results) if result is not None] == [7]
    assert (await ledger.spent("sweep", "s")).input_tokens == 0  # open requests are not included
    ledger.stop()
    ledger = RequestLedger(
        tmp_path / "ledger.sqlite"
    )  # after a restart, the ledger counts open requests with their reserved tokens
    assert (await ledger.spent("sweep", "s")).input_tokens == 19
    ledger.stop()


@pytest.mark.parametrize("model", ["m" * 201, "\ud800", "", " gpt", "a\nb", 7])
def test_a_models_name_that_is_none_is_refused(model: object) -> None:
    with pytest.raises(InvalidBody, match=r"the field model|body's field model"):
        parsed(model=model)


@pytest.mark.parametrize("model", ["/models/qwen-3", "accounts/x/models/y#accounts/x/deployments/z", "~openai/latest", "m" * 200])
def test_a_model_may_have_the_name_of_a_path_or_a_deployment(model: str) -> None:
    assert parsed(model=model).model == model


def test_many_or_long_names_of_other_models_are_not_all_compared() -> None:
    assert parsed(models=[f"gpt-{number}" for number in range(1000)]).others[32:] == ("1000 models",)
    assert parsed(fallbacks=["m" * 1_000_000]).others == ("m" * 201,)


def test_a_body_that_would_need_much_more_memory_than_its_text_is_refused() -> None:
    route = find_route("POST", "/openai/v1/chat/completions")
    assert route is not None
    with pytest.raises(InvalidBody, match="more than 1,000,000 values"):
        parse_request(b'{"model":"gpt-4o","x":[' + b"[]," * 500_000 + b"0]}", route)


@pytest.mark.parametrize(
    ("body", "output"),
    [
        ({"max_tokens": 10**30}, 16_384),  # the model's own maximum
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 100, "n": "8"}, 128 * 100),  # a provider may convert the text "8" to a number
        ({"max_tokens": 100, "n": 10**30}, 128 * 100),
        ({}, 16_384),
    ],
)
def test_a_reservation_is_at_most_what_the_model_can_answer(body: dict[str, Any], output: int) -> None:
    assert upper_bound("openai", parsed(**body)).most.output_tokens == output


@pytest.mark.parametrize(
    ("api", "event", "blamed"),
    [
        (RESPONSES, {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded"}}}, True),
        (RESPONSES, {"type": "response.failed", "response": {"error": {"code": "failed_to_download_image"}}}, True),
        (RESPONSES, {"type": "response.failed", "response": {"error": {"code": "bio_policy"}}}, True),
        (RESPONSES, {"type": "response.failed", "response": {"error": {"code": "server_error"}}}, False),
        (MESSAGES, {"type": "error", "error": {"type": "invalid_request_error"}}, True),
        (MESSAGES, {"type": "error", "error": {"type": "overloaded_error"}}, False),
    ],
)
def test_an_error_in_a_stream_is_the_providers_only_if_it_says_so(api: ApiFormat, event: Any, blamed: bool) -> None:
    reading = AnswerParser(api)
    reading.event(json.dumps(event).encode())
    assert reading.failure is not None and (blame(200, reading.failure) == "Request") == blamed


def test_headers_that_make_a_provider_reject_the_key_are_not_forwarded() -> None:
    given = [("OpenAI-Organization", "x"), ("X-LiteLLM-API-Key", "x"), ("anthropic-beta", "y"), ("User-Agent", "agent")]
    assert upstream_headers(given, ("x-api-key", "k"))[:-2] == [("anthropic-beta", "y"), ("User-Agent", "agent")]


async def test_no_header_declares_a_body_compressed_that_is_not(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        path, headers, body = request_of("chat", "gpt-5", token_for("chat"))
        twice = [*headers.items(), ("Content-Encoding", "identity"), ("Content-Encoding", "gzip")]
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=twice, json=body) as answer:
            assert answer.status == 415
        assert it.model.entries == []


async def test_a_step_may_have_so_many_open_requests(tmp_path: Path) -> None:
    steps, release = OpenSteps({}), asyncio.Event()

    async def request(step: str) -> int:
        try:
            with steps.open_request(step_of(step=step)):
                await release.wait()
        except Refused as refused:
            return refused.status
        return 200

    tasks = [asyncio.create_task(request("0")) for _ in range(MAX_OPEN + 2)] + [asyncio.create_task(request("1"))]
    await asyncio.sleep(0)
    release.set()
    statuses = await asyncio.gather(*tasks)
    assert statuses == [200] * MAX_OPEN + [429, 429, 200] and await request("0") == 200


async def test_the_bodies_of_a_steps_open_requests_may_have_so_many_bytes() -> None:
    steps = OpenSteps({}, body_bytes=10)
    with steps.open_request(step_of()) as hold, steps.open_request(step_of()) as other:
        hold(MAX_BODIES)
        with pytest.raises(Refused, match="more than 67108864 bytes"):
            other(1)
        with steps.open_request(step_of(step="1")) as of_another_step:
            of_another_step(MAX_BODIES)
    with steps.open_request(step_of()) as hold:
        hold(MAX_BODIES)


async def test_a_step_cannot_fill_the_gateways_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.gateway.accounting.open_steps.MAX_BODIES", 100_000)
    async with world(tmp_path, lane_requests=1, drain_seconds=0.1, body_bytes=1 << 16) as it:
        text, first = "x" * 60_000, asyncio.create_task(it.call("chat", "-slow-60000", text="x" * 60_000))
        while not it.model.entries:
            await asyncio.sleep(0.01)
        seen = await it.call("chat", text=text)
        assert (seen.status, b"more than 100000 bytes" in seen.body) == (429, True)
        first.cancel()
        await asyncio.wait([first])


async def test_no_request_of_a_closed_step_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each step's agent could leave a process whose unfinished requests keep their bodies in the gateway's memory."""
    monkeypatch.setattr(operator_port, "MARGIN_SECONDS", 0.1)
    opened, working = asyncio.Event(), OpenSteps.open_request

    def open_request(steps: OpenSteps, step: StepKey) -> AbstractContextManager[Callable[[int], None]]:
        opened.set()
        return working(steps, step)

    monkeypatch.setattr(OpenSteps, "open_request", open_request)
    async with world(tmp_path, drain_seconds=0.1) as it:
        path, headers, _ = request_of("chat", "gpt-5", token_for("chat"))
        lines = {**headers, "Host": "gateway", "Content-Length": "1000"}
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        writer.write(head.encode() + b"{")
        await opened.wait()
        with pytest.raises(StepUnknownToGateway):
            await it.admin.close(step_of())
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_a_step_may_send_so_many_requests() -> None:
    steps, step = OpenSteps({}), step_of()
    for _ in range(MAX_REQUESTS):
        with steps.open_request(step):
            pass
    with pytest.raises(Refused, match="20000 requests"), steps.open_request(step):
        pass
    with steps.open_request(step_of(step="1")):
        pass


async def test_a_step_may_request_so_many_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator reads the usage of all models of a step at once."""
    monkeypatch.setattr("multistep.gateway.accounting.open_steps.MAX_MODELS", 2)
    async with world(tmp_path) as it:
        assert [(await it.call("chat", suffix)).status for suffix in ("-a", "-b", "-c", "-a")] == [200, 200, 429, 200]
        assert (await it.call("chat", "-c", token=token_for("chat", step="1"))).status == 200
        assert len((await it.admin.close(step_of())).models) == 2


async def test_many_rejected_models_do_not_make_the_report_on_a_step_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator waits 100 s for a report, then retries: if it always came late, the trial would be excluded at its deadline."""
    do, statements = vars(DatabaseThread)["execute"], 0

    async def counting(ledger: DatabaseThread, statement: Any) -> Any:
        nonlocal statements
        statements += 1
        return await do(ledger, statement)

    monkeypatch.setattr(DatabaseThread, "execute", counting)
    monkeypatch.setattr("multistep.gateway.http.servers._BEAT_SECONDS", 3600.0)  # no beat during the test: each one is a statement
    counts = []
    async with world(tmp_path) as it:
        for step, models in (("0", 1), ("1", 20)):
            for number in range(models):
                await it.call("chat", f"-{number}-fail-404", token=token_for("chat", step=step))
            before = statements
            assert len((await it.admin.close(step_of(step=step))).failures) == models
            counts.append(statements - before)
    assert counts[0] == counts[1]


async def test_an_answer_that_the_agent_does_not_read_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One agent must not fill the gateway's memory with answers."""
    monkeypatch.setattr(client_connection, "STALLED_SECONDS", 0.3)
    app = web.Application()

    async def provide(_: web.Request) -> web.Response:
        return web.json_response({"text": "x" * (32 << 20)})

    app.router.add_post("/{path:.*}", provide)
    async with TestServer(app) as provider, world(tmp_path) as it:
        await it.admin.register("openai", it.credential("openai", base_url=str(provider.make_url("/v1"))))
        path, headers, body = request_of("chat", "gpt-5", token_for("chat"))
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert (await it.admin.close(step_of())).requests == 1  # waits until the step has no open request
            with pytest.raises(ClientError):
                await answer.read()


@in_virtual_time
async def test_an_agent_that_reads_a_little_each_minute_holds_its_slot_for_five_minutes_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it could hold a trainer that waits until no request is in flight (spec.weights) until its step ends."""
    loop, aborted = asyncio.get_running_loop(), list[float]()
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=loop.time))

    class Slow(web.StreamResponse):
        async def write(self, data: bytes | bytearray | memoryview) -> None:
            await asyncio.sleep(len(data))

    request = SimpleNamespace(transport=SimpleNamespace(abort=lambda: aborted.append(loop.time())))
    client = client_connection.ClientConnection(cast(web.Request, request))
    for _ in range(100):
        await client.write(Slow(), b"x" * 50)
    assert aborted == [pytest.approx(300.0)] and client.disconnected


async def request_of_step(it: World, step: str) -> int:
    """Send a request that the provider does not answer in time; return its status."""
    return (await it.send("chat", "gpt-5-slow-60000", stream=False, token=token_for("chat", step=step))).status


async def gauge(it: World, name: str) -> int:
    async with it.http.get(f"http://127.0.0.1:{it.admin_port}/metrics") as answer:
        found = re.search(rf"^multistep_gateway_{name} ([0-9.]+)", await answer.text(), re.MULTILINE)
    assert found
    return int(float(found[1]))


async def in_flight(it: World, count: int = 1) -> asyncio.Task[int]:
    """Send a request of step 0, which takes a slot of the lane; return its task once the provider has ``count`` requests."""

    async def sent() -> bool:
        return len(it.model.entries) == count

    task = asyncio.create_task(request_of_step(it, "0"))
    await eventually(sent)
    return task


async def test_a_request_that_waits_while_its_step_is_closed_is_never_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_port, "MARGIN_SECONDS", 500)  # so the step is closed only after the request has ended
    async with world(tmp_path, lane_requests=1, drain_seconds=0.1) as it:

        async def queued() -> bool:
            return await gauge(it, "requests_waiting") == 1

        async def closed() -> bool:
            return (await reported(it, token_for("chat", step="1")))[0] == 401

        first = await in_flight(it)
        waiting = asyncio.create_task(request_of_step(it, "1"))
        await eventually(queued)
        closing = asyncio.create_task(it.admin.close(step_of(step="1")))
        await eventually(closed)
        first.cancel()
        usage = await closing
        assert (await waiting, len(it.model.entries)) == (401, 1)
        assert usage.last_failure is None and usage.input_tokens == 0


@pytest.mark.parametrize(("step", "kind"), [("0", "Own"), ("1", "Provider")])
async def test_an_agent_that_fills_the_queue_itself_is_not_excluded(step: str, kind: str, tmp_path: Path) -> None:
    async with world(tmp_path, lane_requests=1, hold_seconds=0.3, drain_seconds=0.1) as it:
        first = await in_flight(it)
        assert await request_of_step(it, step) == 529
        first.cancel()
    ledger = RequestLedger(it.settings.ledger_file)
    assert [row.kind for row in await ledger.rows_of(step_of(step=step)) if row.status == 529] == [kind]
    ledger.stop()


async def test_an_agent_that_waits_for_more_than_its_share_of_the_queue_is_not_excluded(tmp_path: Path) -> None:
    async with world(tmp_path, lane_requests=3, hold_seconds=0.3, drain_seconds=0.1) as it:
        sent = [await in_flight(it, count) for count in (1, 2)]
        assert await request_of_step(it, "0") == 529  # though one slot is free
        for task in sent:
            task.cancel()
    ledger = RequestLedger(it.settings.ledger_file)
    assert [row.kind for row in await ledger.rows_of(step_of(step="0")) if row.status == 529] == ["Own"]
    ledger.stop()


async def test_bodies_of_a_step_are_parsed_half_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer to a probe takes several turns of the event loop. If each turn parsed a body, the answer would be too late."""
    times = list[tuple[float, float]]()

    def parse(body: bytes, route: Route, **options: Any) -> ParsedRequest:
        started = time.monotonic()
        time.sleep(0.1)  # as a large body, it blocks the event loop
        times.append((started, time.monotonic()))
        if len(times) == 1:
            raise InvalidBody("after all")
        return parse_request(body, route, **options)

    monkeypatch.setattr(agent_port, "parse_request", parse)
    async with world(tmp_path) as it:
        assert {each.status for each in await asyncio.gather(*(it.call("chat") for _ in range(3)))} == {200, 400}
        await it.call("chat")  # waits as well, although the step has no other open request
    assert all(later - ended >= 0.09 for (_, ended), (later, _) in pairwise(times))


async def test_large_bodies_of_several_steps_are_parsed_half_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that serves nobody for long is restarted, and each step that runs gets another attempt: agents of several trials
    could get that for all of them."""
    times = list[tuple[float, float]]()

    def parse(body: bytes, route: Route, **options: Any) -> ParsedRequest:
        started = time.monotonic()
        if len(body) > LARGE_BYTES:
            time.sleep(0.1)  # blocks the event loop
            times.append((started, time.monotonic()))
        return parse_request(body, route, **options)

    monkeypatch.setattr(agent_port, "parse_request", parse)
    async with world(tmp_path) as it:
        text = "say: hello" + " " * LARGE_BYTES
        calls = [it.call("chat", token=token_for("chat", uid=f"uid-{number}"), text=text) for number in range(4)]
        assert {each.status for each in await asyncio.gather(*calls)} == {200}
    assert len(times) == 4 and all(later - ended >= 0.09 for (_, ended), (later, _) in pairwise(times))


@in_virtual_time
async def test_a_costly_body_delays_those_of_other_steps_by_a_short_gap_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each large body waited as long as the parsing of any step's previous one took, however long ago that was."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    for module in (open_steps, parsing_turns):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop.time, time=loop.time))
    steps, waited = OpenSteps({}), list[float]()
    for uid, seconds in (("costly", 0.8), ("honest", 0.0), ("costly", 0.0), ("costly", 0.0)):
        with steps.open_request(step_of(uid)):
            asked = loop.time()
            async with steps.parsing(step_of(uid), LARGE_BYTES + 1, uid, nullcontext()):
                waited.append(loop.time() - asked)
                loop.jump(seconds)  # parsing blocks the event loop
    assert waited == pytest.approx([0.0, 0.5, 0.3, 0.0])


async def test_large_bodies_of_sweeps_are_parsed_in_turn() -> None:
    """Regression: the agents of one sweep could make those of all others wait for all of their bodies."""
    steps, order = OpenSteps({}), list[str]()

    async def parse(sweep: str, number: int) -> None:
        step = step_of(f"{sweep}-{number}")
        with steps.open_request(step):
            async with steps.parsing(step, LARGE_BYTES + 1, sweep, nullcontext()):
                order.append(sweep)

    costly = [asyncio.create_task(parse("costly", number)) for number in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(*costly, parse("honest", 0))
    assert len(order) == 21 and order.index("honest") <= 3


async def test_a_body_that_loses_its_turn_keeps_no_other_from_being_parsed() -> None:
    steps = OpenSteps({})
    one, other = step_of("one"), step_of("other")
    with steps.open_request(one), steps.open_request(other):
        async with steps.parsing(one, LARGE_BYTES + 1, "one", nullcontext()):
            with pytest.raises(TimeoutError):
                async with steps.parsing(other, LARGE_BYTES + 1, "other", nullcontext(), 0.01):
                    pass
            waiting = asyncio.create_task(steps.parsing(other, LARGE_BYTES + 1, "other", nullcontext()).__aenter__())
            await asyncio.sleep(0.01)
            waiting.cancel()
        async with asyncio.timeout(5), steps.parsing(other, LARGE_BYTES + 1, "other", nullcontext()):
            pass


@pytest.mark.parametrize("leaves", [False, True])
async def test_an_agent_whose_body_waits_for_those_of_others_is_excused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """Regression: such a request had no row in the ledger, and the time for which it waited was the agent's."""
    steps, release = OpenSteps({}), asyncio.Event()
    monkeypatch.setattr(servers, "OpenSteps", lambda *_: steps)
    async with world(tmp_path, hold_seconds=60.0 if leaves else 0.5) as it:
        assert (await it.call("chat")).status == 200

        async def occupy() -> None:
            with steps.open_request(step_of("other")):
                async with steps.parsing(step_of("other"), LARGE_BYTES + 1, "other", nullcontext()):
                    await release.wait()

        occupying = asyncio.create_task(occupy())
        await asyncio.sleep(0)
        call = asyncio.create_task(it.call("chat", text="say: hello" + " " * LARGE_BYTES))
        if leaves:
            await asyncio.sleep(0.5)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await asyncio.sleep(0.2)
        else:
            assert (await call).status == 529
        release.set()
        await occupying
        usage = await it.admin.close(step_of())
        assert usage.held_seconds >= 0.3 and usage.stalled_seconds >= 0.3 and usage.requests == 2
        failure = usage.failures["gpt-5-mini"]
        assert (failure.kind, failure.at_timeout) == ("Provider", leaves) and "large bodies of other steps" in failure.message


def test_a_body_may_have_so_many_fields() -> None:
    """Checking a million fields would take ten seconds."""
    parsed(**{str(number): 0 for number in range(900)})
    with pytest.raises(InvalidBody, match="more than 1000 fields"):
        parsed(**{str(number): 0 for number in range(1001)})


async def test_between_two_bodies_of_a_step_the_gateway_serves_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 3 MB can take half a second to parse. One step must not occupy the gateway until it is restarted."""
    turns, parsed_in = 0, list[int]()
    loop = asyncio.get_running_loop()

    def count_turn() -> None:
        nonlocal turns
        turns += 1
        if len(parsed_in) < 4:
            loop.call_soon(count_turn)

    def parse(body: bytes, route: Route, **options: Any) -> ParsedRequest:
        parsed_in.append(turns)
        return parse_request(body, route, **options)

    monkeypatch.setattr(agent_port, "parse_request", parse)
    async with world(tmp_path) as it:
        path, headers, document = request_of("chat", "gpt-5", token_for("chat"))
        body = json.dumps(document).encode()
        lines = {**headers, "Host": "gateway", "Connection": "close", "Content-Length": str(len(body))}
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        streams = [await asyncio.open_connection("127.0.0.1", it.port) for _ in range(4)]
        for _, writer in streams:
            writer.write(head.encode() + body[:-1])
        await asyncio.sleep(0.2)
        loop.call_soon(count_turn)
        for _, writer in streams:
            writer.write(body[-1:])
        for reader, writer in streams:
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
            await writer.wait_closed()
    assert len(set(parsed_in)) == len(parsed_in) == 4
