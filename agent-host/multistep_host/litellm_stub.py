"""A small replacement for litellm, for agents that use it only to resolve a model's name.

In each trial, importing litellm would take more than 100 MiB and 3 s of CPU time. Agents that run in the environment need litellm
only to find the provider in a model's name. The stub has no price list, so Harbor cannot estimate the cost of an
agent whose program does not report it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

from multistep_host.litellm_providers import PROVIDERS

# These agents of Harbor 0.26 call the model from the host, or use litellm's table of models, which the stub lacks.
_NEED_LITELLM = frozenset({"terminus-2", "computer-1", "dspy-rlm", "kimi-cli"})
# litellm has special rules for some model names of these providers, which the stub does not implement.
_SPECIAL = frozenset({"azure", "cohere", "chatgpt", "github_copilot", "ragflow"})
_ANTHROPIC_TEXT_MODELS = ("claude-2", "claude-instant")


class UnknownProviderError(ValueError):
    """The model's name does not start with a provider's name."""


def suffices(agent: Mapping[str, Any]) -> bool:
    """Return whether the agent of a setup request works with the stub as it does with litellm.

    The result is False for custom classes, because they may need litellm.
    """
    name, model = agent.get("name"), agent.get("model")
    return bool(name) and ":" not in str(name) and name not in _NEED_LITELLM and (model is None or _provider(model) is not None)


def install() -> None:
    """Make `import litellm` import the stub. Call it before Harbor is imported."""
    stub: Any = types.ModuleType("litellm", __doc__)
    stub.provider_list = sorted(PROVIDERS)
    stub.get_llm_provider = get_llm_provider
    stub.cost_per_token = _cost_per_token
    stub.model_cost = {}
    stub.suppress_debug_info = True
    sys.modules["litellm"] = stub


def get_llm_provider(model: str) -> tuple[str, str, None, None]:
    """Return the model's name without its provider, and the provider, as litellm's function does.

    Raises:
        UnknownProviderError: the name has no known provider. litellm also raises an error, and Harbor then uses the name as is.
    """
    provider = _provider(model)
    if provider is None:
        raise UnknownProviderError(f"{model!r} does not start with the name of a provider")
    return model.partition("/")[2], provider, None, None


def _provider(model: str) -> str | None:
    """Return the provider in the name's first part, or None if litellm needs more than that part to determine the provider."""
    provider, slash, name = model.partition("/")
    if not slash or provider not in PROVIDERS - _SPECIAL:
        return None
    if provider == "anthropic" and name.startswith(_ANTHROPIC_TEXT_MODELS):
        return None
    return provider


def _cost_per_token(**_: Any) -> tuple[float, float]:
    raise LookupError("the agent host has no price list")
