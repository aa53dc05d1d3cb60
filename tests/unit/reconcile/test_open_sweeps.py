"""Open sweeps in a cluster in memory: tasks are appended while trials run, and the weights of their model are updated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from multistep.api.common.base_model import Metadata
from multistep.api.sweep.sweep import SweepWeightsStatus
from multistep.errors import GatewayUnavailable
from multistep.reconcile.sweep.reconcile_sweep import DRAIN_SECONDS
from tests.support.sweep_world import KEY, START, SweepWorld, assert_each_once, sweep

CREDENTIALS = [{"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}]
HOSTED = {"name": "a", "agent": {"name": "terminus-2", "model": "openai/policy", "access": "Gateway", "credentials": CREDENTIALS}}
TASK: dict[str, Any] = {"inline": {"config": {}}}


@dataclass
class Gateway:
    """A model gateway that records what it is told. in_flight: the numbers of requests in flight that it answers, in turn."""

    in_flight: list[int] = field(default_factory=list)
    told: list[tuple[str, bool]] = field(default_factory=list)
    is_down: bool = False

    async def set_weights(self, sweep: Metadata, version: str, *, paused: bool) -> int:
        if self.is_down:
            raise GatewayUnavailable("no answer")
        assert (sweep.namespace, sweep.name, sweep.uid) == (*KEY, "sweep-uid")
        self.told.append((version, paused))
        return self.in_flight.pop(0) if self.in_flight else 0


def opened(**spec: Any) -> dict[str, Any]:
    """Return an open sweep of one task and agent."""
    agents = [{"name": "a", "agent": {"name": "nop"}}]
    return sweep(**{"open": True, "order": "Tasks", "tasks": [{"name": "t0", **TASK}], "agents": agents, **spec})


def append(world: SweepWorld, *names: str) -> None:
    tasks = world.cluster.objects["TrialSweep", *KEY]["spec"]["tasks"]
    world.change(tasks=[*tasks, *({"name": name, **TASK} for name in names)])


async def settled(world: SweepWorld) -> float | None:
    """Reconcile until the sweep waits. Return for how many seconds."""
    while (seconds := await world.reconcile()) == 0.0:
        pass
    return seconds


async def finish_all(world: SweepWorld) -> None:
    """Finish all trials, also those that are created when others finish."""
    await settled(world)
    while world.active:
        world.end(world.active[0])
        await settled(world)
    world.now += 10.0
    await settled(world)


async def test_an_open_sweep_creates_the_trials_of_appended_tasks_and_ends_when_it_is_closed() -> None:
    world = SweepWorld(opened())
    await finish_all(world)
    assert world.why == ("Running", "Running")
    assert world.status.conditions[0].message == "2 of 2 trials were created; spec.tasks may get more entries (spec.open)"
    names = {each["metadata"]["name"] for each in world.trials}
    append(world, "t1", "t2")
    await finish_all(world)
    assert world.status.trials.finished == 6 and names < {each["metadata"]["name"] for each in world.trials}
    world.change(open=False)
    await settled(world)
    assert world.why == ("Complete", "SweepComplete")
    assert_each_once(world)


async def test_an_open_sweep_without_its_client_fails_also_if_no_trial_is_active() -> None:
    world = SweepWorld(opened(lease={"seconds": 25}))
    await finish_all(world)
    world.now = START + 100.0
    await settled(world)
    assert world.why == ("Failed", "LeaseExpired")


async def test_weights_reach_the_gateway_once_before_the_first_trial_and_again_after_a_restart() -> None:
    gateway = Gateway()
    world = SweepWorld(opened(agents=[HOSTED], weights={"version": "1"}), models=gateway)
    gateway.is_down = True
    await settled(world)
    assert not world.trials and isinstance(world.errors[-1], GatewayUnavailable)
    gateway.is_down = False
    await settled(world)
    assert len(world.trials) == 2 and gateway.told == [("1", False)]
    await settled(world)
    world.sweeps = world.fresh()
    await settled(world)
    assert gateway.told == [("1", False)] * 2
    assert world.status.weights is not None and world.status.weights.version == "1"


async def test_a_pause_is_complete_when_no_request_is_in_flight() -> None:
    gateway = Gateway()
    world = SweepWorld(opened(agents=[HOSTED], weights={"version": "1"}), models=gateway)
    await settled(world)
    gateway.in_flight = [2, 1, 0]
    world.change(weights={"version": "1", "paused": True})
    seen = []
    for _ in range(3):
        seconds = await settled(world)
        assert world.status.weights is not None and world.status.weights.paused
        seen.append((world.status.weights.in_flight, seconds))
    assert seen == [(2, DRAIN_SECONDS), (1, DRAIN_SECONDS), (0, None)]
    world.change(weights={"version": "2", "paused": False})
    await settled(world)
    assert gateway.told[-1] == ("2", False)
    assert world.status.weights == SweepWeightsStatus(version="2", paused=False, in_flight=0)


async def test_a_sweep_that_halts_does_not_wait_for_the_gateway() -> None:
    gateway = Gateway()
    world = SweepWorld(opened(agents=[HOSTED], weights={"version": "1"}), models=gateway)
    await settled(world)
    gateway.is_down = True
    world.change(weights={"version": "2"}, stop=True)
    await finish_all(world)
    assert world.why == ("Failed", "Stopped") and not world.errors


async def test_weights_without_a_gateway_are_reported() -> None:
    world = SweepWorld(opened(agents=[HOSTED], weights={}))
    await settled(world)
    assert "the operator has no model gateway" in str(world.errors[-1])


@pytest.mark.parametrize("restart", [False, True])
async def test_the_object_of_an_open_sweep_stays_small_whatever_it_has_run(restart: bool) -> None:
    """A client opens a new sweep before the list of tasks is too long; the status does not grow with it."""
    world = SweepWorld(opened(parallelism=100))
    await finish_all(world)
    before = len(str(world.cluster.objects["TrialSweep", *KEY]["status"]))
    append(world, *(f"t{number}" for number in range(1, 40)))
    world.sweeps = world.fresh() if restart else world.sweeps
    await finish_all(world)
    assert world.status.trials.finished == 80
    assert len(str(world.cluster.objects["TrialSweep", *KEY]["status"])) < before + 200
