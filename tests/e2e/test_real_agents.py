"""Run the programs of real agents with the command line alone; check results and usage. A scripted model answers them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.given import Given, reward_for_text
from tests.e2e.operators import with_values
from tests.e2e.test_agents import KEY, ledger
from tests.e2e.test_cli import multistep
from tests.harbor.environment import harbor_python
from tests.support import servers

STEPS = ("one", "two", "three")
TRAJECTORIES = {f"steps/{name}/agent/trajectory.json" for name in STEPS}
LOAD_TRIAL = Path(__file__).parents[1] / "harbor/load_trial.py"
TASK = """\
[task]
name = "tests/gates"
[environment]
workdir = "/app"
""" + "".join(f"[[steps]]\nname = '{name}'\nmin_reward = 1.0\n" for name in STEPS)
DOCKERFILE = """\
FROM debian:bookworm-slim
RUN apt-get update -q && apt-get install -qy --no-install-recommends ca-certificates git tmux && mkdir /app
WORKDIR /app
"""
SKILL = "how the notes of this task are filed"
TOOLS = {
    "skills/filing/SKILL.md": f"---\nname: filing\ndescription: {SKILL}\n---\nOne note in one file.\n",
    "ledger-server": r"""#!/bin/sh
# An MCP server on stdin and stdout, with one tool.
while read -r line; do
    case $line in
        *'"initialize"'*) answer='"result":{"protocolVersion":"2025-03-26","capabilities":{"tools":{}},
            "serverInfo":{"name":"ledger","version":"1"}}' ;;
        *'"tools/list"'*) answer='"result":{"tools":[{"name":"balance","inputSchema":{"type":"object"}}]}' ;;
        *'"id"'*) answer='"error":{"code":-32601,"message":"no such method"}' ;;
        *) continue ;;
    esac
    id=$(printf %s "$line" | sed 's/.*"id":\([^,}]*\).*/\1/')
    printf '{"jsonrpc":"2.0","id":%s,%s}' "$id" "$answer" | tr -d '\n'
    echo
done
""",
}


def gates(directory: Path, dockerfile: str = DOCKERFILE, turn: str = "run: printf '{0} ok' > /app/{0}") -> Path:
    """Write a task of three steps, each with a gate. In each, the model makes the agent write a file, which the step's tests read.

    Args:
        turn: The model's turn that makes the agent write the file; {0} is the step's name.
    """
    texts = {"task.toml": TASK, "environment/Dockerfile": dockerfile}
    for name in STEPS:
        texts[f"steps/{name}/instruction.md"] = f"FAKE-MODEL\n{turn.format(name)}\nsay: done\nEND\n"
        texts[f"steps/{name}/tests/test.sh"] = reward_for_text(f"/app/{name}", f"{name} ok")
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def with_tools(task: Path) -> Path:
    """Give the task's agent a skill and an MCP server, as Harbor's tasks do: files of the image that task.toml names."""
    environment, config = task / "environment", task / "task.toml"
    for name, text in TOOLS.items():
        (environment / name).parent.mkdir(parents=True, exist_ok=True)
        (environment / name).write_text(text)
    (environment / "Dockerfile").write_text(f"{DOCKERFILE}COPY --chmod=755 ledger-server /usr/bin/\nCOPY skills /skills\n")
    server = '[[environment.mcp_servers]]\nname = "ledger"\ntransport = "stdio"\ncommand = "/usr/bin/ledger-server"\n'
    config.write_text(config.read_text().replace("[[steps]]", f'skills_dir = "/skills"\n{server}[[steps]]', 1))
    return task


async def image_of(agent: str) -> str:
    """Build and load the image of an agent's program, as a user does, and return its name."""
    code, out, err = await multistep("agent", "build", agent)
    assert code == 0, err
    return out.strip()


async def charged(model: servers.Server) -> Counter[str]:
    """Return the usage that the model charged: requests and tokens by step. A request belongs to the step that it mentions last."""
    found = Counter[str]()
    for entry in await ledger(model):
        step = max(STEPS, key=lambda name: entry["body"].rfind(f"{name} ok"))
        found.update({f"{step} requests": 1, f"{step} in": entry["input"], f"{step} out": entry["output"]})
    return found


