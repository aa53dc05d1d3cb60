"""The usage that the gateway reports equals what the provider charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multistep.gateway.accounting.prices import cost_usd
from multistep.gateway.model_api.answer_parsers import CHAT, MESSAGES, AnswerParser, TokenUsage
from tests.support.model_answers import Api
from tests.unit.gateway.world import MODELS, PROVIDERS, step_of, token_for, world

APIS: tuple[Api, ...] = ("chat", "responses", "messages", "gemini")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_usage_and_cost_equal_the_providers_own_ledger(tmp_path: Path, api: Api, stream: bool) -> None:
    async with world(tmp_path) as it:
        for text in ("say: hello", "say: " + "a longer answer " * 40):
            seen = await it.call(api, stream=stream, text=text)
            assert seen.status == 200 and not seen.error
        usage = await it.admin.close(step_of())
        entries = it.model.entries
        assert [each.outcome for each in entries] == ["answered", "answered"]
        assert usage.input_tokens == sum(each.input for each in entries) > 0
        assert usage.cached_tokens == sum(each.cached for each in entries) > 0
        assert usage.output_tokens == sum(each.output for each in entries) > 0
        written = [each.input // 10 if api == "messages" else 0 for each in entries]
        costs = [
            cost_usd(PROVIDERS[api], MODELS[api], TokenUsage(each.input, each.cached, new, 0, each.output))
            for each, new in zip(entries, written, strict=True)
        ]
        assert usage.cost_usd == pytest.approx(sum(cost for cost in costs if cost))
        assert (usage.requests, usage.incomplete, usage.last_failure) == (2, 0, None)
        assert list(usage.models) == [MODELS[api]]
        assert usage.price_table.startswith("genai-prices ")


@pytest.mark.parametrize("api", APIS)
async def test_the_provider_gets_its_own_key_and_not_the_step_token(tmp_path: Path, api: Api) -> None:
    async with world(tmp_path) as it:
        token = token_for(api)
        await it.call(api, token=token)
        (entry,) = it.model.entries
        assert "REAL" in entry.key
        assert token not in str(entry)


async def test_steps_and_models_are_counted_apart(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        for step, model in (("0", "claude-sonnet-4-5"), ("0", "claude-haiku-4-5"), ("1", "claude-sonnet-4-5")):
            await it.send("messages", model, stream=True, token=token_for("messages", step=step))
        first, second = await it.admin.close(step_of(step="0")), await it.admin.close(step_of(step="1"))
        assert {name: each.requests for name, each in first.models.items()} == {"claude-haiku-4-5": 1, "claude-sonnet-4-5": 1}
        assert first.input_tokens == sum(each.input_tokens for each in first.models.values())
        assert second.requests == 1


async def test_a_model_without_a_price_has_tokens_and_no_cost(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.send("chat", "our-own-model", stream=False)
        usage = await it.admin.close(step_of())
        assert usage.cost_usd is None
        assert usage.input_tokens > 0


@pytest.mark.parametrize(
    ("delta", "usage"),
    [
        ({"output_tokens": 50}, TokenUsage(1110, 100, 1000, 800, 50)),
        (
            {"input_tokens": 20, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 1000, "output_tokens": 50},
            TokenUsage(1120, 100, 1000, 800, 50),  # Anthropic's message_delta does not say how long the writes are cached
        ),
        ({"cache_read_input_tokens": 300, "output_tokens": 50}, TokenUsage(1310, 300, 1000, 800, 50)),
        ({"cache_creation_input_tokens": 500, "output_tokens": 50}, TokenUsage(610, 100, 500, 500, 50)),
        ({"input_tokens": 20}, TokenUsage(1120, 100, 1000, 800, 1)),
    ],
)
def test_a_count_that_the_end_of_a_stream_lacks_is_that_of_its_start(delta: dict[str, Any], usage: TokenUsage) -> None:
    start = {"input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 1000, "output_tokens": 1}
    start_usage = {**start, "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 800}}
    reading = AnswerParser(MESSAGES)
    reading.event(json.dumps({"type": "message_start", "message": {"usage": start_usage}}).encode())
    reading.event(json.dumps({"type": "message_delta", "usage": delta}).encode())
    assert reading.usage == usage


@pytest.mark.parametrize(("total", "output"), [(135, 103), (41, 9), (0, 9), (None, 9)])
def test_thinking_that_only_the_total_contains_is_output(total: int | None, output: int) -> None:
    usage = {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": total, "prompt_tokens_details": {"cached_tokens": 6}}
    reading = AnswerParser(CHAT)
    reading.document(json.dumps({"choices": [], "usage": usage}).encode())
    assert reading.usage == TokenUsage(32, 6, output=output)
