"""Test a simulated user in a real pod: terminus-2 plays it and talks to the trial's agent, each with a scripted model."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hack import image
from hack.paths import ROOT, digest_of
from localkube import targets
from localkube.config import load_config
from localkube.images import Build
from multistep.kube.resources import SWEEPS, TRIALS
from tests.e2e.given import Given, Object, holds
from tests.e2e.test_agents import ledger
from tests.e2e.test_cli import multistep
from tests.e2e.test_judges import ASK
from tests.support import servers

TURNS = 5
KEYS = {role: f"sk-providers-key-of-the-{role}" for role in ("agent", "judge", "user")}
INSTRUCTION = "\n".join(
    ["FAKE-MODEL", *(f"run: acpx prompt 'message {number}'" for number in range(TURNS)), "say: done", "END", ""]
)
ACPX = ROOT / "agent-host/tests/acpx"
DOCKERFILE = """\
FROM debian:bookworm-slim
RUN apt-get update -q && apt-get install -qy --no-install-recommends ca-certificates python3 tmux && mkdir /app
COPY --chmod=755 acpx acp-agent /usr/bin/
WORKDIR /app
"""
# The agent's program: a server of the Agent Client Protocol, which asks the model before each answer. The stand-in for acpx starts
# it for each message. At the last message it tries the token of the user, whose processes are of the same uid.
ACP_AGENT = """#!/usr/bin/env python3
import glob, json, os, sys, urllib.request

