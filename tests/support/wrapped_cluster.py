"""Clusters in memory that change the behaviour of some calls."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from tests.support.fake_cluster import FakeCluster


@dataclass
class Wrapped:
    """A wrapped cluster. Subclasses change the behaviour of some calls."""

    cluster: FakeCluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


@dataclass
class Jittery(Wrapped):
    """A cluster that delays each call at random, so that the calls of two operators interleave."""

    chance: random.Random

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.cluster, name)
        if name == "iterate":
            return call

        async def later(*args: Any, **options: Any) -> Any:
            for _ in range(self.chance.randint(0, 30)):
                await asyncio.sleep(0)
            try:
                return await call(*args, **options)
            finally:
                for _ in range(self.chance.randint(0, 30)):
                    await asyncio.sleep(0)

        return later
