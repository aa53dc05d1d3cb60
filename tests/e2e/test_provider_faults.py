"""Many trials while the model's provider fails, and a sweep's budget in US dollars."""

from __future__ import annotations

import asyncio
from functools import partial

import aiohttp
import pytest

from multistep.kube.resources import SWEEPS
from tests.e2e.given import Given, Object, condition, holds, trial
from tests.e2e.test_agents import OWN, agent, ledger, step
from tests.support import servers
from tests.support.waiting import eventually

TRIALS = 24
FAULTS = ("", "-fail-429", "-cut", "-fail-529", "-fail-500", "-drop")
FAULT_SECONDS = 60.0
BUDGET = 1.0
COST = {"input": 150e-6, "output": 600e-6}  # US dollars per token of o1-pro

pytestmark = pytest.mark.long


async def set_faults(model: servers.Server, faults: tuple[str, ...]) -> None:
    async with aiohttp.ClientSession() as session, session.put(f"{model.url}/_faults", json=faults) as response:
        assert response.status == 204


def sweep(name: str, spec: Object, attempts: int, **more: object) -> Object:
    """Return a sweep of one task of one step with one agent. spec: the trials' spec; more: fields of the sweep's spec."""
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": name},
        "spec": {
            "tasks": [{"name": "gate", "inline": trial(step("one", "true"))["spec"]["task"]["inline"]}],
            "agents": [{"name": "own", "agent": spec["agent"]}],
            "attempts": attempts,
            "parallelism": 20,
            "template": {"spec": {"environment": spec["environment"], "infrastructureRetries": 20}},
            **more,
        },
    }


async def has_failed(model: servers.Server, count: int) -> bool:
    """Return whether the model's provider has failed this many requests."""
    return len([entry for entry in await ledger(model) if entry["outcome"] != "answered"]) >= count


async def until_failures(model: servers.Server, count: int) -> None:
    """Wait until the model's provider has failed this many requests. The timeout applies to each of them."""
    for number in range(1, count + 1):
        await eventually(partial(has_failed, model, number))


async def test_no_trial_scores_0_because_its_provider_failed(given: Given, model: servers.Server) -> None:
    await set_faults(model, FAULTS)
    await given.applied(sweep("faults", await agent(given, model), TRIALS))
    await asyncio.gather(until_failures(model, TRIALS), asyncio.sleep(FAULT_SECONDS))
    await set_faults(model, ())
    found = await given.sweep_ended("faults")
    result = found["status"]["agents"][0]
    assert holds(found, "Complete") and (result["counted"], result["mean"]) == (TRIALS, 1.0), found["status"]


async def test_a_sweep_never_spends_more_than_its_budget(given: Given, model: servers.Server) -> None:
    spec = await agent(given, model, "o1-pro")
    limited = OWN.replace('"messages": messages', '"max_completion_tokens": 100, "messages": messages')
    await given.applied({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {"own_agent.py": limited}})
    await given.applied(sweep("spends", spec, 20, budget={"costUSD": BUDGET}))
    found = await given.sweep_until("spends", lambda each: holds(each, "Suspended"))
    assert "of 1 US dollars" in condition(found, "Suspended")["message"], found["status"]
    spent = await charged(model)
    assert 0 < spent <= BUDGET
    await given.client.patch(SWEEPS, given.namespace, "spends", {"spec": {"budget": {"costUSD": 10 * BUDGET}}})
    found = await given.sweep_ended("spends")
    result = found["status"]["agents"][0]
    assert holds(found, "Complete") and (result["counted"], result["mean"]) == (20, 1.0), found["status"]
    assert spent < await charged(model) <= 10 * BUDGET


async def charged(model: servers.Server) -> float:
    """Return the amount that the model's provider charged, in US dollars."""
    return sum(float(entry[name]) * price for entry in await ledger(model) for name, price in COST.items())
