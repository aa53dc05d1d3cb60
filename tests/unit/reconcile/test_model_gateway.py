"""Test the operator's client of the model gateway, with the real gateway in front of a fake model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest

from multistep.api.trial.models_spec import JudgeSpec
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.journal.operations import HostCall, Start
from multistep.engine.journal.results_limits import Headroom
from multistep.engine.plan.hosted_agent import HostedAgent
from multistep.engine.plan.plan import TrialEnv
from multistep.engine.plan.role_plans import JudgePlan, UserPlan
from multistep.engine.score.usage_totals import SETUP_ACCESS, parse_report
from multistep.engine.script.judge_requests import parse_judge_report
from multistep.errors import GatewayUnavailable, InvalidSpec, NotFound
from multistep.gateway.keys.tokens import Keyring, verify_token
from multistep.gateway.operator_client import GatewayAdmin
from multistep.reconcile.models.model_gateway import ModelGateway, connect, with_model_access
from multistep.token_records.read_file import read
from tests.support.played import plan
from tests.support.world import manifest
from tests.unit.gateway.world import ADMIN_TOKEN, KEY, MODELS, World, request_of, world

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


async def no_sweep(namespace: str, name: str) -> Mapping[str, Any]:
    raise NotFound(f"{namespace}/{name}")


def owned(uid: str, agent: Mapping[str, Any] | None = None) -> MultiStepTrial:
    """Return a trial of the sweep "nightly" with this UID."""
    owner = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "nightly", "uid": uid, "controller": True}
    found = manifest({"agent": agent} if agent else {})
    return parse_trial({**found, "metadata": {**found["metadata"], "ownerReferences": [owner]}, "status": {"attempt": 1}})


def gateway(here: World, sweep: Mapping[str, Any] | None = None) -> ModelGateway:
    """Return the operator's client of the gateway. sweep: the only sweep in the cluster; None: no sweep exists."""

    async def get_sweep(namespace: str, name: str) -> Mapping[str, Any]:
        if sweep is None or (namespace, name) != (trial().metadata.namespace, "nightly"):
            raise NotFound(name)
        return sweep

    return ModelGateway(here.admin, f"http://127.0.0.1:{here.port}", Keyring(here.settings.signing_keys_dir), get_sweep)


async def ask(here: World, variables: Mapping[str, str]) -> int:
    assert variables["OPENAI_BASE_URL"].startswith(f"http://127.0.0.1:{here.port}/")
    return (await here.call("chat", token=variables["OPENAI_API_KEY"])).status


def reported(data: Mapping[str, Any]) -> Any:
    return parse_report(data)


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


async def test_a_sweep_created_again_under_its_name_is_another_sweep_to_the_gateway(tmp_path: Path) -> None:
    """The token's claim ``sweep`` contains the UID: a new sweep must not inherit a deleted sweep's place in the queue or its
    spending."""

    async def claim(uid: str) -> str:
        sweep = {"metadata": {"uid": uid}, "spec": {}}
        variables = await gateway(here, sweep).variables(owned(uid), hosted(here.model.url), CALL)
        return verify_token(variables["OPENAI_API_KEY"], {KEY.id: KEY.secret}).sweep

    async with world(tmp_path) as here:
        namespace = trial().metadata.namespace
        assert [await claim("1"), await claim("2")] == [f"{namespace}/nightly/1", f"{namespace}/nightly/2"]
        variables = await gateway(here).variables(trial(), hosted(here.model.url), CALL)
        assert verify_token(variables["OPENAI_API_KEY"], {KEY.id: KEY.secret}).sweep == ""


