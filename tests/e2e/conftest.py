"""The end-to-end tests run against the cluster that KUBECONFIG names, with the operator from its image inside it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from localkube.config import load_config
from localkube.targets import Local, choose
from multistep.cluster.client import Client
from tests.e2e.given import Given

# Chaos reaches below Kubernetes (processes, network, containerd), which only our own cluster lets it do.
collect_ignore = [] if isinstance(choose(load_config()), Local) else ["test_chaos.py"]


@pytest.fixture
async def given() -> AsyncIterator[Given]:
    """A fresh namespace, deleted afterwards."""
    namespace = f"e2e-{secrets.token_hex(4)}"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    async with await Client.connect() as client:
        await client.create(manifest)
        yield Given(client, namespace)
        await client.delete(await client.resource_of(manifest), None, namespace)
