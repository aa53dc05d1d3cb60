"""Durations, step names and a complete run, for tests of the reconciler."""

from __future__ import annotations

from typing import Any

from tests.support.world import World

LONG = {"a/agent": 100.0, "b/verifier": 40.0, "c/agent": 200.0}
ALL = ["a", "b", "c"]


async def ran(**options: Any) -> World:
    world = World(**options)
    await world.run()
    return world
