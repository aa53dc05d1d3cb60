"""Whatever happens to the gateway, at whatever moment of a step: no agent gets a 0 that it did not earn.

The gateway is a process of its own; each fault happens once, while forty agents stand at ten moments of their steps. Ten agents
retry a request that failed, ten give up at the first failure and exit with status 0, ten with status 1, and ten skip the request
that failed and go on. The operator's client closes each step, and the engine decides what the step's end means."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from time import time
from typing import Any, Final, Literal

import aiohttp
import pytest
from aiohttp import web

from multistep.api.trial.agent_end_table import AGENT, GATEWAY
from multistep.api.trial.runner_records import Record
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.journal.operations import HostCall
from multistep.engine.plan.hosted_agent import HostedAgent
from multistep.engine.plan.plan import TrialEnv, TrialPlan
from multistep.errors import GatewayError, GatewayUnavailable
from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.keys.tokens import Keyring
from multistep.reconcile.models.model_gateway import ModelGateway
from tests.support.phase_results import DEFAULTS
from tests.support.played import IMAGE, outcome, plan, play, rewarded
from tests.support.world import manifest
from tests.unit.gateway.test_crash import Process, process
from tests.unit.reconcile.test_model_gateway import no_sweep

Habit = Literal["retries", "exits 0", "exits 1", "skips"]
HABITS: Final[tuple[Habit, ...]] = ("retries", "exits 0", "exits 1", "skips")
STREAMED: Final = (False, True, False)  # an agent's three requests
MOMENTS: Final = (
    "before the step starts",
    "before request 0",
    "request 0 is at the provider",
    "before request 1",
    "request 1 is at the provider",
    "the answer of request 1 is half",
    "before request 2",
    "request 2 is at the provider",
    "after request 2",
    "after the agent's end",
)
CALL: Final = HostCall("1/task/host/agent", "step", "1/task/agent-admit", {}, timeout=60.0, model_access="task")
KEY: Final = "sk-real"


@dataclass
class Provider:
    """A model whose answers to the agents that wait for the fault wait, too. revoked: the keys that it rejects."""

    url: str = ""
    stands: dict[str, asyncio.Event] = field(default_factory=dict)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    revoked: set[str] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"].removeprefix("Bearer ") in self.revoked:
            return web.json_response({"error": {"message": "invalid key"}}, status=401)
        asked = await request.json()
        name = asked["messages"][0]["content"]
        await self.stand(f"{name} is at the provider")
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        message = {"role": "assistant", "content": "yes"}
        if not asked.get("stream"):
            return web.json_response({"id": "1", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event({"id": "1", "choices": [{"index": 0, "delta": message}]}))
        uid, number = name.split(" ", 1)
        await self.stand(f"{uid} the answer of {number} is half")
        await response.write(event({"id": "1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
        await response.write(event({"id": "1", "choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    async def stand(self, moment: str) -> None:
        """If an agent is to stand at this moment when the fault happens, wait there until the fault has happened."""
        if moment in self.stands:
            self.stands[moment].set()
            await self.goes_on.wait()


def event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


@dataclass
class Cluster:
    """A gateway in its own process, the provider behind it, and the operator. settled: set when the gateway answers again after the
    fault. secret: the provider's key in its Secret."""

    directory: Path
    gateway: Process
    http: aiohttp.ClientSession
    provider: Provider
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    agents: list[Agent] = field(default_factory=list)
    secret: str = KEY

    @property
    def port(self) -> int:
        return int(self.gateway.environment["MULTISTEP_GATEWAY_PORT"])

    @property
    def keys(self) -> Path:
        return Path(self.gateway.environment["MULTISTEP_GATEWAY_SIGNING_KEYS_DIR"])

    @property
    def ledger(self) -> Path:
        return Path(self.gateway.environment["MULTISTEP_GATEWAY_LEDGER_FILE"])

    async def get_secret(self, namespace: str, name: str) -> Mapping[str, Any]:
        return {"data": {"key": base64.b64encode(self.secret.encode()).decode()}}


@dataclass
class Verdict:
    """What a step's end meant. answered: whether the agent got the answers to all of its requests; lost: the reason why the attempt
    was lost, "" if it was not; reward: the step's reward if it was not."""

    moment: str
    habit: Habit
    answered: bool
    lost: str
    reward: float | None


