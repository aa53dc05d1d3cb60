"""The gateway's process is killed under load: no request is lost or counted twice."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp

from multistep.errors import GatewayUnavailable
from multistep.gateway.accounting.prices import cost_usd
from multistep.gateway.model_api.answer_parsers import TokenUsage
from multistep.gateway.operator_client import GatewayAdmin
from multistep.gateway.settings import GatewaySettings
from multistep.token_records.read_file import read
from tests.support.fake_model import fake_model
from tests.support.servers import ROOT, free_port
from tests.support.vllm_answers import tokens_of
from tests.unit.gateway.world import ADMIN_TOKEN, MODELS, Seen, World, step_of, token_for, write_secrets

STREAMS, REQUESTS = 20, 6
LONG = "say: " + "word " * 60


@dataclass
class Process:
    """A gateway in its own process, which can be killed and started again on the same ports."""

    environment: dict[str, str]
    admin: GatewayAdmin
    running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the gateway; wait until its admin port answers and its public port, which it opens later, accepts connections."""
        self.running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "multistep.gateway", env=self.environment, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(60):
            while not (await self._answers() and await self._accepts()):
                assert self.running.returncode is None, "the gateway ended"
                await asyncio.sleep(0.05)

    async def stop(self, number: signal.Signals) -> int:
        """Send the process a signal and return its exit code."""
        assert self.running is not None
        self.running.send_signal(number)
        return await self.running.wait()

    async def _answers(self) -> bool:
        try:
            await self.admin.needed_credentials()
        except GatewayUnavailable:
            return False
        return True

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", int(self.environment["MULTISTEP_GATEWAY_PORT"]))
        except ConnectionRefusedError:
            return False
        writer.close()
        await writer.wait_closed()
        return True


@asynccontextmanager
async def process(directory: Path) -> AsyncIterator[tuple[World, Process]]:
    """Run a gateway in its own process, in front of a fake model; yield clients of both ports, and the process."""
    port, admin_port = free_port(), free_port()
    given = {**write_secrets(directory), "port": port, "admin_port": admin_port}
    variables = {f"MULTISTEP_GATEWAY_{name.upper()}": str(value) for name, value in given.items()}
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT / "operator")}
    async with fake_model(retry_after=0.2) as model, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        admin = GatewayAdmin(http, f"http://127.0.0.1:{admin_port}", ADMIN_TOKEN)
        found = World(http, model, admin, port, admin_port, GatewaySettings(**given))
        gateway = Process(environment, admin)
        await gateway.start()
        await found.register()
        yield found, gateway
        if gateway.running is not None and gateway.running.returncode is None:
            await gateway.stop(signal.SIGTERM)


async def complete_one(it: World, token: str) -> None:
    """Send a request repeatedly until an answer is complete, as an agent's HTTP client retries."""
    while True:
        seen = await it.call("messages", "-slow-30", stream=True, token=token)
        if seen.status == 200 and not seen.error and b"message_stop" in seen.body:
            return
        await asyncio.sleep(0.1)


async def reached(it: World, call: asyncio.Task[Seen]) -> None:
    """Wait until the provider has the request of this call."""
    while not it.model.entries:
        assert not call.done(), call.result()
        await asyncio.sleep(0.02)


async def streams_in_flight(it: World, least: int) -> None:
    """Wait until the provider is answering at least this many requests, so that a kill interrupts them."""
    while sum(each.outcome == "open" and each.status == 200 for each in it.model.entries) < least:
        await asyncio.sleep(0.005)


