"""The end-to-end tests run against the cluster that KUBECONFIG names, with the operator from its image inside it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from multistep.cluster.client import Client
from tests.e2e.given import Given


@pytest.fixture
async def given() -> AsyncIterator[Given]:
    """A fresh namespace, deleted afterwards."""
    namespace = f"e2e-{secrets.token_hex(4)}"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    async with await Client.connect() as client:
        await client.create(manifest)
        yield Given(client, namespace)
        await client.delete(await client.resource_of(manifest), None, namespace)
