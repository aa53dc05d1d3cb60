"""Test the benchmark of trials with an agent host: its fake claude-code, the pods for comparison, and the memory measurement."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multistep.settings import Settings
from tests.bench import agents, reports
from tests.bench.agents import Found, HostMemory
from tests.bench.measure import Counters
from tests.bench.trials import Comparison, Round
from tests.support.fake_model import fake_model

PROGRAM = Path(agents.__file__).with_name("claude.sh")
SETTINGS = Settings(operator_image="operator:1", agent_host_image="host:1", gateway_url="http://gateway")
URL = "http://10.0.0.1:20001"
QUICK = Round(trials=12.0, shape=10.0, bare=4.0, cost=Counters(80, 4000, 800, 8.0, 1e8))


async def run_program(instruction: str, url: str, *arguments: str, model: str = "claude-1") -> tuple[int | None, str]:
    env = os.environ | {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "k", "ANTHROPIC_MODEL": model, "PAUSE_SECONDS": "0"}
    pipe = asyncio.subprocess.PIPE
    stdin = pipe if instruction else asyncio.subprocess.DEVNULL  # a write fails if the program does not read stdin
    process = await asyncio.create_subprocess_exec("bash", PROGRAM, *arguments, env=env, stdin=stdin, stdout=pipe, stderr=pipe)
    out, err = await process.communicate(instruction.encode() or None)
    return process.returncode, out.decode() + err.decode()


async def test_the_stand_in_calls_the_model_and_then_runs_the_instruction(tmp_path: Path) -> None:
    async with fake_model() as model:
        code, printed = await run_program(f"touch {tmp_path}/one\n", f"{model.url}/anthropic", "--verbose", "--print")
    assert (code, (tmp_path / "one").exists()) == (0, True), printed
    assert [(each.key, each.path, each.status) for each in model.entries] == [("k", "/anthropic/v1/messages", 200)] * 3


async def test_the_stand_in_fails_if_the_model_refuses_or_the_instruction_fails(tmp_path: Path) -> None:
    async with fake_model() as model:
        assert (await run_program("false; true\n", f"{model.url}/anthropic"))[0] == 1
        code, printed = await run_program(f"touch {tmp_path}/one\n", f"{model.url}/anthropic", model="claude-1-fail-404")
    assert (code, "the model answered: HTTP/1.1 404" in printed, (tmp_path / "one").exists()) == (1, True, False)


async def test_the_stand_in_has_a_version_that_harbor_can_parse() -> None:
    assert await run_program("", "http://nowhere", "--version") == (0, "2.0.0 (Claude Code)\n")


def test_the_pod_of_the_same_shape_runs_the_agent_itself() -> None:
    made = agents.hosted_trial(URL, 7)
    pod = agents.shape_pod(made, SETTINGS, URL, 7)
    main, host = pod["spec"]["containers"]
    assert "claude" in main["command"][-1] and "readinessProbe" not in main
    assert (host["name"], host["image"], host["command"][1]) == ("agent-host", "host:1", "serve")
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["install-runner"]
    assert {"name": "agents", "mountPath": "/usr/local/bin/claude", "subPath": "claude"} in main["volumeMounts"]


def test_the_bare_pod_runs_the_same_command_in_one_container() -> None:
    shape = agents.shape_pod(agents.hosted_trial(URL, 7), SETTINGS, URL, 7)
    pod = agents.bare_pod(shape)
    (main,) = pod["spec"]["containers"]
    assert main["command"] == shape["spec"]["containers"][0]["command"]
    assert [each["name"] for each in (*main["volumeMounts"], *pod["spec"]["volumes"])] == ["agents", "agents"]


def pod(**state: Any) -> dict[str, Any]:
    statuses = [{"name": "agent-host", "state": {"running": {}}}, {"name": "main", "state": state}]
    return {"metadata": {"name": "idle"}, "status": {"containerStatuses": statuses}}


def test_a_pod_has_done_its_work_when_the_agents_processes_have_ended() -> None:
    assert not agents.agent_ended({"metadata": {"name": "idle"}})
    assert not agents.agent_ended(pod(running={}))
    assert agents.agent_ended(pod(terminated={"exitCode": 0}))
    with pytest.raises(RuntimeError, match="the agent's processes failed in pod idle"):
        agents.agent_ended(pod(terminated={"exitCode": 1}))


PROCESSES = "Name:\tmultistep-runne\nVmRSS:\t    8192 kB\nName:\tpython\nVmRSS:\t   43008 kB\n"


@pytest.mark.parametrize(
    ("charged", "expected"),
    [
        ("total_rss 52428800\ntotal_mapped_file 1048576\n", 51 << 20),
        ("anon 52428800\nfile_mapped 2097152\n", 52 << 20),
        ("", 50 << 20),
    ],
    ids=["cgroup v1", "cgroup v2", "no cgroup"],
)
def test_the_hosts_memory_is_what_its_control_group_is_charged_or_else_its_processes(charged: str, expected: int) -> None:
    memory = agents.host_memory(charged + PROCESSES)
    assert memory.bytes == expected
    assert memory.processes == [("python", 42 << 20), ("multistep-runne", 8 << 20)]


def found(short_execs: float = 120, long_execs: float = 160, installed: int = 60 << 20, trials: float = 6.0) -> Found:
    short, long = (replace(QUICK, trials=trials, cost=replace(QUICK.cost, execs=execs)) for execs in (short_execs, long_execs))
    return Found(
        Comparison(40, 3, [short]),
        Comparison(40, 3, [long]),
        HostMemory(installed, []),
        HostMemory(200 << 20, [("python", 200 << 20)]),
    )


@pytest.mark.parametrize(
    ("case", "holds", "broken"),
    [
        (found(), True, []),
        (found(installed=65 << 20), False, ["65.0 MiB"]),
        (found(short_execs=121), False, ["1.01 execs"]),
        (found(long_execs=162), False, ["1.35 execs"]),
        (found(trials=6.4), True, ["short steps take 1.60 times", "long steps take 1.60 times"]),
    ],
    ids=["all", "memory", "execs of short steps", "execs of long steps", "time, which only is reported"],
)
def test_memory_and_execs_can_fail_the_bench(case: Found, holds: bool, broken: list[str]) -> None:
    held, lines = agents.judgement(case)
    assert held is holds
    assert [each for each in broken if not any(line.startswith("DOES NOT HOLD") and each in line for line in lines)] == []
    assert sum(line.startswith("DOES NOT HOLD") for line in lines) == len(broken)
    assert agents.table(case).row_count == 2


def test_every_format_of_the_report_is_measured() -> None:
    cost = reports.measure()
    assert (cost.trials, list(cost.seconds)) == (1000, ["read", "table", "html", "csv", "json", "parquet"])
    assert reports.table(cost).row_count == 1
