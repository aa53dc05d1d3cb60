"""The results volume is put back from an older copy while trials run: no trial gets another reward, and no agent is blamed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from multistep.api.trial.failure_table import VERIFIER_ENVIRONMENT_FAILED
from multistep.sources.load.load_trial import LoadedTrial
from multistep.telemetry.metrics import Metrics
from tests.support.fake_volume import FakeVolume
from tests.support.played import rewarded
from tests.support.world import CONFIG, MIXED, SEPARATE, World, manifest

LONG = {f"{step}/{phase}": 100.0 for step in "ab" for phase in ("agent", "verifier", "verifier/verifier")}
RESTORED = {"verifier": {"isolation": "Separate"}}


def two_steps(config: Any) -> Any:
    return {**config, "steps": config["steps"][:2]}


TRIALS: dict[str, Any] = {
    "shared": manifest(config=two_steps(CONFIG)),
    "separate": manifest(config=two_steps(SEPARATE)),
    "mixed": manifest(config=two_steps(MIXED)),
    "restored": manifest(RESTORED, config=two_steps(CONFIG)),
    "resumed": manifest({**RESTORED, "checkpoints": {"policy": "AfterStep"}}, config=two_steps(CONFIG)),
}


def results(world: World) -> dict[str, Any]:
    assert isinstance(world.volume, FakeVolume)
    return world.volume.results


async def ran(
    trial: Any, plans: dict[str, LoadedTrial], at_reconcile: Callable[[World, int], None], counters: Metrics | None = None
) -> World:
    world = World(trial=trial, durations=LONG, plans=plans, counters=counters)
    world.at_reconcile = lambda: at_reconcile(world, world.reconciles)
    await world.run()
    return world


@pytest.mark.parametrize("kind", TRIALS)
async def test_whenever_the_volume_was_copied_and_put_back_the_rewards_are_the_same(kind: str) -> None:
    trial, plans, copies = TRIALS[kind], dict[str, LoadedTrial](), dict[int, bytes]()
    calm = await ran(trial, plans, lambda world, number: copies.update({number: pickle.dumps(results(world))}))
    assert calm.condition[0] == "Complete"
    different = sorted({copy: number for number, copy in reversed(copies.items())}.values())  # the first of equal copies
    for back in range(2, len(copies) + 1):
        older = [number for number in different if number < back]
        for copied in {older[0], older[-1]}:

            def put_back(world: World, number: int, back: int = back, copied: int = copied) -> None:
                if number == back:
                    assert isinstance(world.volume, FakeVolume)
                    world.volume.results = pickle.loads(copies[copied])

            world = await ran(trial, plans, put_back, calm.metrics)
            where = f"copied at {copied}, put back at {back}: {world.condition} {world.errors}"
            assert world.condition[0] == "Complete" and world.status.rewards == calm.status.rewards, where
            assert [step.rewards for step in world.status.steps] == [step.rewards for step in calm.status.steps], where
            assert (world.status.failure, world.status.tampering) == (None, []), where
            assert {each.reason for each in world.status.attempts} <= {VERIFIER_ENVIRONMENT_FAILED, "RestoreFailed"}, where


async def test_a_verdict_that_the_volume_lost_costs_the_attempt_and_is_not_replaced_by_another() -> None:
    world = World(manifest(config=two_steps(SEPARATE)), durations=LONG)
    await world.run(until=lambda: world.status.current_step == "a")
    copy = pickle.dumps(results(world))
    await world.run(until=lambda: world.status.current_step == "b")
    results(world).clear()
    results(world).update(pickle.loads(copy))
    world.results = {"a/verifier/verifier": rewarded(txt="0.75")}
    await world.run()
    (lost,) = world.status.attempts
    assert (lost.reason, lost.steps[0].rewards) == (VERIFIER_ENVIRONMENT_FAILED, {"reward": 1})
    assert "the results volume lacks the verdict of step a" in (lost.message or "")
    assert world.condition[0] == "Complete" and world.status.steps[0].rewards == {"reward": 0.75}
    assert (world.status.failure, world.status.tampering) == (None, [])


async def test_files_that_the_volume_lost_before_the_verifier_got_them_are_collected_again() -> None:
    world = World(manifest(config=two_steps(SEPARATE)), durations=LONG)
    await world.run(until=lambda: world.status.current_step == "a")
    copy = pickle.dumps(results(world))
    await world.run(until=lambda: world.status.verifier is not None)
    results(world).clear()
    results(world).update(pickle.loads(copy))
    await world.run(until=lambda: world.status.current_step == "b")
    assert "a/agent" in world.kept.steps and world.status.attempts == []
    assert world.status.steps[0].rewards == {"reward": 1}
