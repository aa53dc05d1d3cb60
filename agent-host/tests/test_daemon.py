"""Tests of the command `multistep-host` and its daemon as separate processes, as the container's runner starts them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner import TOKEN, Runner
from waiting import eventually, holding, is_free, was_held

HERE = Path(__file__).parent


@dataclass
class Host:
    """Replaces an agent host's container: it has the container's directory, and runs the command `multistep-host`."""

    directory: Path
    runner: Runner
    printed: bytes = b""  # stdout of the last command

    @property
    def outcome(self) -> Path:
        return self.directory / "outcome.json"

    async def command(self, name: str, text: str) -> asyncio.subprocess.Process:
        env = os.environ | {"MULTISTEP_HOST_DIR": str(self.directory), "PYTHONPATH": f"{HERE.parent}:{HERE}"}
        pipe = asyncio.subprocess.PIPE
        argv = [sys.executable, "-m", "multistep_host", name]
        process = await asyncio.create_subprocess_exec(*argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        assert process.stdin
        process.stdin.write(text.encode())
        process.stdin.close()
        return process

    async def ask(self, name: str, **request: Any) -> dict[str, Any]:
        """Run `multistep-host NAME`, wait until it ends, and return its outcome."""
        self.outcome.unlink(missing_ok=True)
        process = await self.command(name, json.dumps(self.request(**request)))
        self.printed, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")
        outcome: dict[str, Any] = json.loads(self.outcome.read_text())
        return outcome

    def request(self, **request: Any) -> dict[str, Any]:
        admission = {"id": self.runner.admission.id, "token": TOKEN.hex(), "socket": self.runner.socket}
        return {"outcome": str(self.outcome), "admission": admission, "env": {}, **request}

    async def setup(self, **agent: Any) -> dict[str, Any]:
        whole = {"name": None, "importPath": "scripted_agent:ScriptedAgent", "model": None, **agent}
        return await self.ask("setup", agent=whole, trial="trial")

    async def step(self, instruction: str) -> dict[str, Any]:
        return await self.ask("step", step={"name": "one", "instruction": instruction})

    def daemons(self) -> list[int]:
        wanted = b"multistep_host.daemon", str(self.directory).encode()
        processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [int(path.name) for path in processes if all(each in _command_line(path) for each in wanted)]


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@asynccontextmanager
async def hosting(directory: Path, runner: Runner) -> AsyncIterator[Host]:
    host = Host(directory, runner)
    try:
        yield host
    finally:
        for pid in host.daemons():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def host(runner: Runner, tmp_path: Path) -> AsyncIterator[Host]:
    async with hosting(tmp_path, runner) as host:
        yield host


async def test_the_agent_object_lives_over_the_steps(host: Host) -> None:
    assert (await host.setup())["ok"]
    assert (await host.step("true"))["ok"]
    assert (await host.step("true"))["ok"]
    assert len(host.daemons()) == 1


async def test_a_step_prints_what_the_agents_commands_print_and_keeps_it_with_the_logs(host: Host) -> None:
    await host.setup()
    assert host.printed == b""
    await host.step("echo first; sleep 0.2; printf 'second\\377' >&2")
    assert host.printed == b"first\nsecond\xff"
    assert (host.directory / "trial/agent/output.txt").read_bytes() == host.printed


async def test_output_is_printed_while_the_step_runs(host: Host) -> None:
    await host.setup()
    step = {"name": "one", "instruction": 'echo early; read line < "$GO"'}
    go = host.directory / "go"
    os.mkfifo(go)
    process = await host.command("step", json.dumps(host.request(step=step, env={"GO": str(go)})))
    assert process.stdout and await process.stdout.readline() == b"early\n"
    assert process.returncode is None
    go.write_text("\n")
    assert await process.wait() == 0


async def test_a_registered_agent_is_found_by_its_name(host: Host) -> None:
    done = await host.setup(name="nop", importPath=None)
    assert (done["ok"], done["agent"]["name"]) == (True, "nop")


async def test_an_agent_that_cannot_be_created_is_a_fault_of_the_host(host: Host) -> None:
    done = await host.setup(name="no-such-agent", importPath=None)
    assert done["error"]["type"] == "AgentHostError"
    assert "no-such-agent" in done["error"]["message"]


async def test_an_invalid_request_is_a_fault_of_the_host(host: Host) -> None:
    done = await host.ask("setup", agent={"name": "nop"}, trial="trial", surprise=1)
    assert done["error"]["type"] == "AgentHostError"


async def test_a_step_without_a_setup_reports_the_missing_daemon(host: Host) -> None:
    done = await host.step("true")
    assert done["error"] == {"type": "AgentHostError", "message": "the agent host has no daemon: it ended"}


async def test_a_second_setup_is_refused_and_the_agent_stays(host: Host) -> None:
    await host.setup()
    assert "was set up already" in (await host.setup())["error"]["message"]
    assert (await host.step("true"))["ok"]


async def test_a_daemon_that_is_killed_in_a_step_is_reported_at_once(host: Host) -> None:
    await host.setup()
    step = asyncio.create_task(host.step("sleep 60"))
    await eventually(lambda: any("sleep 60" in str(request) for request in host.runner.requests))
    os.kill(host.daemons()[0], signal.SIGKILL)
    assert "ended during the request" in (await step)["error"]["message"]
    assert "has no daemon" in (await host.step("true"))["error"]["message"]


async def test_a_killed_client_cancels_the_step_and_its_command(host: Host, tmp_path: Path) -> None:
    await host.setup()
    lock = tmp_path / "lock"
    step = {"name": "one", "instruction": holding(lock)}
    process = await host.command("step", json.dumps(host.request(step=step)))
    await eventually(lambda: was_held(lock))
    process.kill()
    await process.wait()
    assert (await host.step("true"))["ok"]
    await eventually(lambda: is_free(lock))


async def test_a_daemon_whose_agent_cannot_be_stopped_ends(host: Host) -> None:
    await host.setup()
    step = {"name": "one", "instruction": "swallow cancellation"}
    process = await host.command("step", json.dumps(host.request(step=step)))
    await eventually(lambda: any("swallowing" in str(request) for request in host.runner.requests))
    process.kill()
    await process.wait()
    await eventually(lambda: not host.daemons())
    assert "the agent did not stop" in (await host.step("true"))["error"]["message"]


async def test_a_command_without_a_valid_request_fails(host: Host) -> None:
    process = await host.command("setup", "no JSON")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"not a JSON object with a field `outcome`" in errors


async def test_the_socket_is_the_users_own(host: Host) -> None:
    await host.setup()
    assert (host.directory / "daemon.sock").stat().st_mode & 0o777 == 0o600
