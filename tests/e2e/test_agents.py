"""Test Harbor's agents in real pods, with a scripted model behind the model gateway."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.given import Given, Object, Step, condition, finished, in_agent, reward_for_text, trial
from tests.support import servers

KEY = "sk-providers-key-of-the-tests"
OWN = (Path(__file__).parents[2] / "examples" / "own-agent" / "own_agent.py").read_text()
GATED = {"min_reward": 1.0}


def step(name: str, *commands: str) -> Step:
    """Return a step in which the model makes the agent run the commands and then create the file that the verifier requires."""
    lines = [f"run: {each}" for each in (*commands, f"printf {name} > /tmp/{name}")]
    instruction = "\n".join(["FAKE-MODEL", *lines, "say: done", "END", ""])
    return Step(name, instruction=instruction, test=reward_for_text(f"/tmp/{name}", name), config=GATED)


async def agent(given: Given, model: servers.Server, name: str = "gpt-5") -> dict[str, Any]:
    """Create the objects of a user-defined agent; return the fields of a trial's spec that select it."""
    key = {"openai": base64.b64encode(KEY.encode()).decode()}
    await given.applied({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": key})
    await given.applied({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"own_agent.py": OWN}})
    container = {
        "name": "agent-host",
        "env": [{"name": "PYTHONPATH", "value": "/own"}],
        "volumeMounts": [{"name": "own", "mountPath": "/own"}],
    }
    pod = {"volumes": [{"name": "own", "configMap": {"name": "own"}}], "containers": [container]}
    reference = {"secretKeyRef": {"name": "keys", "key": "openai"}}
    return {
        "agent": {
            "importPath": "own_agent:OwnAgent",
            "model": f"openai/{name}",
            "baseURL": f"{model.url}/v1",
            "credentials": [{"name": "OPENAI_API_KEY", "valueFrom": reference}],
        },
        "environment": {"image": "debian:bookworm-slim", "podTemplate": {"spec": pod}},
    }


async def ledger(model: servers.Server) -> list[Object]:
    async with aiohttp.ClientSession() as session, session.get(f"{model.url}/_ledger") as response:
        found: list[Object] = await response.json()
        return found


def message(found: Object) -> str:
    failed: str = condition(found, "Failed")["message"]
    return failed


async def test_an_agent_completes_gated_steps_and_its_usage_is_what_the_model_charged(given: Given, model: servers.Server) -> None:
    found = await given.ended(trial(step("one"), step("two", "true"), step("three"), **await agent(given, model)))
    status = found["status"]
    assert condition(found, "Complete")["status"] == "True" and status["rewards"] == {"reward": 1.0}, status
    charged = Counter[str]()
    for entry in await ledger(model):
        (name,) = [each for each in ("one", "two", "three") if f"/tmp/{each}" in entry["body"]]
        charged.update({f"{name} in": entry["input"], f"{name} out": entry["output"], f"{name} requests": 1})
    used = {each["name"]: each["usage"] for each in status["steps"]}
    counted = {f"{name} in": each["inputTokens"] for name, each in used.items()}
    counted |= {f"{name} out": each["outputTokens"] for name, each in used.items()}
    counted |= {f"{name} requests": each["requests"] for name, each in used.items()}
    assert counted == charged and {each["source"] for each in used.values()} == {"Gateway"}
    assert status["usage"]["inputTokens"] == sum(each["inputTokens"] for each in used.values())


@pytest.mark.long
async def test_the_providers_key_is_nowhere_in_the_environment(given: Given, model: servers.Server) -> None:
    places = "/proc/[0-9]*/environ /proc/[0-9]*/cmdline /root /tmp /run /etc /logs"
    search = f"grep -rqsa '[{KEY[0]}]{KEY[1:]}' {places} && printf yes || printf no"
    spec = await agent(given, model)
    found = await given.ended(
        trial(step("search", f"{search} > /tmp/found"), Step("look", test=reward_for_text("/tmp/found", "no")), **spec)
    )
    assert found["status"]["rewards"]["reward"] == 1.0, found["status"]
    keys = {entry["key"] for entry in await ledger(model)}
    assert keys == {KEY}  # the gateway added the provider's key to every request


async def test_a_provider_that_fails_is_never_a_reward_of_0(given: Given, model: servers.Server) -> None:
    spec = await agent(given, model, "gpt-5-fail-500")
    found = await given.ended(trial(step("one"), **spec, infrastructureRetries=1))
    status = found["status"]
    assert status["failure"]["class"] == "Provider" and not {"rewards", "score"} & status.keys(), status
    assert [each["reason"] for each in status["attempts"]] == ["ProviderFailed", "ProviderFailed"]


@pytest.mark.long
async def test_a_rate_limit_is_waited_out_without_the_agent(given: Given, model: servers.Server) -> None:
    found = await given.ended(trial(step("one"), **await agent(given, model, "gpt-5-fail-429-2")))
    status = found["status"]
    assert status["rewards"] == {"reward": 1.0} and status.get("attempts", []) == [], status
    assert status["steps"][0]["usage"]["heldSeconds"] >= 1


@pytest.mark.long
async def test_a_key_that_the_provider_rejects_is_named_at_once(given: Given, model: servers.Server) -> None:
    found = await given.ended(trial(step("one"), **await agent(given, model, "gpt-5-fail-401")))
    status = found["status"]
    assert (status["failure"]["class"], status["failure"]["reason"]) == ("Configuration", "ModelAccessDenied"), status
    assert "key 'openai' of Secret 'keys'" in message(found)


async def run_in_host(given: Given, name: str, program: str) -> None:
    """Run a Python program in the trial's agent host."""
    pod = (await given.get(name))["status"]["podName"]
    stream = await given.client.open_exec(given.namespace, pod, "agent-host", ("python", "-c", program))
    while await stream.receive():
        pass
    await stream.close()


KILL_DAEMON = """
import os, pathlib, signal
for each in pathlib.Path("/proc").glob("[0-9]*"):
    if b"multistep_host.daemon" in (each / "cmdline").read_bytes():
        os.kill(int(each.name), signal.SIGKILL)
"""


@pytest.mark.long
async def test_a_class_that_ends_its_own_host_loses_the_step_and_nothing_else(given: Given, model: servers.Server) -> None:
    made = trial(step("one"), step("two", "touch /tmp/begun; sleep 600"), **await agent(given, model))
    name = (await given.applied(made))["metadata"]["name"]
    await given.until(name, lambda each: in_agent(each) and each["status"]["currentStep"] == "two")
    await given.in_pod(name, "sh", "-c", "until [ -e /tmp/begun ]; do sleep 0.05; done")
    await run_in_host(given, name, KILL_DAEMON)
    status = (await given.until(name, finished))["status"]
    assert status["failure"] == {"class": "Agent", "reason": "AgentHostError", "step": "two"}, status
    assert (status["score"], status["outcome"]) == (0.5, "AgentError"), status
    assert status["steps"][0]["rewards"] == {"reward": 1.0} and status.get("attempts", []) == []
