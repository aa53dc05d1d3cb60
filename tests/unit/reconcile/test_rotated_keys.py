"""A provider's key is rotated while steps run: the new key is written to its Secret, and the old one is revoked a little later."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.trial import parse_trial
from multistep.engine.plan.hosted_agent import HostedAgent
from multistep.engine.plan.plan import TrialEnv
from multistep.errors import ClusterError, NotFound, Unavailable
from multistep.gateway.keys.tokens import Keyring
from multistep.reconcile.models.model_gateway import ModelGateway
from tests.support.played import plan
from tests.support.world import KEY, manifest
from tests.unit.gateway.world import World, world
from tests.unit.reconcile.test_model_gateway import CALL, no_sweep, reported

OLD, NEW = "sk-old", "sk-new"


class Cluster:
    """The Secret of the provider's key, and an operator that reads it. secret: the key's value, None if the Secret is deleted;
    errors: what the next reads raise."""

    def __init__(self, here: World, secret: str | None = OLD, namespace: str = KEY[0]) -> None:
        self.here, self.secret, self.reads = here, secret, 0
        self.errors = list[Exception]()
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
        trial = manifest({"agent": agent})
        self.trial = parse_trial({**trial, "metadata": {**trial["metadata"], "namespace": namespace}, "status": {"attempt": 1}})

    def restarted(self) -> ModelGateway:
        """Return a new operator, which has nothing in memory."""
        url, keys = f"http://127.0.0.1:{self.here.port}", Keyring(self.here.settings.signing_keys_dir)
        return ModelGateway(self.here.admin, url, keys, no_sweep, get_secret=self.get_secret)

    async def get_secret(self, namespace: str, name: str) -> Mapping[str, Any]:
        assert (namespace, name) == (self.trial.metadata.namespace, "provider")
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        if self.secret is None:
            raise NotFound(name, status=404, reason="NotFound")
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


NO_WORD = [
    Unavailable("no answer"),
    Unavailable("overloaded", status=429),
    ClusterError("the operator's token has expired", status=401, reason="Unauthorized"),
    NotFound("a proxy's page", status=404),
    TimeoutError(),
]


async def test_a_secret_that_cannot_be_read_for_a_moment_is_read_again_before_the_rejection_is_told(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        cluster = Cluster(here)
        token = (await cluster.operator.variables(cluster.trial, cluster.hosted, CALL))["OPENAI_API_KEY"]
        cluster.secret, cluster.errors = NEW, [*NO_WORD]
        here.model.revoked.add(OLD)
        assert await cluster.ask(token) == 200
        assert reported(await cluster.operator.close(cluster.trial, "a")).failure is None
    assert cluster.reads == len(NO_WORD) + 1


async def test_a_rejection_is_told_if_the_operator_may_not_read_the_secret(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        cluster = Cluster(here)
        token = (await cluster.operator.variables(cluster.trial, cluster.hosted, CALL))["OPENAI_API_KEY"]
        cluster.errors = [ClusterError("no role", status=403, reason="Forbidden")]
        here.model.revoked.add(OLD)
        assert await cluster.ask(token) == 401


async def test_two_namespaces_with_the_same_key_each_go_on_with_their_own_new_one(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        found = [Cluster(here, namespace=each) for each in ("a", "b")]
        tokens = [(await each.operator.variables(each.trial, each.hosted, CALL))["OPENAI_API_KEY"] for each in found]
        here.model.revoked.add(OLD)
        for cluster, token, new in zip(found, tokens, ("sk-a", "sk-b"), strict=True):
            cluster.secret = new
            assert await cluster.ask(token) == 200
        assert [each.key for each in here.model.entries if each.key != OLD] == ["sk-a", "sk-b"]


async def test_a_key_without_a_secret_is_not_asked_for_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.model.revoked.add("sk-REAL-openai")
        assert (await here.call("chat")).status == 401
        assert (await here.admin.needed_credentials()).rejected == {}
