"""Test the connection of the commands to a cluster."""

from __future__ import annotations

import json
from pathlib import Path

from aiohttp import web

from multistep.cli.cluster import connect
from multistep.cli.options import Target
from multistep.kube.resources import PODS
from tests.support.api_server import serve

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}


async def test_fields_that_commands_set_are_theirs_and_not_the_operators(tmp_path: Path) -> None:
    """Commands write with their own field manager. With the operator's field manager, the operator's next server-side apply would
    remove the fields that the commands set."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(POD)

    async with serve(handle) as server:
        path = tmp_path / "config"
        context = {"name": "c", "context": {"cluster": "k", "user": "u"}}
        cluster = {"name": "k", "cluster": {"server": server.url}}
        user = {"name": "u", "user": {"token": "t"}}
        path.write_text(json.dumps({"current-context": "c", "contexts": [context], "clusters": [cluster], "users": [user]}))
        async with connect(Target(kubeconfig=str(path))) as client:
            await client.create(POD)
            await client.apply(POD)
            await client.patch(PODS, "ns", "p", {})
    assert [url.partition("fieldManager=")[2].partition("&")[0] for _, url, *_ in server.seen] == ["multistep-cli"] * 3