def ask(text, key):
    content = f"FAKE-MODEL\\nsay: heard {text}\\nEND\\n"
    body = {"model": "gpt-5", "max_completion_tokens": 50, "messages": [{"role": "user", "content": content}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def keys():
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            variables = dict(each.partition("=")[::2] for each in open(path).read().split("\\0"))
        except OSError:
            continue
        yield variables.get("OPENAI_API_KEY", "")

for line in sys.stdin:
    asked, results = json.loads(line), {"session/new": {"sessionId": "s"}, "session/prompt": {"stopReason": "end_turn"}}
    if asked.get("method") == "session/prompt":
        text = asked["params"]["prompt"][0]["text"]
        others = {*keys()} - {"", os.environ["OPENAI_API_KEY"]} if text == "message 4" else set()
        chunk = {"type": "text", "text": "; ".join(ask(text, key) for key in (os.environ["OPENAI_API_KEY"], *others))}
        update = {"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk", "content": chunk}}
        print(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": update}), flush=True)
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": results.get(asked.get("method"), {})}), flush=True)
"""
CLASS = """
from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.protocols import ACPAgentMixin
from harbor.models.bridge import BridgeKind

class Talking(BaseAgent, ACPAgentMixin):
    capabilities = AgentCapabilities(base_url=True, bridges=frozenset({BridgeKind.ACP}))

    @staticmethod
    def name():
        return "talking"

    def version(self):
        return "1"

    async def setup(self, environment): ...

    async def run(self, instruction, environment, context):
        raise AssertionError("the user talks to it")

    def acp_command(self):
        return ["acp-agent"]

    def acp_env(self):
        return {name: self._get_env(name) for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL")}
"""


def environment_image(directory: Path) -> str:
    """Build an image with the agent's program and the stand-in for acpx, load it into the cluster and return its name."""
    target = targets.choose(load_config())
    files = {"acpx": ACPX.read_text(), "acp-agent": ACP_AGENT, "Dockerfile": DOCKERFILE}
    name = f"localhost/multistep-users:{digest_of([], json.dumps(files))}"
    for path, text in files.items():
        (directory / path).write_text(text)
    target.engine.build(Build(name, directory, directory / "Dockerfile"))
    image.deliver(target, name)
    return name


def model_of(role: str, model: servers.Server) -> dict[str, Any]:
    reference = {"secretKeyRef": {"name": "keys", "key": role}}
    credentials = [{"name": "OPENAI_API_KEY", "valueFrom": reference}]
    return {"model": "openai/gpt-5", "baseURL": f"{model.url}/v1", "credentials": credentials, "limits": {"costUSD": 5.0}}


async def sweep_of_three_roles(given: Given, model: servers.Server, directory: Path) -> Object:
    """Return a sweep of one trial with an agent, a simulated user and a judge, each with a key of its own."""
    data = {role: base64.b64encode(key.encode()).decode() for role, key in KEYS.items()}
    await given.applied({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data})
    await given.applied({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"talking.py": CLASS}})
    mounts = {"env": [{"name": "PYTHONPATH", "value": "/own"}], "volumeMounts": [{"name": "own", "mountPath": "/own"}]}
    pod = {"volumes": [{"name": "own", "configMap": {"name": "own"}}], "containers": [{"name": "agent-host", **mounts}]}
    environment = {"image": await asyncio.to_thread(environment_image, directory), "podTemplate": {"spec": pod}}
    files = {"instruction.md": INSTRUCTION, "tests/test.sh": ASK}
    spec = {
        "tasks": [{"name": "talk", "inline": {"config": {"environment": {"workdir": "/app"}}, "files": files}}],
        "agents": [{"name": "talking", "agent": {"importPath": "talking:Talking", **model_of("agent", model)}}],
        "attempts": 1,
        "template": {
            "spec": {
                "environment": environment,
                "models": {"user": {"name": "terminus-2", **model_of("user", model)}, "judge": model_of("judge", model)},
            }
        },
    }
    return {"apiVersion": SWEEPS.api_version, "kind": SWEEPS.kind, "metadata": {"name": "users"}, "spec": spec}


async def charged(model: servers.Server) -> dict[str, Counter[str]]:
    """Return what the provider counted with each role's key."""
    found = {role: Counter[str]() for role in KEYS}
    for entry in await ledger(model):
        (role,) = [role for role, key in KEYS.items() if key == entry["key"]]
        found[role].update({"requests": 1, "input": entry["input"], "output": entry["output"]})
    return found


def counted(usage: dict[str, Any]) -> Counter[str]:
    """Return the usage in a status in the form of `charged`."""
    return Counter(requests=usage["requests"], input=usage["inputTokens"], output=usage["outputTokens"])


@pytest.mark.long
async def test_a_user_of_five_turns_and_a_judge_are_counted_apart_and_as_their_provider_counts_them(
    given: Given, model: servers.Server, tmp_path: Path
) -> None:
    await given.applied(await sweep_of_three_roles(given, model, tmp_path))
    found = await given.sweep_ended("users")
    (trial,) = await given.client.list_all(TRIALS, given.namespace)
    trial = await given.get(trial["metadata"]["name"])
    status = trial["status"]
    assert holds(found, "Complete") and status.get("rewards") == {"reward": 1.0}, status

    provider = await charged(model)
    roles = {"agent": "usage", "judge": "judgeUsage", "user": "userUsage"}
    for usages in (status, status["steps"][0]):
        assert {role: counted(usages[name]) for role, name in roles.items()} == provider
    assert (provider["agent"]["requests"], provider["judge"]["requests"]) == (TURNS, 1)
    assert provider["user"]["requests"] > TURNS, "that of the agent's process, with the user's token, counts for the user"

    results, report = tmp_path / "results", tmp_path / "report.json"
    code, _, err = await multistep("results", trial["metadata"]["name"], str(results), "-n", given.namespace)
    assert code == 0, err
    result = json.loads((results / "result.json").read_text())
    agents = {name: result["agent_result"][f"n_{name}_tokens"] for name in ("input", "output")}
    assert agents == {name: provider["agent"][name] for name in agents}
    for role in ("judge", "user"):
        used = result[f"{role}_usage"]
        assert Counter(requests=used["requests"], input=used["input_tokens"], output=used["output_tokens"]) == provider[role]
    (talk,) = results.rglob("bridge-trajectory.json")
    said = [each.get("user") or each["agent"] for each in json.loads(talk.read_text())]
    assert said[::2] == [f"message {number}" for number in range(TURNS)]
    assert said[1] == "heard message 0" and said[-1] == "heard message 4; heard message 4"

    code, _, err = await multistep("sweep", "report", "users", "-n", given.namespace, "-o", str(report))
    assert code == 0, err
    (row,) = json.loads(report.read_text())["trials"]
    for role in ("judge", "user"):
        reported = Counter(requests=row[f"{role}_requests"], input=row[f"{role}_input_tokens"], output=row[f"{role}_output_tokens"])
        assert reported == provider[role]
    assert (row["input_tokens"], row["output_tokens"]) == (provider["agent"]["input"], provider["agent"]["output"])
