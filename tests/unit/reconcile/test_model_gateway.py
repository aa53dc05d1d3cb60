"""The operator's use of the model gateway, with the real gateway in front of a fake model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.api.records import Record
from multistep.api.trial import MultiStepTrial, parse_trial
from multistep.engine.hosted_agent import HostedAgent
from multistep.engine.model_access import report
from multistep.engine.operations import HostCall
from multistep.engine.plan import TrialEnv
from multistep.errors import GatewayUnavailable, InvalidSpec
from multistep.gateway.client import GatewayAdmin
from multistep.reconcile.model_gateway import ModelGateway, connect
from tests.support.played import plan
from tests.support.world import manifest
from tests.unit.gateway.world import ADMIN_TOKEN, KEY, World, world

CALL = HostCall("1/a/host/agent", "step", "1/a/agent-admit", {}, timeout=60.0, model_access="a")


def hosted(url: str, key: str = "sk-real\n") -> HostedAgent:
    spec = {
        "name": "codex",
        "model": "openai/gpt-5-mini",
        "baseURL": url,
        "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}],
    }
    found = plan(spec={"agent": spec}, env=TrialEnv(credentials={"OPENAI_API_KEY": key})).hosted
    assert found is not None
    return found


def trial() -> MultiStepTrial:
    return parse_trial({**manifest(), "status": {"attempt": 1}})


def gateway(here: World) -> ModelGateway:
    return ModelGateway(here.admin, f"http://127.0.0.1:{here.port}", KEY)


async def ask(here: World, variables: Mapping[str, str]) -> int:
    assert variables["OPENAI_BASE_URL"].startswith(f"http://127.0.0.1:{here.port}/")
    return (await here.call("chat", token=variables["OPENAI_API_KEY"])).status


def reported(data: Mapping[str, Any]) -> Any:
    return report(Record("1/a/host/model-usage", "note", "done", 1.0, 1.0, True, data))


async def test_a_steps_token_works_until_the_step_is_closed_and_its_usage_is_the_models(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ours = gateway(here)
        variables = await ours.variables(trial(), hosted(f"{here.model.url}/v1"), CALL)
        assert "sk-real" not in str(variables)
        assert await ask(here, variables) == 200
        found = reported(await ours.close(trial(), "a"))
        (charged,) = here.model.entries
        assert charged.key == "sk-real"
        assert (found.usage.input_tokens, found.usage.output_tokens) == (charged.input, charged.output)
        assert (found.usage.requests, found.usage.source, found.failure) == (1, "Gateway", None)
        assert await ask(here, variables) == 401
        assert reported(await ours.close(trial(), "a")) == found


async def test_a_step_without_a_request_has_no_usage_rather_than_0(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        assert reported(await gateway(here).close(trial(), "a")).usage is None


async def test_a_gateway_that_restarted_gets_the_keys_of_active_trials_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        former = gateway(here)
        former.remember(hosted(f"{here.model.url}/v1"))
        await former.renew()
        assert await here.admin.wanted() == []


@pytest.mark.parametrize("key", ["", "two words", "ümlaut"])
async def test_a_key_that_no_header_can_have_is_the_users_error(tmp_path: Path, key: str) -> None:
    async with world(tmp_path) as here:
        with pytest.raises(InvalidSpec, match=r"spec.agent.credentials\[OPENAI_API_KEY\]"):
            await gateway(here).variables(trial(), hosted(here.model.url, key), CALL)


async def test_a_gateway_that_does_not_answer_is_no_failure_of_the_trial(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        nobody = ModelGateway(GatewayAdmin(here.http, "http://127.0.0.1:9", ADMIN_TOKEN), "http://127.0.0.1:9", KEY)
        with pytest.raises(GatewayUnavailable):
            await nobody.variables(trial(), hosted(here.model.url), CALL)


async def test_the_newest_signing_key_of_the_secret_is_used(tmp_path: Path) -> None:
    (tmp_path / "k1").write_bytes(b"1" * 32)
    (tmp_path / "k2").write_bytes(b"2" * 32)
    (tmp_path / "admin-token").write_text("t" * 32)
    (tmp_path / "gateway").mkdir()
    async with world(tmp_path / "gateway") as here:
        assert connect(here.http, "http://g", "http://a", tmp_path)._signing == ("k2", b"2" * 32)


@pytest.mark.parametrize(("model", "kind"), [("gpt-5-mini-fail-401", "Configuration"), ("o3-fail-401", None)])
async def test_a_rejected_model_is_evidence_only_if_it_is_the_trials(tmp_path: Path, model: str, kind: str | None) -> None:
    """A program could ask for a model that does not exist in order not to be scored."""
    spec = {"agent": {"name": "codex", "model": "openai/gpt-5-mini"}}
    asked = parse_trial({**manifest(spec), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        variables = await gateway(here).variables(asked, hosted(f"{here.model.url}/v1"), CALL)
        assert (await here.send("chat", model, stream=False, token=variables["OPENAI_API_KEY"])).status == 401
        failure = reported(await gateway(here).close(asked, "a")).failure
    assert (failure and failure.kind) == kind