class Agent:
    """One trial's agent, which stands at one moment of its step when the fault happens."""

    def __init__(self, cluster: Cluster, operator: ModelGateway, uid: str, moment: str, habit: Habit) -> None:
        self.cluster, self.operator, self.uid, self.moment, self.habit = cluster, operator, uid, moment, habit
        agent = {
            "name": "codex",
            "model": "openai/gpt-5-mini",
            "baseURL": cluster.provider.url,
            "credentials": [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "provider", "key": "key"}}}],
        }
        self.plan: TrialPlan = plan(IMAGE, {"agent": agent}, env=TrialEnv(credentials={"OPENAI_API_KEY": KEY}))
        assert self.plan.hosted is not None
        self.hosted: HostedAgent = self.plan.hosted
        found = manifest({"agent": agent})
        self.trial: MultiStepTrial = parse_trial({**found, "metadata": {**found["metadata"], "uid": uid}, "status": {"attempt": 1}})
        self.ended = asyncio.Event()
        cluster.provider.stands[f"{uid} {moment}"] = asyncio.Event()

    @property
    def stands(self) -> asyncio.Event:
        return self.cluster.provider.stands[f"{self.uid} {self.moment}"]

    async def run(self) -> Verdict:
        """Run the step: the operator starts it, the agent works, and the operator closes it and decides."""
        await self.at("before the step starts")
        variables = await patiently(lambda: self.operator.variables(self.trial, self.hosted, CALL))
        started = time()
        answered, status = await self.work(variables["OPENAI_API_KEY"])
        ended = time()
        self.ended.set()
        await self.at("after the agent's end")
        report = await patiently(lambda: self.operator.close(self.trial, "task"))
        error = None if status == 0 else ("NonZeroAgentExitCodeError", f"status {status}")
        result = {**DEFAULTS["start"], **outcome(error=error)}
        records = {CALL.id: Record(CALL.id, "start", "done", started, ended, acknowledged=True, result=result)}
        results = {"task/host/model-usage": report, "task/verifier": rewarded(txt=str(float(answered)))}
        journal = play(self.plan, results, records).journal
        return Verdict(
            self.moment,
            self.habit,
            answered,
            journal.lost.reason if journal.lost else "",
            None if journal.lost else (journal.rewards or {}).get("reward", 0.0),
        )

    async def work(self, token: str) -> tuple[bool, int]:
        """Send the requests; return whether all were answered, and the exit status."""
        answered = 0
        for number, streamed in enumerate(STREAMED):
            await self.at(f"before request {number}")
            if await self.ask(token, number, streamed=streamed):
                answered += 1
            elif self.habit != "skips":
                return False, int(self.habit != "exits 0")
        await self.at("after request 2")
        return answered == len(STREAMED), 0

    async def ask(self, token: str, number: int, *, streamed: bool) -> bool:
        messages = [{"role": "user", "content": f"{self.uid} request {number}"}]
        body = {"model": "gpt-5-mini", "stream": streamed, "messages": messages}
        if await self.send(token, body):
            return True
        if self.habit != "retries":
            return False
        await self.cluster.settled.wait()
        return await self.send(token, body)

    async def send(self, token: str, body: Mapping[str, Any]) -> bool:
        url, headers = f"http://127.0.0.1:{self.cluster.port}/openai/v1/chat/completions", {"Authorization": f"Bearer {token}"}
        try:
            async with self.cluster.http.post(url, json=body, headers=headers) as answer:
                return b"stop" in await answer.read() and answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def at(self, moment: str) -> None:
        await self.cluster.provider.stand(f"{self.uid} {moment}")