def counted(steps: list[dict[str, Any]]) -> Counter[str]:
    """Return the usage in the trial's status, in the form that `charged` returns."""
    found = Counter[str]()
    for each in steps:
        usage = each["usage"]
        found[f"{each['name']} requests"] = usage["requests"]
        found[f"{each['name']} in"] = usage["inputTokens"]
        found[f"{each['name']} out"] = usage["outputTokens"]
    return found


ANTHROPIC = (
    *("--model", "anthropic/claude-sonnet-4-5", "--key-from-secret", "ANTHROPIC_API_KEY=keys:key"),
    *("--agent-env", "MCP_CONNECTION_NONBLOCKING=0"),  # so that claude-code's first request offers the MCP servers' tools
)
OPENAI = ("--model", "openai/gpt-5", "--key-from-secret", "OPENAI_API_KEY=keys:key")


@pytest.mark.parametrize(
    ("agent", "path", "options", "tool"),
    [
        ("claude-code", "", ANTHROPIC, "mcp__ledger__balance"),
        pytest.param("claude-code", "", (*ANTHROPIC, "--resume"), "mcp__ledger__balance", marks=pytest.mark.long),
        pytest.param("codex", "/v1", OPENAI, "mcp__ledger", marks=pytest.mark.long),
        pytest.param("terminus-2", "/v1", OPENAI, "/usr/bin/ledger-server", marks=pytest.mark.long),
    ],
)
async def test_a_real_agent_completes_a_task_of_gates_with_its_tools_and_its_usage_is_what_the_model_charged(
    agent: str, path: str, options: tuple[str, ...], tool: str, given: Given, model: servers.Server, tmp_path: Path
) -> None:
    image = () if agent == "terminus-2" else ("--agent-image", await image_of(agent))
    task = with_tools(gates(tmp_path / "gates"))
    found = await completed(given, model, task, agent, "--base-url", f"{model.url}{path}", *options, *image)
    assert found == TRAJECTORIES
    asked = "".join(entry["body"] for entry in await ledger(model))
    assert SKILL in asked, "the agent does not offer the task's skill to its model"
    assert tool in asked, "the agent does not offer the task's MCP server to its model"


@pytest.mark.alone
@pytest.mark.long
async def test_on_a_cluster_without_image_volumes_a_real_agent_completes_a_task_of_gates(
    given: Given, model: servers.Server, tmp_path: Path
) -> None:
    image = await image_of("claude-code")
    options = ("--base-url", model.url, *ANTHROPIC, "--agent-image", image)
    async with with_values("settings.agentImageMount=Copy"):
        running = asyncio.create_task(completed(given, model, gates(tmp_path / "gates"), "claude-code", *options))
        (pod,) = await given.when(lambda: given.pods("real"))
        assert await running == TRAJECTORIES
    assert "copy-agent" in [each["name"] for each in pod["spec"]["initContainers"]]


async def completed(given: Given, model: servers.Server, task: Path, agent: str, *options: str) -> set[str]:
    """Run the task with this agent. Check its rewards, compare its usage with what the model charged, and load its results with
    Harbor's models. Return the paths of the trajectories."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}}
    await given.applied({**secret, "data": {"key": base64.b64encode(KEY.encode()).decode()}})
    out = task.parent / "out"
    where = ("-n", given.namespace, "--name", "real", "--results", str(out), "-o", "json")
    code, shown, err = await multistep("run", str(task), "--agent", agent, *options, *where)
    assert code == 0, shown + err
    status = (await given.get("real"))["status"]
    assert status["rewards"] == {"reward": 1.0} and counted(status["steps"]) == await charged(model)
    result = json.loads((out / "result.json").read_text())
    used = [step["agent_result"]["n_input_tokens"] for step in result["step_results"]]
    assert result["agent_info"]["name"] == agent and used == [step["usage"]["inputTokens"] for step in status["steps"]]
    loaded = await asyncio.to_thread(harbor_python().run, LOAD_TRIAL, out)
    assert loaded.returncode == 0, loaded.stderr[-4000:]
    return set(json.loads(loaded.stdout))