async def test_two_kills_under_twenty_streams_neither_lose_nor_double_a_request(tmp_path: Path) -> None:
    async with process(tmp_path) as (it, gateway):

        async def agent(number: int) -> None:
            for _ in range(REQUESTS):
                await complete_one(it, token_for("messages", uid=f"uid-{number}"))

        agents = [asyncio.create_task(agent(number)) for number in range(STREAMS)]
        for _ in range(2):
            await streams_in_flight(it, STREAMS // 2)
            await gateway.stop(signal.SIGKILL)
            await gateway.start()
            await it.register()
        await asyncio.gather(*agents)
        usages = [await it.admin.close(step_of(f"uid-{number}")) for number in range(STREAMS)]

    complete = STREAMS * REQUESTS
    recorded = sum(each.requests - each.incomplete for each in usages)
    entries = it.model.entries
    unfinished = [each for each in entries if each.outcome != "answered"]
    # The gateway records an answer before the agent has all of it. If it is killed between the two, the agent repeats the request.
    assert complete <= recorded <= len(entries) - len(unfinished)
    assert sum(each.incomplete for each in usages) >= len(unfinished) >= 2
    assert sum(each.requests for each in usages) >= len(entries)
    assert sum(each.input_tokens for each in usages) == recorded * entries[0].input
    assert [each.last_failure for each in usages] == [None] * STREAMS


async def test_a_kill_under_twenty_streams_leaves_whole_records_and_marks_the_other_steps_as_incomplete(tmp_path: Path) -> None:
    async with process(tmp_path) as (it, gateway):

        def ask(number: int) -> asyncio.Task[Seen]:
            slow, token = "-slow-100" * (number % 2), token_for("chat", uid=f"uid-{number}", captures=True)
            return asyncio.create_task(it.send("chat", f"policy-vllm{slow}", stream=True, token=token, text=LONG))

        calls = [ask(number) for number in range(STREAMS)]
        await asyncio.gather(*calls[::2])
        while sum("return_token_ids" in each.body and each.status == 200 for each in it.model.entries) < STREAMS:
            await asyncio.sleep(0.005)
        await gateway.stop(signal.SIGKILL)
        await asyncio.gather(*calls)
        await gateway.start()
        found = []
        for number in range(STREAMS):
            facts = (await it.admin.close(step_of(f"uid-{number}"))).capture
            assert facts is not None
            stored = b"".join([piece async for piece in it.admin.read_capture(step_of(f"uid-{number}"))])
            (tmp_path / "records").write_bytes(stored)
            records = read(tmp_path / "records")
            assert (facts.sha256, facts.complete) == (sha256(stored).hexdigest(), records.complete)
            found.append((records.complete, [(each.state, len(each.ids)) for each in records.records]))
    whole = (True, [("Done", len(tokens_of(LONG.removeprefix("say: ").rstrip())))])
    assert found == [whole, (False, [])] * (STREAMS // 2)


async def test_a_lost_request_is_the_providers_failure_and_not_zero(tmp_path: Path) -> None:
    async with process(tmp_path) as (it, gateway):
        call = asyncio.create_task(it.call("messages", "-slow-3000", stream=True))
        await reached(it, call)
        await gateway.stop(signal.SIGKILL)
        assert (await call).error
        await gateway.start()
        usage = await it.admin.close(step_of())
    assert (usage.requests, usage.incomplete, usage.input_tokens) == (1, 1, 0)
    assert usage.last_failure is not None
    assert usage.last_failure.kind == "Provider"


async def test_a_closed_step_stays_closed_after_a_restart(tmp_path: Path) -> None:
    async with process(tmp_path) as (it, gateway):
        await it.call("messages")
        usage = await it.admin.close(step_of())
        assert await gateway.stop(signal.SIGTERM) == 0
        await gateway.start()
        await it.register()
        assert (await it.call("messages")).status == 401
        assert await it.admin.close(step_of()) == usage


async def test_on_shutdown_open_requests_may_finish(tmp_path: Path) -> None:
    async with process(tmp_path) as (it, gateway):
        call = asyncio.create_task(it.call("messages", "-slow-150", stream=True))
        await reached(it, call)
        assert await gateway.stop(signal.SIGTERM) == 0
        seen = await call
        assert (seen.status, seen.error) == (200, "")
        assert b"message_stop" in seen.body


async def test_three_kills_under_twenty_agents_do_not_exceed_a_budget_of_one_dollar(tmp_path: Path) -> None:
    async with process(tmp_path) as (it, gateway):

        async def agent(number: int) -> None:
            token = token_for("messages", uid=f"uid-{number}", sweep="s", sweepLimits={"costUSD": 1.0})
            while (await it.call("messages", "-slow-20", stream=True, text=LONG, token=token)).status != 400:
                await asyncio.sleep(0.05)

        ended = asyncio.gather(*map(agent, range(STREAMS)))
        # least: number of requests in flight at a kill. The budget counts each of them with its reservation of 0.02 US dollars.
        for least in (STREAMS // 2, STREAMS // 2, 1):
            flying = asyncio.create_task(streams_in_flight(it, least))
            either: set[asyncio.Future[Any]] = {flying, ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            flying.cancel()
            await gateway.stop(signal.SIGKILL)
            await gateway.start()
            await it.register()
        await ended
        usages = [await it.admin.close(step_of(f"uid-{number}")) for number in range(STREAMS)]

    seen = [TokenUsage(input=each.input, cached=each.cached, output=each.output) for each in it.model.entries]
    charged = [cost_usd("anthropic", MODELS["messages"], each) for each in seen]
    assert 0 < sum(cost or 0.0 for cost in charged) <= 1.0
    assert {each.last_failure.kind for each in usages if each.last_failure} == {"SweepBudget"}
