"""Runs an agent's step as in a trial: the agent's requests through the real gateway, then the operator's close of the step, then
the engine's verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from multistep.api.blame import Blame
from multistep.api.trial import parse_trial
from multistep.engine import failure_class
from multistep.gateway.keyring import Keyring
from multistep.reconcile.model_gateway import ModelGateway
from tests.support.played import outcome, play
from tests.support.world import manifest
from tests.unit.agents.test_harbor_agents import CREDENTIALS, IMAGE, hosted
from tests.unit.gateway.world import Seen, World, token_for, world

MODEL = "gpt-5-mini"
TIMEOUT_SECONDS = 40.0
_TOML = f'{IMAGE}[[steps]]\nname = "a"\n[agent]\ntimeout_sec = {TIMEOUT_SECONDS:g}\n'
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def unset(_: web.Request) -> web.StreamResponse:
    raise AssertionError("the test has set no answer")


@dataclass
class Provider:
    """A provider whose answer a test may change at any time. clock: the clock of the gateway's silences, in seconds."""

    answer: Answer = unset
    clock: float = 0.0

    async def provide(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request)


@dataclass
class Step:
    """A step of a trial with its own UID. tries: how often its agent sends a request until it is answered with 200; failure: type
    of the agent's error, "" if it exits with 0; claims: further claims of its token."""

    it: World
    provider: Provider
    uid: str
    tries: int = 1
    failure: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    model: str = MODEL

    @property
    def token(self) -> str:
        return token_for("chat", uid=self.uid, step="a", **self.claims)

    async def ask(self, text: str = "say: hello", *, stream: bool = False) -> Seen:
        """Send a request, up to ``tries`` times."""
        for _ in range(self.tries):
            if (
                seen := await self.it.send("chat", self.model, stream=stream, token=self.token, text=text)
            ).status == 200 and not seen.error:
                break
        return seen

    async def verdict(self) -> Blame:
        """Close the step; return the engine's verdict on it."""
        spec = {"agent": {**CREDENTIALS, "model": f"openai/{self.model}"}}
        found = manifest(spec)
        trial = parse_trial({**found, "metadata": {**found["metadata"], "uid": self.uid}, "status": {"attempt": 1}})

        async def no_sweep(_: str, __: str) -> Any:
            raise AssertionError

        gateway = ModelGateway(self.it.admin, "http://gateway", Keyring(self.it.settings.signing_keys_dir), no_sweep)
        report = await gateway.close(trial, "a")
        error = (self.failure, "the agent's words") if self.failure else None
        played = play(hosted(spec["agent"], toml=_TOML), {"a/host/agent": outcome(error=error), "a/host/model-usage": report})
        if (lost := played.journal.lost) is not None:
            return Blame("", "", failure_class.of_failed(lost.reason, None), lost.reason, "none", retried=not lost.final)
        (run,) = played.journal.steps
        if run.exception is None:
            return Blame("", "", None, "", "verdict")
        return Blame("", "", failure_class.of_exception(run.exception.type, run.exception.phase), run.exception.type, "verdict")


@asynccontextmanager
async def provided(directory: Path, provider: Provider, *, reachable: bool = True, **settings: Any) -> AsyncIterator[World]:
    """Run a gateway in front of the provider. reachable: whether the provider accepts connections."""
    app = web.Application()
    app.router.add_post("/{path:.*}", provider.provide)
    async with TestServer(app, shutdown_timeout=0) as server, world(directory, **settings) as it:
        url = str(server.make_url("/v1")) if reachable else "http://127.0.0.1:9/v1"
        await it.admin.register("openai", it.credential("openai", base_url=url))
        yield it
