"""With spec.agent.providerTools Refuse, no request makes the provider act outside of the step's network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multistep.gateway.model_api.costly_content import provider_content
from tests.support.model_answers import Api
from tests.unit.gateway.world import MODELS, request_of, token_for, world

FUNCTION = {"type": "function", "function": {"name": "fetch", "parameters": {"properties": {"image_url": "https://x"}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
SOURCE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}


def content(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts]}]}


@pytest.mark.parametrize(
    "body",
    [
        # OpenAI: chat completions and responses
        {"web_search_options": {}},
        {"web_search_options": {"search_context_size": "low"}},
        {"tools": [{"type": "web_search_preview"}]},
        {"tools": [FUNCTION, {"type": "mcp", "server_url": "https://x"}]},
        {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
        {"tools": [{"type": "file_search"}]},
        {"tools": [{"type": "image_generation"}]},
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
        {"tools": [{"type": "namespace", "tools": [{"type": "mcp"}]}]},
        {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp"}]}]},
        {"tools": {"type": "web_search"}},
        {"tools": ["web_search"]},
        {"tools": [{}, {"unknown": {}}]},
        {"prompt": {"id": "pmpt_1"}},
        content(IMAGE),
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://x"}]}]},
        # Anthropic
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
        {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
        {"mcp_servers": [{"type": "url", "url": "https://x"}]},
        {"container": {"skills": []}},
        content(SOURCE),
        content({"type": "tool_result", "content": [SOURCE]}),
        content({"type": "document", "source": {"type": "url", "url": "https://x"}}),
        # Gemini, in both spellings
        {"tools": [{"googleSearch": {}}]},
        {"tools": [{"url_context": {}}]},
        {"tools": [{"functionDeclarations": []}, {"codeExecution": {}}]},
        {"contents": [{"parts": [{"fileData": {"fileUri": "https://x"}}]}]},
        {"contents": [{"parts": [{"file_data": {"file_uri": "gs://x"}}]}]},
        # other servers
        {"plugins": [{"id": "web"}]},
        {"preset": "with-web-search"},
        {"models": ["openai/gpt-5", "openai/gpt-5-mini:online"]},
        {"models": "perplexity/sonar"},
        {"fallbacks": [{"model": "openai/gpt-5:online"}]},
        {"fallbacks": [{"gpt-5": ["gpt-4o-search-preview"]}]},
        {"context_window_fallbacks": [{"gpt-5": ["perplexity/sonar"]}]},
        {"content_policy_fallbacks": [{"gpt-5": ["perplexity/sonar"]}]},
        {"mock_testing_fallbacks": True, "Fall_Backs ": ["perplexity/sonar"]},
        {"context_window_fallback_dict": {"gpt-5": "perplexity/sonar"}},
        {"search_parameters": {"mode": "on"}},
        {"enable_search": True},
        content({"type": "video_url", "video_url": {"url": "HTTPS://x"}}),
    ],
)
def test_what_the_provider_would_do_or_fetch_is_found(body: dict[str, Any]) -> None:
    assert provider_content(body, "gpt-5")


@pytest.mark.parametrize(
    "body",
    [
        {**content({"type": "text", "text": "look at https://x"}), "tools": [FUNCTION]},
        {"web_search_options": None, "mcp_servers": [], "tools": None},
        {"models": ["openai/gpt-5", "anthropic/claude-sonnet-4-5"], "fallbacks": None, "route": "fallback"},
        {"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}, {"type": "local_shell"}]},
        {"tools": [{"type": "shell"}, {"type": "shell", "environment": {"type": "local"}}, {"type": "apply_patch"}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "own", "input_schema": {"tools": [{"a": 1}]}}]},
        {"tools": [{"type": "text_editor_20250728", "name": "e"}, {"type": "memory_20250818", "name": "m"}]},
        {"tools": [{"functionDeclarations": [{"name": "f", "parameters": {"fileUri": "https://x"}}]}]},
        {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}},
        content({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}),
        content({"type": "image", "source": {"type": "base64", "data": "AA=="}}),
        content({"type": "tool_use", "input": {"image_url": "https://x", "tools": [{"type": "mcp"}], "source": {"type": "url"}}}),
        {"contents": [{"parts": [{"functionCall": {"args": {"file_url": "https://x"}}}, {"inlineData": {"data": "AA=="}}]}]},
    ],
)
def test_what_the_agent_does_itself_is_not_refused(body: dict[str, Any]) -> None:
    assert provider_content(body, "gpt-5") == ""


@pytest.mark.parametrize(
    ("model", "searches"),
    [
        ("gpt-4o-search-preview", True),
        ("openai/gpt-5:online", True),
        ("openai/gpt-5@preset/web", True),
        ("o3-deep-research", True),
        ("perplexity/sonar-pro", True),
        ("groq/compound", True),
        ("gpt-5-mini", False),
        ("claude-sonnet-4-5", False),
    ],
)
def test_models_that_search_by_themselves_are_found(model: str, searches: bool) -> None:
    assert bool(provider_content({}, model)) is searches


@pytest.mark.parametrize(
    ("api", "tools"),
    [
        ("chat", [{"type": "web_search"}]),
        ("responses", [{"type": "web_search"}]),
        ("messages", [{"type": "web_search_20250305", "name": "web_search"}]),
        ("gemini", [{"googleSearch": {}}]),
    ],
)
async def test_the_gateway_refuses_tools_of_the_provider_in_each_api_if_the_trial_says_so(
    tmp_path: Path, api: Api, tools: list[Any]
) -> None:
    async with world(tmp_path) as it:
        for refuses, status in ((True, 400), (False, 200)):
            path, headers, body = request_of(api, MODELS[api], token_for(api, refusesTools=refuses))
            async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body | {"tools": tools}) as answer:
                assert answer.status == status
                assert not refuses or "providerTools is Refuse" in await answer.text()
            assert len(it.model.entries) == (0 if refuses else 1)
