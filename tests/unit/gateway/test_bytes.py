"""Requests and answers pass through the gateway byte for byte, except for tokens, keys and stream_options.include_usage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multistep.gateway.model_api.answer_parsers import EventReader
from multistep.gateway.model_api.error_blame import CONFIGURATION_MESSAGES
from multistep.gateway.model_api.forwarded_headers import answer_headers, upstream_headers, upstream_query
from multistep.gateway.model_api.request_parsers import InvalidBody, parse_request
from multistep.gateway.model_api.routes import find_route
from tests.unit.gateway.world import documents, request_of, step_of, token_for, world

CHAT = find_route("POST", "/openai/v1/chat/completions")
assert CHAT is not None
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.text(max_size=8).filter(
    lambda name: name.lower() not in ("model", "stream") and not name.strip().startswith(CONFIGURATION_MESSAGES)
)
MEMBERS = st.dictionaries(FIELDS, JSON, max_size=5)
NAMES = st.from_regex(r"[Xx]-[A-Za-z0-9-]{1,12}", fullmatch=True)
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=30)
# A name may occur in several headers, but not with different capitals: of headers whose names differ only in capitals, aiohttp's
# client, which both the tests and the gateway use, sends only one.
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=5).filter(
    lambda headers: len({name for name, _ in headers}) == len({name.lower() for name, _ in headers})
)


@given(pieces=st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"data: x\n\n"]), max_size=30))
def test_events_are_the_stream(pieces: list[bytes]) -> None:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    rest = reader.rest()
    assert b"".join(event.raw for event in events) + (rest.raw if rest else b"") == b"".join(pieces)


@given(texts=st.lists(st.from_regex(r"[a-z{}]{1,20}", fullmatch=True), max_size=8), data=st.data())
def test_events_are_found_wherever_the_stream_is_split(texts: list[str], data: st.DataObject) -> None:
    ending = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    stream = "".join(f"event: e{ending}data: {text}{ending}{ending}" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, found = EventReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert [event.data.decode() for event in found if event.data] == texts


@given(members=MEMBERS, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_a_body_is_sent_as_it_is(members: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    assert CHAT is not None
    if len({name.casefold() for name in members}) < len(members):
        return
    text = json.dumps({**members, "model": "m"}, indent=indent, ensure_ascii=ascii_only)
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return
    assert parse_request(body, CHAT).body == body


@given(members=MEMBERS, options=st.none() | st.dictionaries(st.sampled_from(["a", "include_usage"]), st.booleans()))
def test_only_the_wish_for_usage_is_added_to_a_chat_stream(members: dict[str, Any], options: dict[str, bool] | None) -> None:
    assert CHAT is not None
    if len({name.casefold() for name in members}) < len(members):
        return
    given = {**members, "model": "m", "stream": True, **({} if options is None else {"stream_options": options})}
    asked = parse_request(json.dumps(given).encode(), CHAT)
    assert json.loads(asked.body) == {**given, "stream_options": {**(options or {}), "include_usage": True}}
    assert asked.strips_usage == (not (options or {}).get("include_usage"))


@given(body=st.binary(max_size=60) | st.text(alphabet='{}[]",:amodel1 \\', max_size=40).map(str.encode))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    assert CHAT is not None
    try:
        asked = parse_request(body, CHAT)
    except InvalidBody:
        return
    assert body == b"" or isinstance(json.loads(body), dict)
    assert asked.body == body or asked.strips_usage


@given(headers=st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_headers_pass_in_order_without_credentials(headers: list[tuple[str, str]]) -> None:
    hidden = [("Authorization", "Bearer step"), ("X-Api-Key", "step"), ("Connection", "x-hop"), ("X-Hop", "1"), ("Host", "h")]
    kept = [(name, value) for name, value in headers if name.lower() not in ("x-hop", "x-api-key", "x-goog-api-key")]
    sent = upstream_headers([*headers, *hidden], ("x-api-key", "real"))
    assert sent == [*kept, ("Accept-Encoding", "identity"), ("x-api-key", "real")]


def test_the_key_is_redacted_from_answer_headers() -> None:
    assert answer_headers([("X-Echo", "it is sk-1"), ("Content-Length", "3")], "sk-1", "***") == [("X-Echo", "it is ***")]


def test_only_the_parameters_that_agents_need_pass_in_the_query() -> None:
    given = "alt=sse&key=token&%6bey=token&beta=true&fields=candidates/content&alt=proto&access_token=x"
    assert upstream_query(given) == "alt=sse&beta=true"


class Echo:
    """A provider that records the last request and answers with the bytes in ``answer``."""

    def __init__(self) -> None:
        self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.answer = b"{}"
        self.content_type = "application/json"

    async def handle(self, request: web.Request) -> web.Response:
        """Record the request and answer it."""
        self.body, self.headers = await request.read(), list(request.raw_headers)
        return web.Response(body=self.answer, content_type=self.content_type)


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[Echo, str]]:
    """Run an Echo provider; yield it and its URL."""
    provider = Echo()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", provider.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield provider, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(cases=st.lists(st.tuples(MEMBERS, JSON, HEADERS), min_size=1, max_size=3))
def test_bodies_and_headers_are_the_same_at_the_provider(cases: list[tuple[dict[str, Any], Any, list[tuple[str, str]]]]) -> None:
    async def run(directory: Path) -> None:
        async with world(directory) as it, echo() as (provider, url):
            await it.admin.register("openai", it.credential("openai", base_url=url))
            for members, answer, headers in cases:
                await one(it.http, it.port, provider, members, answer, headers)

    with TemporaryDirectory() as made:
        asyncio.run(run(Path(made)))


async def one(
    http: aiohttp.ClientSession, port: int, provider: Echo, members: dict[str, Any], answer: Any, headers: list[tuple[str, str]]
) -> None:
    """Send a chat request with these JSON members and headers; check that provider and agent receive what the other one sent."""
    if len({name.casefold() for name in members}) < len(members):
        return
    body = json.dumps({**members, "model": "m"}).encode()
    provider.answer = json.dumps(answer, indent=1).encode()
    own = [(name, value) for name, value in headers if name.lower() not in ("x-api-key", "x-goog-api-key")]
    sent = [*own, ("Authorization", f"Bearer {token_for('chat')}"), ("Content-Type", "application/json")]
    url = f"http://127.0.0.1:{port}/openai/v1/chat/completions"
    async with http.post(url, data=body, headers=sent, skip_auto_headers=("User-Agent", "Accept")) as got:
        assert (got.status, await got.read()) == (200, provider.answer)
    assert provider.body == body
    found = [(name.decode(), value.decode()) for name, value in provider.headers if name.lower().startswith(b"x-")]
    assert found == own


@pytest.mark.parametrize("wanted", [False, True])
async def test_an_agent_gets_the_usage_event_of_a_chat_stream_only_if_it_asked(tmp_path: Path, wanted: bool) -> None:
    async with world(tmp_path) as it:
        path, headers, body = request_of("chat", "gpt-5-mini", token_for("chat"), stream=True)
        options = {"stream_options": {"include_usage": True}} if wanted else {}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json={**body, **options}) as answer:
            got = await answer.read()
        assert any(each["choices"] == [] for each in documents(got)) == wanted
        assert got.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("ends", [True, False])
async def test_a_fingerprint_that_the_server_moves_to_the_usage_event_returns_to_the_event_with_the_finish_reason(
    tmp_path: Path, ends: bool
) -> None:
    """vLLM does so if a stream is asked for its usage."""
    said = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
    stop = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]%s}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2},"system_fingerprint":"fp-1"}\n\n'
    done = b"data: [DONE]\n\n" * ends
    async with world(tmp_path) as it, echo() as (provider, url):
        await it.admin.register("openai", it.credential("openai", base_url=url))
        provider.content_type = "text/event-stream"
        provider.answer = said + stop % (b"length", b"") + stop % (b"stop", b"") + usage + done
        seen = await it.call("chat", stream=True)
        expected = said + stop % (b"length", b"") + stop % (b"stop", b',"system_fingerprint":"fp-1"') + done
        assert (seen.status, seen.error, seen.body) == (200, "", expected)
        provider.answer = said + stop % (b"stop", b"")
        cut = await it.call("chat", stream=True)
        assert cut.error and cut.body in (b"", said, said + stop % (b"stop", b""))
        assert (await it.admin.close(step_of())).output_tokens == 2
