"""Options and models of Harbor's agents, which are checked before a trial is submitted and again by the operator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multistep.api.common.base_model import parsed
from multistep.api.trial import harbor_agents
from multistep.api.trial.agent_spec import TABLE, AgentSpec, option_problems
from multistep.errors import InvalidSpec
from multistep.gateway.keys.credentials import Credential

MODEL = "anthropic/claude-sonnet-4-5"


def problem(**agent: Any) -> str:
    """Return why an agent's spec is rejected."""
    with pytest.raises(InvalidSpec) as error:
        parsed(AgentSpec, {"model": MODEL, **agent}, "spec.agent: ")
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("claude-code", {"max_turn": 5}, "kwargs: claude-code has no option 'max_turn'; did you mean 'max_turns'?"),
        ("claude-code", {"colour": "red"}, "kwargs: claude-code has no option 'colour'"),
        ("claude-code", {"max_turns": "many"}, "kwargs.max_turns: must be an integer, not 'many'"),
        ("claude-code", {"reasoning_effort": "extreme"}, "must be one of low, medium, high, xhigh, max, not 'extreme'"),
        ("codex", {"dangerously_bypass_hook_trust": "perhaps"}, "must be true or false, not 'perhaps'"),
        ("claude-code", {"model_api_format": "openai"}, "kwargs.model_api_format: must be one of anthropic_messages, not 'openai'"),
        ("goose", {"temperature": 1.5}, "kwargs.temperature: must be a number >= 0.0 and <= 1.0, not 1.5"),
        ("goose", {"max_tokens": 0}, "kwargs.max_tokens: must be an integer > 0 and <= 2147483647, not 0"),
        ("terminus-2", {"model_info": [1]}, "kwargs.model_info: must be an object, not [1]"),
        (
            "acp",
            {"registry_entry_path": 5.5, "registry_entry": [], "source": 1},
            "registry_entry: must be an object or a text, not []",
        ),
    ],
)
def test_an_option_that_the_agent_does_not_take_is_rejected(name: str, kwargs: dict[str, Any], message: str) -> None:
    assert message in problem(name=name, kwargs=kwargs)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("opencode", {"reasoning_effort": "high"}),
        ("opencode", {"variant": "high"}),  # the same option by its alias
        ("terminus-2", {"episodes": 5}),
        ("copilot-cli", {"enable_github_mcp_server": True, "disabled_mcp_servers": "x"}),
        ("openclaw", {"model_api_format": "openai_chat_completions"}),
    ],
)
def test_an_option_is_known_by_each_of_its_names(name: str, kwargs: dict[str, Any]) -> None:
    assert option_problems(name, kwargs) == []


KEY = {"credentials": [{"name": "ANTHROPIC_API_KEY", "value": "x"}]}


@pytest.mark.parametrize(
    ("agent", "installs"),
    [
        ({}, True),
        ({"preinstalled": True}, False),
        ({"image": "i"}, False),
        ({"kwargs": {"skip_install": True}}, False),
        ({"kwargs": {"skip_install": "yes"}}, False),
        ({"kwargs": {"skip_install": "false"}}, True),
        ({"kwargs": {"skip_install": False}, "preinstalled": True}, False),
    ],
)
def test_harbors_option_skip_install_does_what_preinstalled_does(agent: dict[str, Any], installs: bool) -> None:
    assert AgentSpec.model_validate({"name": "claude-code", "model": MODEL, **KEY, **agent}).installs is installs


def test_an_option_of_a_class_by_its_path_is_the_classs_own() -> None:
    assert AgentSpec.model_validate({"importPath": "a:B", "kwargs": {"skip_install": True}}).installs


def test_the_agent_that_cannot_be_installed_is_rejected_with_the_reason() -> None:
    assert "the agent fabric is not available: it cannot be installed with Harbor 0.26" in problem(name="fabric")


@pytest.mark.parametrize(
    "url",
    [
        "https://x.azure.com/openai?api-version=1",
        "https://user:pw@host/v1",
        "https://host:port",
        "https://h/#a",
        "https://h/a b",
        "https://",
    ],
)
def test_a_base_url_that_the_gateway_cannot_use_is_rejected(url: str) -> None:
    assert "baseURL: must be https://HOST[:PORT][/PATH]" in (found := problem(name="claude-code", baseURL=url, **KEY))
    assert found.endswith(f"not {url!r}")
    with pytest.raises(ValueError, match="baseURL"):
        Credential.model_validate({"provider": "anthropic", "key": "k", "baseURL": url})
    assert parsed(AgentSpec, {"name": "claude-code", "model": MODEL, "baseURL": url, "access": "Direct"}, "").base_url == url


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4-5\n", " anthropic/x", "anthropic/my model"])
def test_a_models_name_that_the_gateway_refuses_is_rejected(model: str) -> None:
    assert f"model: must have visible ASCII characters only, not {model!r}" in problem(name="claude-code", model=model, **KEY)