async def test_a_step_without_a_request_has_no_usage_rather_than_0(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        assert reported(await gateway(here).close(trial(), "a")).usage is None


async def test_a_gateway_that_restarted_gets_the_keys_of_active_trials_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        former = gateway(here)
        former.remember(hosted(f"{here.model.url}/v1"), "default")
        await former.renew()
        assert (await here.admin.needed_credentials()).wanted == []


async def test_a_key_that_no_trial_needs_any_more_is_forgotten_after_a_day(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        now = [0.0]
        operator = ModelGateway(here.admin, "http://gateway", Keyring(here.settings.signing_keys_dir), no_sweep, lambda: now[0])
        variables = await operator.variables(trial(), hosted(here.model.url), CALL)
        assert variables and len(operator._known) == 1
        now[0] = 86400.0
        await operator.renew()
        assert len(operator._known) == 1
        now[0] += 1.0
        await operator.renew()
        assert not operator._known


@pytest.mark.parametrize("key", ["", "two words", "ümlaut"])
async def test_a_key_that_no_header_can_have_is_the_users_error(tmp_path: Path, key: str) -> None:
    async with world(tmp_path) as here:
        with pytest.raises(InvalidSpec, match=r"spec.agent.credentials\[OPENAI_API_KEY\]"):
            await gateway(here).variables(trial(), hosted(here.model.url, key), CALL)


async def test_a_gateway_that_does_not_answer_is_no_failure_of_the_trial(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        nobody = ModelGateway(
            GatewayAdmin(here.http, "http://127.0.0.1:9", ADMIN_TOKEN),
            "http://127.0.0.1:9",
            Keyring(here.settings.signing_keys_dir),
            no_sweep,
        )
        with pytest.raises(GatewayUnavailable):
            await nobody.variables(trial(), hosted(here.model.url), CALL)


def signed_by(variables: Mapping[str, str]) -> str:
    """Return the id of the key that signed the step's token."""
    return str(jwt.get_unverified_header(variables["OPENAI_API_KEY"])["kid"])


def signing_keys(directory: Path, *numbers: int) -> Path:
    """Write signing keys to a new directory, as if it were a mounted Secret; k1 is the key that the tests' gateways have."""
    directory.mkdir(parents=True)
    for number in numbers:
        (directory / f"k{number}").write_bytes(KEY.secret if number == 1 else bytes([48 + number]) * 32)
    (directory / "admin-token").write_text(ADMIN_TOKEN)
    return directory


def connected(here: World, secret: Path) -> ModelGateway:
    return connect(here.http, f"http://127.0.0.1:{here.port}", f"http://127.0.0.1:{here.admin_port}", secret, no_sweep)


async def test_the_signing_key_with_the_highest_number_signs(tmp_path: Path) -> None:
    secret = signing_keys(tmp_path / "keys", 1, 2, 10)
    async with world(tmp_path) as here:
        variables = await connected(here, secret).variables(trial(), hosted(f"{here.model.url}/v1"), CALL)
        assert signed_by(variables) == "k10"
        assert await ask(here, variables) == 200


async def test_a_token_does_not_show_the_trial_its_attempt_and_its_sweep(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        asked = hosted(f"{here.model.url}/v1")
        variables = await gateway(here).variables(trial(), asked, CALL)
        token = variables["OPENAI_API_KEY"]
        assert set(jwt.decode(token, options={"verify_signature": False})) == {"exp", "sealed"}
        found = verify_token(token, {KEY.id: KEY.secret})
        assert (found.sub, found.agent) == (f"{trial().metadata.uid}/1/a/agent", trial().spec.agent.label)


async def test_the_gateway_refuses_tools_of_the_provider_if_the_trial_does(tmp_path: Path) -> None:
    agent = {"name": "codex", "model": "openai/m", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
    closed = parse_trial({**manifest({"agent": {**agent, "providerTools": "Refuse"}}), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(closed, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        assert (await here.call("chat", token=token)).status == 200
        path, headers, body = request_of("chat", MODELS["chat"], token)
        body["tools"] = [{"type": "web_search"}]
        async with here.http.post(f"http://127.0.0.1:{here.port}{path}", headers=headers, json=body) as answer:
            assert answer.status == 400


async def test_the_token_records_of_a_step_are_read_until_they_are_deleted(tmp_path: Path) -> None:
    agent = {"name": "codex", "model": "openai/policy-vllm", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
    capturing = {"agent": {**agent, "capture": "Tokens", "baseURL": "https://policy.example"}}
    trained = parse_trial({**manifest(capturing), "status": {"attempt": 1}})

    async def saved(ours: ModelGateway, most: int, step: str = "a", why: str = "") -> bytes:
        data = bytearray()

        async def write(piece: bytes) -> None:
            data.extend(piece)

        assert await ours.save_tokens(trained, step, Headroom(most, 10, "trial"), write) == why
        return bytes(data)

    async with world(tmp_path) as here:
        ours = gateway(here)
        assert await saved(ours, 10**6, "b") == b"", "the step made no request"
        setup = await ours.variables(trained, hosted(f"{here.model.url}/v1"), replace(CALL, model_access=SETUP_ACCESS))
        assert not verify_token(setup["OPENAI_API_KEY"], {KEY.id: KEY.secret}).captures
        variables = await ours.variables(trained, hosted(f"{here.model.url}/v1"), CALL)
        assert (await here.send("chat", "policy-vllm", stream=True, token=variables["OPENAI_API_KEY"])).status == 200
        (tmp_path / "records").write_bytes(await saved(ours, 10**6))
        records = read(tmp_path / "records")
        assert (records.complete, [each.state for each in records.records]) == (True, ["Done"])
        size = (tmp_path / "records").stat().st_size
        why = f"its {size} bytes exceed the 10 left of settings.resultsTrialBytes: raise it"
        assert await saved(ours, 10, why=why) == b"", "the records exceed the results limits"
        await ours.delete_tokens(trained, "a")
        assert await saved(ours, 10**6) == b""


async def test_a_new_signing_key_is_not_used_before_the_gateway_has_it(tmp_path: Path) -> None:
    """The Secret's copies in the two pods are updated at different times, so the operator may have a new key before the gateway."""
    secret = signing_keys(tmp_path / "operators", 1, 2)
    async with world(tmp_path) as here:
        variables = await connected(here, secret).variables(trial(), hosted(f"{here.model.url}/v1"), CALL)
        assert signed_by(variables) == "k1"
        assert await ask(here, variables) == 200


async def test_a_signing_key_that_was_replaced_under_its_id_signs_no_token_before_both_processes_have_it(tmp_path: Path) -> None:
    """Otherwise the gateway would reject the tokens, and the agent would get a 0 for it."""
    (secret := signing_keys(tmp_path / "operators", 1)).joinpath("k1").write_bytes(b"another secret of sufficient length!!")
    async with world(tmp_path) as here:
        asked = hosted(f"{here.model.url}/v1")
        with pytest.raises(GatewayUnavailable, match="the signing key k1 is another one here"):
            await connected(here, secret).variables(trial(), asked, CALL)
        secret.joinpath("k1").write_bytes(KEY.secret)
        assert await ask(here, await connected(here, secret).variables(trial(), asked, CALL)) == 200


async def test_tokens_of_an_older_signing_key_work_after_both_processes_restarted(tmp_path: Path) -> None:
    async with world(tmp_path / "before") as here, world(tmp_path / "after", register=False) as later:
        asked = hosted(f"{here.model.url}/v1")
        variables = await gateway(here).variables(trial(), asked, CALL)
        operator = connected(later, signing_keys(tmp_path / "operators", 1, 2))
        operator.remember(asked, trial().metadata.namespace)
        waiting = asyncio.create_task(later.call("chat", token=variables["OPENAI_API_KEY"]))
        while not (await later.admin.needed_credentials()).wanted:
            await asyncio.sleep(0.01)
        await operator.renew()
        assert (await waiting).status == 200


async def test_a_gateway_with_none_of_the_operators_signing_keys_is_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        other = connected(here, signing_keys(tmp_path / "operators", 2))
        with pytest.raises(GatewayUnavailable, match="none of the operator's signing keys"):
            await other.variables(trial(), hosted(here.model.url), CALL)


@pytest.mark.parametrize(
    ("model", "kind"), [("gpt-5-fail-401", "Configuration"), ("gpt-5-fail-401-x", None), ("o3-fail-401", None)]
)
async def test_a_rejected_model_is_evidence_only_if_it_is_the_trials(tmp_path: Path, model: str, kind: str | None) -> None:
    """Only the trial's own model counts: otherwise an agent could avoid a score by requesting a model that does not exist."""
    spec = {"agent": {"name": "codex", "model": "openai/gpt-5-fail-401", "access": "Direct"}}
    asked = parse_trial({**manifest(spec), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        variables = await gateway(here).variables(asked, hosted(f"{here.model.url}/v1"), CALL)
        assert (await here.send("chat", model, stream=False, token=variables["OPENAI_API_KEY"])).status == 401
        failure = reported(await gateway(here).close(asked, "a")).failure
    assert (failure and failure.kind) == kind


@pytest.mark.parametrize(
    ("model", "requested", "kind"),
    [
        (None, "claude-sonnet-4-5-fail-401", "Configuration"),  # claude-code chooses a model itself
        (None, "claude-sonnet-4-5-fail-404", None),
        ("anthropic/claude-sonnet-4-5-fail-401[1m]", "claude-sonnet-4-5-fail-401", "Configuration"),
    ],
)
async def test_a_rejected_key_is_evidence_though_the_agent_chooses_the_models_name(
    tmp_path: Path, model: str | None, requested: str, kind: str | None
) -> None:
    spec = {"agent": {"name": "claude-code", "access": "Direct", **({"model": model} if model else {})}}
    asked = parse_trial({**manifest(spec), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(asked, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        await here.send("chat", requested, stream=False, token=token)
        failure = reported(await gateway(here).close(asked, "a")).failure
    assert (failure and failure.kind) == kind


async def test_a_key_that_works_for_another_model_is_no_wrong_key(tmp_path: Path) -> None:
    """A proxy may answer 401 for one of several models. An agent could request that model, to be excluded instead of scored."""
    asked = parse_trial({**manifest({"agent": {"name": "claude-code", "access": "Direct"}}), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(asked, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        for model in ("claude-sonnet-4-5", "claude-haiku-4-5-fail-401"):
            await here.send("chat", model, stream=False, token=token)
        assert reported(await gateway(here).close(asked, "a")).failure is None


async def test_a_base_url_that_the_gateway_refuses_is_named(tmp_path: Path) -> None:
    async with world(tmp_path, plain_upstreams=False, register=False) as here:
        with pytest.raises(InvalidSpec) as error:
            await gateway(here).variables(trial(), hosted("http://vllm:8000/v1"), CALL)
        assert "spec.agent.baseURL 'http://vllm:8000/v1': " in str(error.value)
        assert "must start with https://, unless the chart's gateway.settings.plainUpstreams is true" in str(error.value)


@pytest.mark.parametrize(("rejected", "later"), [("gpt-5-fail-401", "o3-fail-401"), ("gpt-5-fail-404", "gpt-4o-mini")])
async def test_a_rejected_model_is_evidence_though_a_request_for_another_model_ended_later(
    tmp_path: Path, rejected: str, later: str
) -> None:
    """Beside their main request, some agents request a small model for titles. Which of the two requests ends last is chance."""
    spec = {"agent": {"name": "opencode", "model": f"openai/{rejected}", "access": "Direct"}}
    asked = parse_trial({**manifest(spec), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(asked, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        for model in (rejected, later):
            await here.send("chat", model, stream=False, token=token)
        failure = reported(await gateway(here).close(asked, "a")).failure
    assert failure is not None and failure.kind == "Configuration"


@pytest.mark.parametrize(
    ("models", "kind"),
    [
        (("gpt-5", "gpt-4o-mini-fail-500"), None),  # the provider may always refuse this model
        (("gpt-4o-mini-fail-500",), "Provider"),
        (("gpt-5", "gpt-5-fail-500"), None),
        (("gpt-5", "o3", "o3"), "Provider"),
    ],
)
async def test_a_model_that_the_provider_never_answers_gets_no_agent_another_attempt(
    tmp_path: Path, models: Sequence[str], kind: str | None
) -> None:
    spec = {"agent": {"name": "codex", "model": "openai/gpt-5", "access": "Direct"}}
    asked = parse_trial({**manifest(spec), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(asked, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        for number, model in enumerate(models):
            here.model.faults = ["-fail-500"] if number == 2 else []
            await here.send("chat", model, stream=False, token=token)
        failure = reported(await gateway(here).close(asked, "a")).failure
    assert (failure and failure.kind) == kind


async def test_the_trials_limits_are_the_budget_of_all_its_steps(tmp_path: Path) -> None:
    agent = {"name": "codex", "model": "openai/gpt-5-mini", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
    limited = parse_trial({**manifest({"agent": {**agent, "limits": {"costUSD": 0.01}}}), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        variables = await gateway(here).variables(limited, hosted(f"{here.model.url}/v1"), CALL)
        assert await ask(here, variables) == 400, "without a maximum of its own, the request may cost 0.26 USD"
        failure = reported(await gateway(here).close(limited, "a")).failure
        assert failure.kind == "Budget"
        assert "the trial's budget has no room for this request: 0.0 of 0.01 US dollars are used" in failure.message


async def test_the_budget_of_the_sweep_is_read_for_each_step(tmp_path: Path) -> None:
    sweep: dict[str, Any] = {"metadata": {"uid": "1"}, "spec": {"budget": {"costUSD": 0.01}}}
    async with world(tmp_path) as here:
        ours = gateway(here, sweep)
        variables = await ours.variables(owned("1"), hosted(f"{here.model.url}/v1"), CALL)
        assert await ask(here, variables) == 400
        failure = reported(await ours.close(owned("1"), "a")).failure
        assert failure.kind == "SweepBudget"
        assert "the sweep's budget has no room for this request" in failure.message
        sweep["spec"]["budget"]["costUSD"] = 1
        next_step = replace(CALL, id="1/b/host/agent", model_access="b")
        assert await ask(here, await ours.variables(owned("1"), hosted(f"{here.model.url}/v1"), next_step)) == 200


async def test_a_refusal_by_the_sweeps_budget_counts_although_a_later_request_succeeded(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ours = gateway(here, {"metadata": {"uid": "1"}, "spec": {"budget": {"costUSD": 0.02}}})
        token = (await ours.variables(owned("1"), hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        assert (await here.call("chat", token=token)).status == 400
        assert (await here.send("chat", "gpt-4o-mini", stream=False, token=token)).status == 200
        assert reported(await ours.close(owned("1"), "a")).failure.kind == "SweepBudget"


@pytest.mark.parametrize(("model", "kind"), [("gpt-5-mini", "SweepBudget"), ("gpt-5-pro", "Budget"), ("our-own", None)])
async def test_a_request_for_another_model_than_the_trials_does_not_suspend_the_sweep(
    tmp_path: Path, model: str, kind: str | None
) -> None:
    """An agent could choose the dearest model. Its trial would get another attempt, without a retry, and no other would start."""
    agent = {"name": "codex", "model": "openai/gpt-5-mini", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
    asked = owned("1", agent)
    async with world(tmp_path) as here:
        ours = gateway(here, {"metadata": {"uid": "1"}, "spec": {"budget": {"costUSD": 0.02}}})
        token = (await ours.variables(asked, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        assert (await here.send("chat", model, stream=False, token=token)).status == 400
        failure = reported(await ours.close(asked, "a")).failure
        assert (failure and failure.kind) == kind


@pytest.mark.parametrize(("own", "kind"), [(True, "Configuration"), (False, "Budget")])
async def test_a_limit_that_no_request_can_keep_is_configured_wrongly(tmp_path: Path, own: bool, kind: str) -> None:
    agent = {"name": "codex", "model": "openai/our-own", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
    limited = parse_trial({**manifest({"agent": {**agent, "limits": {"outputTokens": 1000}}}), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(limited, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        assert (await here.send("chat", "our-own" if own else "another", stream=False, token=token)).status == 400
        failure = reported(await gateway(here).close(limited, "a")).failure
        assert failure is not None and failure.kind == kind
        assert "give the agent an option for the maximum, or remove the limits" in failure.message


@pytest.mark.parametrize("sweep", [None, {"metadata": {"uid": "2"}, "spec": {}}])
async def test_a_trial_of_a_deleted_sweep_starts_no_step(tmp_path: Path, sweep: Mapping[str, Any] | None) -> None:
    async with world(tmp_path) as here:
        with pytest.raises(GatewayUnavailable, match="the sweep nightly of the trial does not exist"):
            await gateway(here, sweep).variables(owned("1"), hosted(here.model.url), CALL)


async def test_the_agent_host_can_ask_how_long_the_provider_stalled_the_step(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        models, asked = gateway(here), hosted(here.model.url)
        call = replace(CALL, max_stalled=60.0, request={"env": {"MODE": "fast"}})
        variables = await models.variables(trial(), asked, call)
        request = with_model_access(call, asked, variables, models.stalls_url).request
        assert request["env"] == {**variables, "MODE": "fast"} and request["stalls"]["maxSeconds"] == 60
        headers = {"Authorization": f"Bearer {request['stalls']['token']}"}
        async with here.http.get(request["stalls"]["url"], headers=headers) as answer:
            assert (answer.status, await answer.json()) == (200, {"stalledSeconds": 0.0})
        assert "stalls" not in with_model_access(CALL, asked, variables, models.stalls_url).request


def start(name: str) -> Start:
    return Start(f"1/{name}/verifier", ("test.sh",), timeout=60.0, model_access=name)


async def test_a_judges_requests_are_counted_apart_from_those_of_the_agent_in_the_same_step(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ours = gateway(here)
        spec = {"model": "openai/gpt-5-mini", "baseURL": f"{here.model.url}/v1"} | {
            "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]
        }
        judge = JudgePlan(JudgeSpec.model_validate(spec), {"OPENAI_API_KEY": "sk-judge\n"})
        agents = await ours.variables(trial(), hosted(f"{here.model.url}/v1"), CALL)
        judges = await ours.judge_variables(trial(), judge, start("a"))
        assert judges["LITELLM_API_KEY"] == judges["OPENAI_API_KEY"] != agents["OPENAI_API_KEY"]
        assert judges["OPENAI_API_BASE"] == judges["LITELLM_BASE_URL"] == judges["OPENAI_BASE_URL"]
        assert (await ask(here, agents), await ask(here, judges), await ask(here, judges)) == (200, 200, 200)
        assert [each.key for each in here.model.entries] == ["sk-real", "sk-judge", "sk-judge"]
        used = parse_report(await ours.close_judge(trial(), "a")).usage
        assert used is not None and used.requests == 2
        assert (await ask(here, judges), await ask(here, agents)) == (401, 200)
        only = JudgePlan(judge.spec.model_copy(update={"model": "openai/other", "other_models": "Refuse"}), judge.credentials)
        assert await ask(here, await ours.judge_variables(trial(), only, start("b"))) == 403
        found = parse_judge_report(await ours.close_judge(trial(), "b"), 0.0).doubt
        assert found is not None and found.cause == "Request" and "only openai/other, other" in found.message
        with pytest.raises(InvalidSpec, match=r"spec\.models\.judge\.credentials\[OPENAI_API_KEY\]"):
            await ours.judge_variables(trial(), JudgePlan(judge.spec, {"OPENAI_API_KEY": "two words"}), start("a"))


async def test_the_ledger_of_a_conversation_of_five_turns_equals_the_providers_count_for_each_of_three_roles(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        ours, url = gateway(here), f"{here.model.url}/v1"
        spec = {"model": "openai/gpt-5-mini", "baseURL": url, "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
        agent = {**spec, "name": "codex"}
        asked = manifest({"agent": agent, "models": {"user": {**spec, "name": "terminus-2"}, "judge": spec}})
        found = parse_trial({**asked, "status": {"attempt": 1}})
        judge, user = found.spec.models.judge, found.spec.models.user
        assert judge is not None and user is not None
        call = replace(CALL, user_access="a")
        agents = await ours.variables(found, hosted(url, "sk-agent"), call)
        users = await ours.user_variables(found, UserPlan(user, {"OPENAI_API_KEY": "sk-user"}), call)
        judges = await ours.judge_variables(found, JudgePlan(judge, {"OPENAI_API_KEY": "sk-judge"}), start("a"))
        for _ in range(5):
            assert (await ask(here, users), await ask(here, agents)) == (200, 200)
        assert await ask(here, judges) == 200
        reports = [await ours.close(found, "a"), await ours.close(found, "a", "user"), await ours.close_judge(found, "a")]
        assert (await ask(here, agents), await ask(here, users), await ask(here, judges)) == (401, 401, 401)
        for key, requests, report in zip(("sk-agent", "sk-user", "sk-judge"), (5, 5, 1), reports, strict=True):
            entries = [each for each in here.model.entries if each.key == key]
            usage = parse_report(report).usage
            assert usage is not None and len(entries) == usage.requests == requests
            assert (usage.input_tokens, usage.output_tokens) == (
                sum(each.input for each in entries),
                sum(each.output for each in entries),
            )


async def test_a_failure_of_the_users_provider_is_reported_for_the_users_own_model(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ours, url = gateway(here), f"{here.model.url}/v1"
        spec = {"name": "terminus-2", "model": "openai/gpt-5-mini", "baseURL": url}
        key = {"credentials": [{"name": "OPENAI_API_KEY", "value": "x"}], "limits": {"inputTokens": 1}}
        agent = {**spec, **key, "name": "codex", "limits": None}
        found = parse_trial({**manifest({"agent": agent, "models": {"user": {**spec, **key}}}), "status": {"attempt": 1}})
        assert found.spec.models.user is not None
        users = await ours.user_variables(
            found, UserPlan(found.spec.models.user, {"OPENAI_API_KEY": "k"}), replace(CALL, user_access="a")
        )
        refused = await here.call("chat", token=users["OPENAI_API_KEY"])
        assert refused.status == 400 and b"the user's budget has no room" in refused.body
        failure = parse_report(await ours.close(found, "a", "user")).failure
        assert failure is not None and failure.kind == "Budget"
        assert parse_report(await ours.close(found, "a")).usage is None
