"""The paths that agents use: each API with and without its version. A step that requests only other paths is no agent's failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from multistep.errors import StepUnknownToGateway
from multistep.gateway.model_api.routes import find_route
from tests.support.model_answers import Api
from tests.unit.gateway.test_usage import APIS
from tests.unit.gateway.world import MODELS, PROVIDERS, World, request_of, step_of, token_for, world

GENERATE = "models/gemini-2.5-pro:generateContent"


@pytest.mark.parametrize(
    ("path", "upstream"),
    [
        *((f"/openai{version}/chat/completions", "/chat/completions") for version in ("", "/v1", "/v1/v1", "/v1beta")),
        *((f"/openai{version}/responses", "/responses") for version in ("", "/v1")),
        *((f"/anthropic{version}/messages", "/v1/messages") for version in ("", "/v1", "/v1/v1", "/v1beta")),
        *((f"/anthropic{version}/messages/count_tokens", "/v1/messages/count_tokens") for version in ("", "/v1")),
        *((f"/gemini{version}/{GENERATE}", f"/v1beta/{GENERATE}") for version in ("", "/v1beta", "/v1/v1beta")),
        (f"/gemini/v1/{GENERATE}", f"/v1/{GENERATE}"),
        ("/gemini/models/gemini-2.5-pro:streamGenerateContent", "/v1beta/models/gemini-2.5-pro:streamGenerateContent"),
        ("/openai//v1/chat/completions/", "/chat/completions"),
    ],
)
def test_an_api_is_served_with_and_without_its_version(path: str, upstream: str) -> None:
    route = find_route("POST", path)
    assert route is not None and route.path == upstream


@pytest.mark.parametrize("path", ["/openai/v1/v1/v1/responses", "/openai/completions", "/v1/messages", "/anthropic/messages/x"])
def test_other_paths_are_not_served(path: str) -> None:
    assert find_route("POST", path) is None


@pytest.mark.parametrize("api", APIS)
async def test_a_request_without_a_version_is_answered_and_counted(tmp_path: Path, api: Api) -> None:
    async with world(tmp_path) as it:
        path, headers, body = request_of(api, MODELS[api], token_for(api))
        short = path.replace("/v1beta", "").replace("/v1", "")
        async with it.http.post(f"http://127.0.0.1:{it.port}{short}", headers=headers, json=body) as answer:
            assert answer.status == 200
        usage = await it.admin.close(step_of())
        assert (usage.requests, usage.last_failure) == (1, None) and usage.input_tokens == it.model.entries[0].input


async def ask_unknown(it: World, api: Api, token: str, path: str = "/v1/engines/x") -> None:
    _, headers, _ = request_of(api, MODELS[api], token)
    async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json={}) as answer:
        assert answer.status == 404


@pytest.mark.parametrize("api", APIS)
async def test_a_step_with_requests_to_unknown_paths_only_names_them(tmp_path: Path, api: Api) -> None:
    async with world(tmp_path) as it:
        for path in ("/one", f"/{PROVIDERS[api]}/two"):
            await ask_unknown(it, api, token_for(api), path)
        usage = await it.admin.close(step_of())
        assert usage.last_failure is not None and usage.last_failure.kind == "Path"
        assert "two is not a path of a supported API" in usage.last_failure.message
        assert (usage.requests, usage.incomplete) == (0, 0)


async def test_an_unknown_path_does_not_count_beside_other_requests_of_the_trial(tmp_path: Path) -> None:
    """Otherwise an agent could request an unknown path in a hard step, so that its trial is excluded instead of scored."""
    async with world(tmp_path) as it:
        await it.call("chat", token=token_for("chat", step="0"))
        await ask_unknown(it, "chat", token_for("chat", step="0"))
        await ask_unknown(it, "chat", token_for("chat", step="1"))
        for step in "01":
            assert (await it.admin.close(step_of(step=step))).last_failure is None


async def test_a_request_to_an_unknown_path_without_a_valid_token_is_not_recorded(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await ask_unknown(it, "chat", "forged")
        with pytest.raises(StepUnknownToGateway):
            await it.admin.close(step_of())
