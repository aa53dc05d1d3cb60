"""Checks that the stub answers as the installed litellm does, for the models with which the host uses the stub."""

from __future__ import annotations

import litellm
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep_host import litellm_stub
from multistep_host.litellm_providers import PROVIDERS

MODELS = ("gpt-5", "claude-sonnet-4-5", "claude-2.1", "claude-instant-1.2", "command-r", "a/b", "some-model:latest")


def test_the_providers_are_litellms() -> None:
    assert {provider.value for provider in litellm.provider_list} == PROVIDERS


@pytest.mark.parametrize("provider", sorted(PROVIDERS - litellm_stub._SPECIAL))
def test_a_models_provider_is_the_one_that_litellm_finds(provider: str) -> None:
    for model in (f"{provider}/{name}" for name in MODELS):
        if litellm_stub.suffices({"name": "claude-code", "model": model}):
            assert litellm_stub.get_llm_provider(model) == (*litellm.get_llm_provider(model=model)[:2], None, None)


@given(st.text(max_size=30))
def test_a_name_without_a_known_provider_needs_litellm(name: str) -> None:
    if name.partition("/")[0] not in PROVIDERS:
        assert not litellm_stub.suffices({"name": "claude-code", "model": name})
        with pytest.raises(litellm_stub.UnknownProviderError):
            litellm_stub.get_llm_provider(name)


@pytest.mark.parametrize("agent", [{"name": "terminus-2"}, {"name": None, "importPath": "a:B"}, {"name": "a:B"}])
def test_an_agent_that_may_call_the_model_itself_needs_litellm(agent: dict[str, str]) -> None:
    assert not litellm_stub.suffices({**agent, "model": "openai/gpt-5"})


def test_the_stub_has_no_prices() -> None:
    with pytest.raises(LookupError):
        litellm_stub._cost_per_token(model="gpt-5", prompt_tokens=1)
