"""Which step tokens the gateway accepts, what they allow, and that no answer or log contains a provider's key."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from multistep.errors import GatewayError, GatewayUnavailable
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import SigningKey, StepKey
from multistep.gateway.operator_client import GatewayAdmin
from tests.support.model_answers import Api
from tests.unit.gateway.test_usage import APIS
from tests.unit.gateway.world import ADMIN_TOKEN, KEY, REAL_KEYS, request_of, step_of, token_for, world

OTHER_PATHS = ("/openai/v1/files", "/openai/v1/../v1/files", "/anthropic/v1/messages/batches", "/v1/messages", "/", "/metrics")
OTHER_KEY = SigningKey(KEY.id, b"another secret of the same length")


def unsigned() -> str:
    """Return a step token without a signature: its header names the algorithm "none"."""
    claims = jwt.decode(token_for("messages"), options={"verify_signature": False})
    assert set(claims) == {"exp", "sealed"}
    return jwt.encode(claims, None, algorithm="none", headers={"kid": KEY.id})  # type: ignore[arg-type]


def with_other_subject() -> str:
    """Return a token with the claims of trial "other" and the signature of trial "mine"."""
    head, _, signature = token_for("messages", uid="mine").split(".")
    return f"{head}.{token_for('messages', uid='other').split('.')[1]}.{signature}"


FORGED: dict[str, Any] = {
    "of another secret": lambda: token_for("messages", key=OTHER_KEY),
    "of an unknown key id": lambda: token_for("messages", key=SigningKey("k2", KEY.secret)),
    "unsigned": unsigned,
    "of another step": with_other_subject,
    "expired": lambda: token_for("messages", exp=int(time.time()) - 1),
    "without an expiry": lambda: jwt.encode({"sub": "a/1/0/agent", "credential": "anthropic"}, KEY.secret, headers={"kid": "k1"}),
    "without a step": lambda: jwt.encode({"sub": "a", "credential": "x", "exp": 1 << 32}, KEY.secret, headers={"kid": "k1"}),
    "no token": lambda: "sk-ant-something",
    "the provider's own key": lambda: REAL_KEYS["anthropic"],
}


@pytest.mark.parametrize("forged", FORGED)
async def test_an_invalid_token_is_refused(tmp_path: Path, forged: str) -> None:
    async with world(tmp_path) as it:
        seen = await it.call("messages", token=FORGED[forged]())
        assert seen.status == 401
        assert it.model.entries == []


@pytest.mark.parametrize("api", APIS)
async def test_a_token_is_for_its_models_only(tmp_path: Path, api: Api) -> None:
    async with world(tmp_path) as it:
        token = token_for(api, models=["allowed"])
        assert (await it.send(api, "allowed", stream=False, token=token)).status == 200
        assert (await it.send(api, "other", stream=False, token=token)).status == 403
        assert [each.model for each in it.model.entries] == ["allowed"]


async def test_a_verdict_without_the_answer_of_a_model_that_the_judges_token_is_not_for_does_not_count(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        token = token_for("chat", models=["allowed"], sub="uid-1/1/0/judge", agent="judge")
        statuses = [(await it.send("chat", model, stream=False, token=token)).status for model in ("other", "allowed", "third")]
        assert statuses == [403, 200, 403]
        (found,) = (await it.admin.close(StepKey("uid-1", "1", "0", "judge"))).unanswered
        assert (found.cause, found.model, found.status) == ("Configuration", "third", 403)
        assert found.message == "this step may not use the model 'third', only allowed"


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"models": ["other"]}, 403),
        ({"models": ["allowed", "other"]}, 403),
        ({"fallbacks": [{"allowed": ["other"]}]}, 403),
        ({"models": [f"other-{number}" for number in range(100)]}, 403),
        ({"fallbacks": [{"model": "other", "api_base": "http://proxy"}]}, 403),
        ({"context_window_fallback_dict": {"allowed": "other"}}, 403),
        ({"models": ["allowed"], "fallbacks": ["also"]}, 200),
        ({"fallbacks": [{"model": "also", "api_base": "http://proxy", "drop_params": True}]}, 200),
    ],
    ids=["models", "more models", "fallbacks", "many", "with a server", "by model", "allowed", "allowed with a server"],
)
async def test_a_token_is_not_for_the_other_models_that_a_body_names(tmp_path: Path, more: dict[str, Any], status: int) -> None:
    async with world(tmp_path) as it:
        path, headers, document = request_of("chat", "allowed", token_for("chat", models=["allowed", "also"]))
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json={**document, **more}) as answer:
            assert answer.status == status
        assert len(it.model.entries) == (status == 200)


@pytest.mark.parametrize("body", [b'{"model":"allowed","model":"other"}', b'{"model":"allowed","MODEL":"other"}', b"[]", b"{"])
async def test_a_body_that_parsers_may_read_differently_is_refused(tmp_path: Path, body: bytes) -> None:
    async with world(tmp_path) as it:
        path, headers, _ = request_of("chat", "allowed", token_for("chat", models=["allowed"]))
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, data=body) as answer:
            assert answer.status == 400
        assert it.model.entries == []


async def test_a_token_is_for_its_credentials_provider_only(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        assert (await it.call("chat", token=token_for("messages"))).status == 403


@pytest.mark.parametrize("path", OTHER_PATHS)
async def test_other_paths_are_not_forwarded(tmp_path: Path, path: str) -> None:
    async with world(tmp_path) as it:
        headers = {"Authorization": f"Bearer {token_for('chat')}"}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json={"model": "m"}) as answer:
            assert answer.status == 404
        assert it.model.entries == []


@pytest.mark.parametrize("api", APIS)
async def test_no_credential_is_in_an_answer_or_a_log(tmp_path: Path, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with world(tmp_path) as it:
        token = token_for(api)
        seen = [
            await it.call(api, "-echo", token=token),
            await it.call(api, "-fail-401", token=token),
            await it.call(api, token=token),
        ]
        usage = await it.admin.close(step_of())
        async with it.http.get(f"http://127.0.0.1:{it.admin_port}/metrics") as answer:
            metrics = await answer.text()
        shown = f"{seen} {usage} {metrics} {caplog.text} {(tmp_path / 'ledger.sqlite').read_bytes()!r}"
        assert "[REDACTED]" in shown
        for secret in (*REAL_KEYS.values(), KEY.secret.decode(), ADMIN_TOKEN, token):
            assert secret not in shown.replace(repr(it.settings), "")


async def test_a_request_waits_for_the_registration_of_its_credential(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        call = asyncio.create_task(it.call("messages", token=token_for("messages", credential="late")))
        while (await it.admin.needed_credentials()).wanted != ["late"]:
            await asyncio.sleep(0.01)
        await it.admin.register("late", it.credential("anthropic"))
        assert (await call).status == 200
        assert (await it.admin.needed_credentials()).wanted == []


async def test_a_request_whose_credential_is_not_registered_in_time_is_answered_with_425(tmp_path: Path) -> None:
    async with world(tmp_path, hold_seconds=0.2) as it:
        assert (await it.call("messages", token=token_for("messages", credential="never"))).status == 425


async def test_the_admin_port_wants_the_operators_token(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        for token in ("", "wrong", token_for("messages")):
            stranger = GatewayAdmin(it.http, f"http://127.0.0.1:{it.admin_port}", token)
            with pytest.raises(GatewayError, match="401"):
                await stranger.register("anthropic", it.credential("anthropic"))
            with pytest.raises(GatewayError, match="401"):
                await stranger.close(step_of())


async def test_a_base_url_without_tls_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path, register=False, plain_upstreams=False) as it:
        with pytest.raises(GatewayError, match="https"):
            await it.admin.register("anthropic", it.credential("anthropic"))
        await it.admin.register("anthropic", Credential.model_validate({"provider": "anthropic", "key": "k"}))


async def test_a_gateway_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        with pytest.raises(GatewayUnavailable):
            await GatewayAdmin(it.http, "http://127.0.0.1:9", ADMIN_TOKEN).close(step_of())
