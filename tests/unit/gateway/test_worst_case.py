"""The tokens and the cost that a request reserves are upper bounds of what the provider may charge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multistep.gateway.accounting.ledger_rows import Spent
from multistep.gateway.accounting.upper_bounds import UpperBound, upper_bound
from multistep.gateway.model_api.request_parsers import parse_request
from multistep.gateway.model_api.routes import BASE_PATHS, find_route

CHAT, RESPONSES, MESSAGES = "/openai/v1/chat/completions", "/openai/v1/responses", "/anthropic/v1/messages"
GEMINI = f"{BASE_PATHS['gemini']}/v1beta/models/gemini-2.5-pro:generateContent"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.test"}}]}]}


def most_of(path: str, body: dict[str, Any], *, long_context: bool = False) -> UpperBound:
    """Return the upper bound of the usage of a request with this body."""
    route = find_route("POST", path)
    assert route is not None
    return upper_bound(route.provider, parse_request(json.dumps(body).encode(), route), long_context=long_context)


def tokens(path: str, body: dict[str, Any], **more: Any) -> Spent:
    """Return the upper bound of a request's usage; assert that it is known."""
    found = most_of(path, body, **more)
    assert found.unknown == ""
    return found.most


def test_a_text_has_at_most_one_token_per_byte() -> None:
    body = {"model": "gpt-5", "max_completion_tokens": 7, **HELLO}
    found = tokens(CHAT, body)
    assert found.input_tokens == len(json.dumps(body).encode()) + 2048
    assert found.output_tokens == 7


def test_a_text_has_at_most_the_models_context_window() -> None:
    body = {"model": "claude-sonnet-4-5", "max_tokens": 7, "messages": [{"role": "user", "content": "x" * 1_500_000}]}
    assert tokens(MESSAGES, body).input_tokens == 200_000
    assert tokens(MESSAGES, body, long_context=True).input_tokens == 1_000_000


@pytest.mark.parametrize(
    ("path", "limit", "most"),
    [
        (CHAT, {"max_tokens": 9, "max_completion_tokens": 5}, 9),
        (CHAT, {"max_completion_tokens": 5, "n": 3}, 15),
        (CHAT, {}, 128_000),
        (CHAT, {"max_completion_tokens": "5", "n": 2}, 256_000),
        (RESPONSES, {"max_output_tokens": 6}, 6),
        (RESPONSES, {"max_output_tokens": None}, 128_000),
        (MESSAGES, {"max_tokens": 8}, 8),
        (GEMINI, {"generationConfig": {"maxOutputTokens": 4, "candidateCount": 2}}, 8),
        (GEMINI, {"generationConfig": {"maxOutputTokens": 4}, "generation_config": {"max_output_tokens": 40}}, 40),
        (GEMINI, {}, 65_536),
    ],
)
def test_the_output_is_bounded_by_the_requests_or_the_models_maximum(path: str, limit: dict[str, Any], most: int) -> None:
    model = {} if path == GEMINI else {"model": "gpt-5" if path != MESSAGES else "claude-sonnet-4-5"}
    assert tokens(path, {**model, **limit}).output_tokens == most


@pytest.mark.parametrize(
    "content",
    [
        IMAGE,
        {"previous_response_id": "resp_1"},
        {"input": [{"type": "input_file", "file_id": "f"}]},
        {"input": [{"type": "item_reference", "id": "m"}]},
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": "all"},
        {"tools": ["web"]},
    ],
)
def test_files_references_and_tools_of_the_provider_may_fill_the_context_window(content: dict[str, Any]) -> None:
    assert tokens(RESPONSES, {"model": "gpt-5", **content}).input_tokens == 400_000
    unknown = most_of(RESPONSES, {"model": "our-own", "max_output_tokens": 5, **content})
    assert "context window is unknown" in unknown.unknown


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "Task", "input_schema": {"properties": {"prompt": {"type": "string"}}}},
        {"type": "custom", "name": "apply_patch"},
        {"type": "function", "function": {"name": "run"}},
        {"functionDeclarations": [{"name": "run"}]},
    ],
)
def test_tools_of_the_agent_are_text(tool: dict[str, Any]) -> None:
    assert tokens(RESPONSES, {"model": "gpt-5", "tools": [tool]}).input_tokens < 3000


def test_input_that_anthropic_caches_costs_more() -> None:
    plain = {"model": "claude-sonnet-4-5", "max_tokens": 1, "system": [{"type": "text", "text": "x" * 10_000}]}
    cached = {**plain, "system": [{"type": "text", "text": "x" * 10_000, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}
    assert tokens(MESSAGES, plain).cost_usd == pytest.approx(12_200 * 3e-6, rel=0.01)
    assert tokens(MESSAGES, cached).cost_usd == pytest.approx(12_200 * 6e-6, rel=0.01)


def test_a_model_without_limits_needs_a_maximum_of_the_request() -> None:
    assert "names no maximum of output tokens" in most_of(CHAT, {"model": "our-own", **HELLO}).unknown
    assert tokens(CHAT, {"model": "our-own", "max_tokens": 5, **HELLO}).output_tokens == 5
