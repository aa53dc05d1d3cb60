"""Run the end-to-end tests against the cluster that KUBECONFIG names, in which the operator is deployed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from localkube.config import load_config
from localkube.targets import Local, choose
from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import NAMESPACES
from tests.e2e.given import Given, made_namespace
from tests.support import servers
from tests.support.simulation.operator import Shard, made_shard

# The chaos tests kill processes, redirect traffic and restart containerd, which only a localkube cluster allows.
collect_ignore = [] if isinstance(choose(load_config()), Local) else ["test_chaos.py"]


@pytest.fixture
async def given() -> AsyncIterator[Given]:
    """Yield helpers for a new namespace in which all object states are recorded; delete the namespace afterwards."""
    namespace = f"e2e-{secrets.token_hex(4)}"
    async with await WatchingClient.connect() as client:
        await made_namespace(client, namespace)
        given = Given(client, namespace)
        async with given.recorder:
            yield given
        await client.delete(NAMESPACES, None, namespace)


@pytest.fixture
async def shard(given: Given, tmp_path: Path) -> AsyncIterator[Shard]:
    """Yield a shard for operators that the test runs on this machine. Their trials need its label (tests.e2e.given.in_shard)."""
    made = await made_shard(given.client, f"{given.namespace}-system", tmp_path)
    yield made
    await given.client.delete(NAMESPACES, None, made.name)


@pytest.fixture
async def model() -> AsyncIterator[servers.Server]:
    """Yield a scripted model server on the node, which the model gateway reaches."""
    async with servers.model(servers.node()) as running:
        yield running
