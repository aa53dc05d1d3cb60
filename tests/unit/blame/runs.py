"""Runs an agent's step as in a trial: the agent's requests through the real gateway, then the operator's close of the step, then
the engine's verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from multistep.api.trial.agent_end_table import Blame
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.journal.operations import HostCall
from multistep.engine.plan.plan import TrialEnv
from multistep.engine.score import failure_class
from multistep.gateway.keys.tokens import Keyring
from multistep.reconcile.models.model_gateway import ModelGateway
from tests.support.played import IMAGE, outcome, plan, play
from tests.support.world import manifest
from tests.unit.gateway.world import Seen, World, world

MODEL = "gpt-5-mini"
TIMEOUT_SECONDS = 40.0
_KEYS = TrialEnv(credentials={"OPENAI_API_KEY": "k"})
_TOML = f'{IMAGE}[[steps]]\nname = "a"\n[agent]\ntimeout_sec = {TIMEOUT_SECONDS:g}\n'
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def unset(_: web.Request) -> web.StreamResponse:
    raise AssertionError("the test has set no answer")


@dataclass
class Provider:
    """A provider whose answer a test may change at any time. clock: the clock of the gateway's silences, in seconds; server: its
    base URL; reachable: whether it accepts connections."""

    answer: Answer = unset
    clock: float = 0.0
    server: str = ""
    reachable: bool = True

    @property
    def url(self) -> str:
        return self.server if self.reachable else "http://127.0.0.1:9/v1"

    async def provide(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request)


@dataclass
class Step:
    """A step of a trial with its own UID. tries: how often its agent sends a request until it is answered with 200; failure: type
    of the agent's error, "" if it exits with 0; model: the trial's model; limits: its budget."""

    it: World
    provider: Provider
    uid: str
    tries: int = 1
    failure: str = ""
    model: str = MODEL
    limits: Mapping[str, Any] | None = None
    token: str = ""

    @property
    def agent(self) -> dict[str, Any]:
        keys = [{"name": "OPENAI_API_KEY", "value": "k"}]
        spec = {"name": "codex", "model": f"openai/{self.model}", "baseURL": self.provider.url, "credentials": keys}
        return {**spec, "limits": self.limits} if self.limits else spec

    @property
    def trial(self) -> MultiStepTrial:
        found = manifest({"agent": self.agent})
        return parse_trial({**found, "metadata": {**found["metadata"], "uid": self.uid}, "status": {"attempt": 1}})

    @property
    def gateway(self) -> ModelGateway:
        async def get_sweep(_: str, __: str) -> Any:
            raise AssertionError("the trial has no sweep")

        return ModelGateway(self.it.admin, "http://gateway", Keyring(self.it.settings.signing_keys_dir), get_sweep)

    async def start(self) -> None:
        """Start the step, as the operator does: its agent gets a token."""
        planned = plan(_TOML, {"agent": self.agent}, env=_KEYS)
        assert planned.hosted is not None
        call = HostCall("1/a/host/agent", "step", "1/a/agent-admit", {}, timeout=TIMEOUT_SECONDS, model_access="a")
        self.token = (await self.gateway.variables(self.trial, planned.hosted, call))["OPENAI_API_KEY"]

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
        report = await self.gateway.close(self.trial, "a")
        if report.get("usage"):
            report["usage"].pop("silentUntil", None)  # the played agent's end is not on the clock of the gateway
        error = (self.failure, "the agent's words") if self.failure else None
        results = {"a/host/agent": outcome(error=error), "a/host/model-usage": report}
        played = play(plan(_TOML, {"agent": self.agent}, env=_KEYS), results)
        if (lost := played.journal.lost) is not None:
            return Blame("", "", failure_class.class_of_failure(lost.reason, None), lost.reason, "none", retried=not lost.final)
        (run,) = played.journal.steps
        if run.exception is None:
            return Blame("", "", None, "", "verdict")
        return Blame(
            "", "", failure_class.class_of_exception(run.exception.type, run.exception.phase), run.exception.type, "verdict"
        )


@asynccontextmanager
async def provided(directory: Path, provider: Provider, **settings: Any) -> AsyncIterator[World]:
    """Run a gateway in front of the provider."""
    app = web.Application()
    app.router.add_post("/{path:.*}", provider.provide)
    async with TestServer(app, shutdown_timeout=0) as server, world(directory, **settings) as it:
        provider.server = str(server.make_url("/v1"))
        yield it