@pytest.mark.parametrize(
    ("variable", "right"),
    [("ANTHROPIC_BASE_URL", "baseURL"), ("ANTHROPIC_API_BASE", "baseURL"), ("ANTHROPIC_API_KEY", "credentials")],
)
def test_a_variable_that_replaces_the_gateways_is_rejected(variable: str, right: str) -> None:
    """The agent would call another URL with the step's token, or the gateway with another key, and its trials would score 0."""
    env = [{"name": variable, "value": "x"}]
    found = problem(name="claude-code", env=env, **KEY)
    assert f"env: {variable} must not be set with access Gateway, as it replaces the model gateway's; use {right}" in found
    direct = {"name": "claude-code", "model": MODEL, "env": env, "access": "Direct"}
    assert parsed(AgentSpec, direct, "").env[0].name == variable
    other = {"name": "claude-code", "model": MODEL, "env": [{"name": "OPENAI_BASE_URL", "value": "x"}], **KEY}
    assert parsed(AgentSpec, other, "").uses_gateway


@pytest.mark.parametrize(
    ("name", "option", "right"), [("claude-code", "base_url", "baseURL"), ("qwen-coder", "api_key", "credentials")]
)
def test_an_option_that_replaces_the_gateways_url_or_token_is_rejected(name: str, option: str, right: str) -> None:
    found = problem(name=name, kwargs={option: "x"}, **KEY)
    assert f"kwargs.{option} must not be set with access Gateway, as it replaces the model gateway's; use {right}" in found
    assert parsed(AgentSpec, {"name": name, "model": MODEL, "kwargs": {option: None}, **KEY}, "").uses_gateway
    assert parsed(AgentSpec, {"name": name, "model": MODEL, "kwargs": {option: "x"}, "access": "Direct"}, "").options


def test_a_class_of_your_own_may_have_any_options() -> None:
    agent = {
        "importPath": "my_agents:Searcher",
        "model": MODEL,
        "kwargs": {"api_key": "of a search engine", "base_url": "http://memory"},
    }
    assert parsed(AgentSpec, {**agent, **KEY}, "").uses_gateway


def test_a_base_url_that_cannot_be_parsed_is_rejected() -> None:
    found = problem(name="claude-code", baseURL="http://[fd00::1/v1", access="Direct")
    assert "baseURL: must be a URL, not 'http://[fd00::1/v1': Invalid IPv6 URL" in found


def test_the_name_of_the_keys_variable_is_no_option() -> None:
    """model_api_key_name is a field of Harbor's own configuration, and Harbor rejects it as an option."""
    assert "claude-code has no option 'model_api_key_name'" in problem(name="claude-code", kwargs={"model_api_key_name": "X"})


def test_a_base_url_that_no_variable_of_the_agent_can_have_is_rejected() -> None:
    found = problem(name="terminus-2", model="qwen", baseURL="http://vllm:8000/v1", access="Direct")
    assert "baseURL needs the provider of its API: model must be PROVIDER/NAME, not 'qwen'" in found


@pytest.mark.parametrize(
    "url", ["https://openrouter.ai/api/v1/", "http://vllm.rl.svc:8000/v1", "https://[fd00::1]:443", "https://h/a,b@c~"]
)
def test_a_base_url_has_a_host_a_port_and_a_path(url: str) -> None:
    assert parsed(AgentSpec, {"name": "claude-code", "baseURL": url, **KEY}, "").base_url == url
    assert Credential.model_validate({"provider": "anthropic", "key": "k", "baseURL": url}).base_url == url


def test_all_problems_of_the_options_are_reported_at_once() -> None:
    found = problem(name="claude-code", kwargs={"max_turns": [], "max_turn": 1, "max_budget_usd": 2})
    assert "kwargs.max_turns: must be an integer, not []; kwargs: claude-code has no option 'max_turn'" in found
    assert "max_budget_usd" not in found


@pytest.mark.parametrize(
    "kwargs",
    [
        {"max_turns": 50, "max_budget_usd": 2.5, "disable_web_search": "yes"},  # Harbor converts max_budget_usd to a string
        {"max_turns": "50"},
        {"max_turns": None, "permission_mode": None},
        {"config": {"any": ["thing"]}},
    ],
)
def test_a_value_that_harbor_converts_is_accepted(kwargs: dict[str, Any]) -> None:
    assert AgentSpec.model_validate({"name": "claude-code", "kwargs": kwargs}).options == kwargs


def test_a_class_of_the_users_takes_any_options() -> None:
    assert AgentSpec.model_validate({"importPath": "mine:Agent", "kwargs": {"anything": object}}).options
    assert option_problems("an agent that ignores unknown options", {"anything": 1}) == []


@pytest.mark.parametrize("value", [object(), 1j, "1e999999", 10**400, "nan", {"a": 1}])
def test_no_value_breaks_the_check(value: object) -> None:
    kinds = {"max_turns", "disable_web_search", "reasoning_effort", "version"}
    for name in kinds:
        option_problems("claude-code", {name: value})
    assert option_problems("goose", {"temperature": value})


@pytest.mark.parametrize("name", sorted(harbor_agents.NEED_MODEL))
def test_an_agent_that_cannot_run_without_a_model_needs_one_in_a_manifest(name: str) -> None:
    assert f"model is required: {name} cannot run without one" in problem(name=name, model=None)


def test_an_agent_with_a_default_model_needs_none() -> None:
    assert AgentSpec.model_validate({"name": "claude-code"}).model is None


def test_the_table_has_all_agents() -> None:
    assert json.loads(TABLE.read_text()).keys() == set(harbor_agents.NAMES)
