"""A provider's key is rotated while steps run: the new key is written to its Secret, and the old one is revoked a little later."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial import parse_trial
from multistep.engine.hosted_agent import HostedAgent
from multistep.engine.plan import TrialEnv
from multistep.errors import NotFound
from multistep.gateway.keyring import Keyring
from multistep.reconcile.model_gateway import ModelGateway
from tests.support.played import plan
from tests.support.world import manifest
from tests.unit.gateway.world import World, world
from tests.unit.reconcile.test_model_gateway import CALL, no_sweep, reported

OLD, NEW = "sk-old", "sk-new"


class Cluster:
    """The Secret of the provider's key, and an operator that reads it. secret: the key's value, None if the Secret is deleted."""

    def __init__(self, here: World, secret: str | None = OLD) -> None:
        self.here, self.secret, self.reads = here, secret, 0
        self.operator = self.restarted()
        agent = {
            "name": "codex",
            "model": "openai/gpt-5-mini",
            "baseURL": f"{here.model.url}/v1",
            "credentials": [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "provider", "key": "key"}}}],
        }
        found = plan(spec={"agent": agent}, env=TrialEnv(credentials={"OPENAI_API_KEY": OLD})).hosted
        assert found is not None
        self.hosted: HostedAgent = found
        self.trial = parse_trial({**manifest({"agent": agent}), "status": {"attempt": 1}})

    def restarted(self) -> ModelGateway:
        """Return a new operator, which has nothing in memory."""
        url, keys = f"http://127.0.0.1:{self.here.port}", Keyring(self.here.settings.signing_keys_dir)
        return ModelGateway(self.here.admin, url, keys, no_sweep, get_secret=self.get_secret)

    async def get_secret(self, namespace: str, name: str) -> Mapping[str, Any]:
        assert (namespace, name) == (self.trial.metadata.namespace, "provider")
        self.reads += 1
        if self.secret is None:
            raise NotFound(name)
        return {"data": {"key": base64.b64encode(f"{self.secret}\n".encode()).decode()}}

    async def ask(self, token: str) -> int:
        """Send a request, and let the operator do what it does every few seconds until the request is answered."""
        asked = asyncio.create_task(self.here.call("chat", token=token))
        while not asked.done():
            await self.operator.renew()
            await asyncio.wait({asked}, timeout=0.01)
        return (await asked).status


REVOCATIONS = [
    (401, "", "authentication_error"),
    (403, "forbidden", "permission_error"),
    (400, "API key not valid. Please pass a valid API key.", "API_KEY_INVALID"),
]


@pytest.mark.parametrize("answer", REVOCATIONS)
async def test_a_step_goes_on_with_the_new_key_when_the_old_one_is_revoked(tmp_path: Path, answer: tuple[int, str, str]) -> None:
    async with world(tmp_path) as here:
        here.model.revocation = answer
        cluster = Cluster(here)
        token = (await cluster.operator.variables(cluster.trial, cluster.hosted, CALL))["OPENAI_API_KEY"]
        assert await cluster.ask(token) == 200
        cluster.secret = NEW
        here.model.revoked.add(OLD)
        cluster.operator = cluster.restarted()  # the gateway knows from where the key came
        assert [await cluster.ask(token) for _ in range(3)] == [200] * 3
        assert [each.key for each in here.model.entries] == [OLD, OLD, NEW, NEW, NEW]
        assert reported(await cluster.operator.close(cluster.trial, "a")).failure is None
    assert cluster.reads == 1


@pytest.mark.parametrize("secret", [OLD, None, "two words"])
async def test_a_rejected_key_that_is_still_in_its_secret_is_told_after_one_more_look(tmp_path: Path, secret: str | None) -> None:
    async with world(tmp_path) as here:
        cluster = Cluster(here, secret)
        token = (await cluster.operator.variables(cluster.trial, cluster.hosted, CALL))["OPENAI_API_KEY"]
        here.model.revoked.add(OLD)
        assert [await cluster.ask(token) for _ in range(3)] == [401] * 3
        failure = reported(await cluster.operator.close(cluster.trial, "a")).failure
        assert failure.kind == "Configuration"
        assert len(here.model.entries) == 3
    assert cluster.reads == 1


async def test_a_key_without_a_secret_is_not_asked_for_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.model.revoked.add("sk-REAL-openai")
        assert (await here.call("chat")).status == 401
        assert await here.admin.rejected() == {}
