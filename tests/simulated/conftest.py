"""Run the simulated tests: the real API server, a simulated node, and an operator of this checkout, one of each per worker.

A test's namespace belongs to the shard of its worker's operator, which runs beside the deployed operator and those of others.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import NAMESPACES
from tests.simulated.given import Given, OwnOperators
from tests.support.simulation.node import SimulatedNode
from tests.support.simulation.operator import Operator, Shard, made_shard


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNode]:
    """Run a simulated node."""
    with SimulatedNode(f"simulated-{secrets.token_hex(4)}", tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Run the operator of all tests of this worker that need none of their own."""
    operator = Operator(asyncio.run(_new_shard(tmp_path_factory.mktemp("operator"))))
    asyncio.run(operator.start())
    yield operator
    asyncio.run(operator.end())
    asyncio.run(_delete(operator.shard))


@pytest.fixture
async def given(node: SimulatedNode, shared: Operator) -> AsyncIterator[Given]:
    """Yield helpers for a new namespace in which all object states are recorded; delete the namespace afterwards."""
    async with await WatchingClient.connect() as client, Given(client, node, shared.shard.name).made() as made:
        yield made


@pytest.fixture
async def unsharded(node: SimulatedNode) -> AsyncIterator[Given]:
    """Yield helpers for a new namespace whose trials the deployed operator runs."""
    async with await WatchingClient.connect() as client, Given(client, node, "").made() as made:
        yield made


@pytest.fixture
async def own(node: SimulatedNode, tmp_path: Path) -> AsyncIterator[OwnOperators]:
    """Yield helpers for a new namespace and a shard of its own, with operators that the test starts and stops."""
    of = await _new_shard(tmp_path)
    async with await WatchingClient.connect() as client, Given(client, node, of.name).made() as given:
        operators = OwnOperators(given, of)
        yield operators
        await operators.end()
    await _delete(of)


async def _new_shard(directory: Path) -> Shard:
    async with await WatchingClient.connect() as client:
        return await made_shard(client, f"sim-{secrets.token_hex(4)}", directory)


async def _delete(of: Shard) -> None:
    async with await WatchingClient.connect() as client:
        await client.delete(NAMESPACES, None, of.name)
