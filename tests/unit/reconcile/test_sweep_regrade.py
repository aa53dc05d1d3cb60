"""A sweep that regrades another one: it starts when that one is finished."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.reconcile.starting_points import GRACE_SECONDS
from multistep.reconcile.sweep_regrade import SOURCE_SECONDS
from tests.support.sweep_world import KEY, START, SweepWorld, assert_each_once, sweep

REGRADE = sweep(regrade={"sweep": "former"})


def former(phase: str) -> dict[str, Any]:
    held = {"type": phase, "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    metadata = {"name": "former", "namespace": KEY[0], "uid": "former-uid", "generation": 1}
    return {**sweep(), "metadata": metadata, "status": {"phase": phase, "conditions": [held]}}


@pytest.mark.parametrize("end", ["Complete", "Failed"])
async def test_it_waits_for_an_active_sweep_and_creates_no_trial_meanwhile(end: str) -> None:
    world = SweepWorld(manifest=REGRADE)
    world.cluster.put(former("Running"))
    assert [await world.reconcile() for _ in range(3)] == [SOURCE_SECONDS] * 3
    assert world.why == ("Pending", "SourceActive") and world.trials == []
    world.cluster.put(former(end))
    await world.run()
    assert_each_once(world)
    assert world.why == ("Complete", "SweepComplete")


@pytest.mark.parametrize(("age", "waits"), [(0.0, True), (GRACE_SECONDS, False)])
async def test_a_sweep_that_does_not_exist_is_awaited_shortly_as_it_may_be_created_later(age: float, waits: bool) -> None:
    """Trials of a deleted sweep may be kept."""
    created = {**REGRADE["metadata"], "creationTimestamp": "2023-11-14T22:13:20Z"}
    world = SweepWorld(manifest={**REGRADE, "metadata": created})
    world.now = START + age
    await world.reconcile()
    assert (world.trials == []) == waits
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