async def patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call of the operator until the gateway answers, as a reconcile does."""
    while True:
        try:
            return await call()
        except GatewayUnavailable:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    provider = Provider()
    app = web.Application()
    app.router.add_post("/chat/completions", provider.answer)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with process(directory) as (_, gateway):
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:
            yield Cluster(directory, gateway, http, provider)
    await runner.cleanup()


async def nothing(it: Cluster) -> None:
    it.provider.goes_on.set()


async def killed(it: Cluster) -> None:
    await it.gateway.stop(signal.SIGKILL)
    await down(it)


async def drained(it: Cluster) -> None:
    running = it.gateway.running
    assert running is not None
    running.send_signal(signal.SIGTERM)
    while await it.gateway._accepts():
        await asyncio.sleep(0.01)
    it.provider.goes_on.set()  # open requests end, and agents send further ones, while the gateway stops
    await running.wait()
    await down(it)


async def moved(it: Cluster) -> None:
    await it.gateway.stop(signal.SIGTERM)
    other = it.directory / "other-node"
    other.mkdir()
    it.gateway.environment["MULTISTEP_GATEWAY_LEDGER_FILE"] = str(other / "ledger.sqlite")
    await down(it)


async def ledger_lost(it: Cluster) -> None:
    await it.gateway.stop(signal.SIGKILL)
    for each in it.directory.glob("ledger.sqlite*"):
        each.unlink()
    await down(it)


async def ledger_damaged(it: Cluster) -> None:
    await it.gateway.stop(signal.SIGKILL)
    it.ledger.write_bytes(b"\xff" * 4096)
    await down(it)


async def ledger_put_back(it: Cluster) -> None:
    await it.gateway.stop(signal.SIGKILL)
    for each in it.directory.glob("ledger.sqlite*"):
        each.unlink()
    copy = it.directory / "copy.sqlite"
    RequestLedger(copy).stop()
    shutil.copy(copy, it.ledger)
    await down(it)


async def signing_key_replaced(it: Cluster) -> None:
    (it.keys / "k2").write_bytes(b"2" * 32)
    (it.keys / "k1").unlink()
    while "k1" in await it.gateway.admin.accepted_keys():
        await asyncio.sleep(0.1)
    it.provider.goes_on.set()


async def providers_key_rotated(it: Cluster) -> None:
    it.secret = "sk-new"
    it.provider.revoked.add(KEY)
    it.provider.goes_on.set()


async def down(it: Cluster) -> None:
    """Let the agents go on while no gateway runs; start it when all that do not wait for it have ended."""
    it.provider.goes_on.set()
    for each in it.agents:
        if each.habit != "retries" and each.moment != "before the step starts":
            await each.ended.wait()
    await it.gateway.start()


FAULTS: Final[Mapping[str, Callable[[Cluster], Awaitable[None]]]] = {
    "agent-ok": nothing,
    "killed": killed,
    "drained": drained,
    "moved": moved,
    "ledger-lost": ledger_lost,
    "ledger-damaged": ledger_damaged,
    "ledger-put-back": ledger_put_back,
    "signing-key-replaced": signing_key_replaced,
    "key-rotated": providers_key_rotated,
}
LONG: Final = ("agent-ok", "moved", "ledger-damaged", "ledger-put-back", "signing-key-replaced")
ROWS: Final = {row.key: row for row in (*AGENT, *GATEWAY)}


def test_every_row_about_the_gateway_has_its_fault() -> None:
    assert {*FAULTS} == {row.key for row in GATEWAY} | {"agent-ok"}


async def verdicts(directory: Path, fault: Callable[[Cluster], Awaitable[None]]) -> list[Verdict]:
    async with cluster(directory) as it:
        admin, url = it.gateway.admin, f"http://127.0.0.1:{it.port}"
        operator = ModelGateway(admin, url, Keyring(it.keys), no_sweep, get_secret=it.get_secret)
        for number, (moment, habit) in enumerate(product(MOMENTS, HABITS)):
            it.agents.append(Agent(it, operator, f"uid-{number}", moment, habit))

        async def renewed() -> None:
            while True:
                with suppress(GatewayError):
                    await operator.renew()
                await asyncio.sleep(0.2)

        renewing = asyncio.create_task(renewed())
        steps = [asyncio.create_task(each.run()) for each in it.agents]
        await asyncio.gather(*(each.stands.wait() for each in it.agents))
        await fault(it)
        it.settled.set()
        found = await asyncio.gather(*steps)
        renewing.cancel()
        return [*found]


@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.long] if key in LONG else []) for key in FAULTS])
async def test_no_state_of_the_gateway_gives_an_agent_a_0_that_it_did_not_earn(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTISTEP_GATEWAY_LOG_LEVEL", "ERROR")
    monkeypatch.setattr("multistep.gateway.keys.tokens._REREAD_SECONDS", -1.0)
    found, row = await verdicts(tmp_path, FAULTS[key]), ROWS[key]
    assert len(found) == len(MOMENTS) * len(HABITS)
    wrong = [each for each in found if not each.lost and (not each.answered or each.reward != 1.0)]
    assert not wrong
    assert {each.lost for each in found} - {""} == {row.reason} - {""}
    assert not [each for each in found if each.lost and each.moment == "before the step starts"]
