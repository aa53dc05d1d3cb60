"""Drains of a trial's node: its pods can be evicted, or PodDisruptionBudgets make the drain wait."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.errors import Conflict, Unavailable
from multistep.reconcile.queue.work_queue import SOON_SECONDS
from tests.support.faults import Faults
from tests.support.world import KEY, MIXED, World, manifest

WAIT = {"drain": "Wait"}
EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DISRUPT = "karpenter.sh/do-not-disrupt"
AGENT = {"a/agent": 100.0}


def budgets(world: World) -> list[str]:
    return [name.removesuffix("-trial-uid") for kind, _, name in world.cluster.objects if kind == "PodDisruptionBudget"]


def reported(world: World) -> dict[str, str]:
    return dict(world.cluster.objects["Pod", KEY[0], "t-1"]["metadata"]["annotations"])


async def at_work(settings: dict[str, Any], spec: dict[str, Any] | None = None, **options: Any) -> World:
    world = World(trial=manifest(spec), durations=AGENT, settings=settings, **options)
    await world.reconcile()
    return world


async def test_a_pod_may_be_moved() -> None:
    world = await at_work({})
    assert reported(world)[EVICT] == "true" and DISRUPT not in reported(world)
    assert budgets(world) == []
    world.pod_status(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}])
    await world.run()
    assert world.condition[0] == "Complete"
    assert [each.reason for each in world.status.attempts] == ["EvictionByEvictionAPI"]
    assert not any("disruption" in each.lower() for each in world.cluster.writes)


async def test_a_drain_waits_for_a_pod_by_a_budget_of_its_own() -> None:
    world = await at_work(WAIT)
    assert (reported(world)[EVICT], reported(world)[DISRUPT]) == ("false", "true")
    assert budgets(world) == ["t-1"]
    budget = world.cluster.objects["PodDisruptionBudget", KEY[0], "t-1-trial-uid"]
    pod = world.cluster.objects["Pod", KEY[0], "t-1"]
    assert budget["spec"]["minAvailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert budget["spec"]["selector"]["matchLabels"]["multistep.dev/pod"] == "t-1"
    assert budget["metadata"]["ownerReferences"][0]["uid"] == "trial-uid"
    writes = world.cluster.writes
    assert writes.index("create PodDisruptionBudget default/t-1-trial-uid") < writes.index("create Pod default/t-1")


@pytest.mark.parametrize(
    "spec", [{"podCleanup": "Never"}, {"podCleanup": "Never", "stop": True}, {}], ids=["kept", "stopped", "gone"]
)
async def test_what_is_finished_holds_no_drain_up(spec: dict[str, Any]) -> None:
    world = await at_work(WAIT, {key: value for key, value in spec.items() if key != "stop"})
    world.change_trial(**spec)
    await world.run()
    assert world.condition[0] in ("Complete", "Failed")
    assert (budgets(world), bool(world.pods)) == ([], spec == {"podCleanup": "Never"})


async def test_a_pod_that_was_lost_or_released_leaves_no_budget() -> None:
    world = await at_work(WAIT, {"suspendPolicy": "Release"})
    world.cluster.remove("Pod", *KEY[:1], "t-1")
    await world.run(until=lambda: world.pods == ["t-2"])
    assert budgets(world) == ["t-2"]
    world.change_trial(suspend=True)
    await world.run()
    assert (world.condition[1], budgets(world)) == ("Released", [])


async def test_a_verifiers_pod_is_waited_for_too() -> None:
    world = World(trial=manifest(config=MIXED), durations={"a/verifier/verifier": 40.0}, settings=WAIT)
    await world.run(until=lambda: world.pods == ["t-1", "t-1-v0"])
    assert budgets(world) == ["t-1", "t-1-v0"]
    await world.run(until=lambda: world.status.current_step == "b")
    assert budgets(world) == ["t-1"] or world.condition[0] == "Complete"
    await world.run()
    assert budgets(world) == []


async def test_a_pod_template_may_set_what_autoscalers_read() -> None:
    template = {"metadata": {"annotations": {EVICT: "false"}}}
    world = await at_work({}, {"environment": {"podTemplate": template}})
    assert reported(world)[EVICT] == "false"


@pytest.mark.parametrize("at", range(1, 12))
async def test_a_budget_is_created_once_whenever_a_call_fails(at: int) -> None:
    world = World(settings=WAIT, faults=Faults().fail(at, Unavailable("no answer")))
    await world.run()
    assert (world.condition[0], budgets(world), world.pods) == ("Complete", [], [])


CONTENDED = Conflict("Operation cannot be fulfilled on resourcequotas: the object has been modified", status=409, reason="Conflict")


@pytest.mark.parametrize("created", ["Pod default/t-1", "PodDisruptionBudget default/t-1-trial-uid"])
async def test_an_object_that_a_contended_quota_refused_is_created_soon(created: str) -> None:
    world = World(settings=WAIT, durations=AGENT)
    refused = 0

    def refuse() -> None:
        nonlocal refused
        if world.faults.trace[-1] == f"create {created} before" and refused < 2:
            refused += 1
            raise CONTENDED

    world.faults.at_point = refuse
    for tries in (1, 2):
        assert await world.reconcile() == SOON_SECONDS
        assert (refused, world.pods, world.errors) == (tries, [], [])
    await world.run(until=lambda: world.pods)
    assert budgets(world) == ["t-1"]
    await world.run()
    assert (world.condition[0], world.status.attempt) == ("Complete", 1)
