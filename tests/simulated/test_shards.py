"""Run operators of two shards in one cluster, beside the deployed one."""

from __future__ import annotations

from multistep.kube.resources import TRIALS
from multistep.kube.shard import LABEL_SHARD
from tests.e2e.given import Object, condition, finished, in_agent
from tests.simulated.given import HOLD, Given, OwnOperators, Step, trial
from tests.support.simulation.operator import Operator


def of(shard: str, solve: str, name: str) -> Object:
    made = trial(Step("a", solve=solve), name=name)
    made["metadata"]["labels"] = {LABEL_SHARD: shard}
    return made


async def test_each_operator_runs_the_trials_of_its_shard_and_touches_no_others(own: OwnOperators, shared: Operator) -> None:
    """Each of the operators searches for orphans; the test's own does so every second, and deletes them without a grace period."""
    given, ours, other = own.given, own.shard.name, shared.shard.name
    operator = await own.started(orphans_seconds="1", orphans_grace_seconds="0")
    shards = {"other": other, "ours": ours}
    for name, shard in shards.items():
        await given.applied(of(shard, HOLD, name))
    await given.applied(of(f"{ours}-x", "# nothing", "nobodys"))
    started = {name: await given.until(name, in_agent) for name in shards}

    assert f"[+] shard: trials with the label {LABEL_SHARD}={ours}, in all namespaces" in await operator.text("readyz")
    assert f'shard="{ours}"}} 1.0' in await operator.text("metrics")

    for name in shards:
        [pod] = await given.pods(name)
        assert pod["metadata"]["uid"] == started[name]["status"]["podUID"]
        await given.go(name)
    ended = {name: await given.until(name, finished) for name in shards}
    assert {name: each["status"]["rewards"] for name, each in ended.items()} == {name: {"reward": 1.0} for name in shards}
    assert [each["status"]["attempt"] for each in ended.values()] == [1, 1]
    assert await _has_results(operator, ended["ours"]) and not await _has_results(operator, ended["other"])

    waiting = await given.get("nobodys")
    assert condition(waiting, "Ready")["reason"] == "NotSeen" and LABEL_SHARD in condition(waiting, "Ready")["message"]
    await given.client.patch(TRIALS, given.namespace, "nobodys", {"metadata": {"labels": {LABEL_SHARD: ours}}})
    assert await _has_results(operator, await given.until("nobodys", finished))


async def _has_results(operator: Operator, found: Object) -> bool:
    return str(found["status"]["results"]).startswith(f"{operator.results_url}/")


async def test_the_deployed_operator_runs_the_trials_without_a_shard(unsharded: Given) -> None:
    done = await unsharded.ended(trial(Step("a")))
    assert done["status"]["rewards"] == {"reward": 1.0} and LABEL_SHARD not in (done["metadata"].get("labels") or {})
