"""The usage that the gateway reports equals what the provider charged."""

from __future__ import annotations

from pathlib import Path

import pytest

from multistep.gateway.dialects import Usage
from multistep.gateway.prices import cost_usd
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
            cost_usd(PROVIDERS[api], MODELS[api], Usage(each.input, each.cached, new, 0, each.output))
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
