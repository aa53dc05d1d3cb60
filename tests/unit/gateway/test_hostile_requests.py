"""Requests with which an agent could harm other trials, or have its own trial excluded instead of scored."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multistep.gateway.bodies import Asked, InvalidBody, read_body
from multistep.gateway.dialects import MESSAGES, RESPONSES, Dialect, Reading
from multistep.gateway.headers import upstream_headers
from multistep.gateway.ledger import Ledger, Row
from multistep.gateway.routes import find_route
from multistep.gateway.worst_case import worst_case

ROW = Row("a", "uid/1/0/agent", "s", "x", "openai", "m", 1, 1, 0.0)


def parsed(**body: Any) -> Asked:
    route = find_route("POST", "/openai/v1/chat/completions")
    assert route is not None
    return read_body(json.dumps({"model": "gpt-4o", "messages": [], **body}).encode(), route)


async def test_a_row_that_cannot_be_stored_fails_no_other_row_of_its_transaction(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    rows = [replace(ROW, id=str(number)) for number in range(20)]
    rows[7] = replace(rows[7], reserved_output=10**30)
    results = await asyncio.gather(*(ledger.write(row) for row in rows), return_exceptions=True)
    assert [number for number, result in enumerate(results) if result is not None] == [7]
    assert (await ledger.spent("sweep", "s")).input_tokens == 0  # all are open
    ledger.stop()
    ledger = Ledger(tmp_path / "ledger.sqlite")  # a restart counts them with their reservations
    assert (await ledger.spent("sweep", "s")).input_tokens == 19
    ledger.stop()


@pytest.mark.parametrize("model", ["m" * 201, "\ud800", "", " gpt", "a\nb", 7])
def test_a_models_name_that_is_none_is_refused(model: object) -> None:
    with pytest.raises(InvalidBody, match=r"the field model|body's field model"):
        parsed(model=model)


def test_a_body_that_would_need_much_more_memory_than_its_text_is_refused() -> None:
    route = find_route("POST", "/openai/v1/chat/completions")
    assert route is not None
    with pytest.raises(InvalidBody, match="more than 1,000,000 values"):
        read_body(b'{"model":"gpt-4o","x":[' + b"[]," * 500_000 + b"0]}", route)


@pytest.mark.parametrize(
    ("body", "output"),
    [
        ({"max_tokens": 10**30}, 16_384),  # the model's own maximum
        ({"max_tokens": 100, "n": 3}, 300),
        ({"max_tokens": 100, "n": "8"}, 128 * 100),  # a provider may convert the text
        ({"max_tokens": 100, "n": 10**30}, 128 * 100),
        ({}, 16_384),
    ],
)
def test_a_reservation_is_at_most_what_the_model_can_answer(body: dict[str, Any], output: int) -> None:
    assert worst_case("openai", parsed(**body)).most.output_tokens == output


@pytest.mark.parametrize(
    ("dialect", "event", "blamed"),
    [
        (RESPONSES, {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded"}}}, True),
        (RESPONSES, {"type": "response.failed", "response": {"error": {"code": "server_error"}}}, False),
        (MESSAGES, {"type": "error", "error": {"type": "invalid_request_error"}}, True),
        (MESSAGES, {"type": "error", "error": {"type": "overloaded_error"}}, False),
    ],
)
def test_an_error_in_a_stream_is_the_providers_only_if_it_says_so(dialect: Dialect, event: Any, blamed: bool) -> None:
    reading = Reading(dialect)
    reading.event(json.dumps(event).encode())
    assert (reading.failed, reading.blames_request) == (True, blamed)


def test_headers_that_make_a_provider_reject_the_key_are_not_forwarded() -> None:
    given = [("OpenAI-Organization", "x"), ("X-Server-Timeout", "1"), ("anthropic-beta", "y"), ("User-Agent", "agent")]
    assert upstream_headers(given, ("x-api-key", "k"))[:-2] == [("anthropic-beta", "y"), ("User-Agent", "agent")]
