"""The client connects as a kubeconfig specifies, renews a rejected token, and uses the environment's proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from multistep.errors import ClusterError, Unavailable
from multistep.kube.client import ClusterClient
from tests.support.api_server import ApiServer, serve
from tests.unit.kube.api_answers import POD, Answer

pytestmark = pytest.mark.usefixtures("no_pauses")

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: u, namespace: team}}}}]
clusters: [{{name: k, cluster: {{server: "{server}"}}}}]
users: [{{name: u, user: {user}}}]
"""


@asynccontextmanager
async def connected(tmp_path: Path, server: ApiServer, user: object) -> AsyncIterator[ClusterClient]:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(server=server.url, user=json.dumps(user)))
    async with await ClusterClient.connect(kubeconfig=str(path)) as client:
        yield client


def only(token: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.json_response({"message": "who are you", "reason": "Unauthorized"}, status=401)
        return web.json_response(POD)

    return answer


async def test_a_kubeconfig_reports_server_token_and_namespace(tmp_path: Path) -> None:
    async with serve(only("t0")) as server, connected(tmp_path, server, {"token": "t0"}) as client:
        assert client.namespace == "team"
        await client.create(POD)


async def test_a_token_that_was_refused_is_asked_for_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    credential = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", f"printf '{credential}' \"$(cat {token})\""],
        "interactiveMode": "Never",
    }
    async with serve(only("new")) as server, connected(tmp_path, server, {"exec": plugin}) as client:
        token.write_text("new")
        await asyncio.gather(*(client.create(POD) for _ in range(3)))
        await client.create(POD)
    asked = [authorization for _, _, authorization, _ in server.seen]
    assert asked.count("Bearer old") == 3
    assert asked[-1] == "Bearer new"


@pytest.mark.parametrize(
    ("command", "reported"), [("no-such-plugin", "No such file or directory"), ("false", "exec: process returned 1")]
)
async def test_a_credential_plugin_that_fails_is_reported(tmp_path: Path, command: str, reported: str) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "interactiveMode": "Never"}
    async with serve(only("t0")) as server:
        with pytest.raises(Unavailable, match=f"the exec plugin '{command}' failed: .*{reported}"):
            async with connected(tmp_path, server, {"exec": plugin}):
                pass
    assert server.seen == []


async def test_a_credential_plugin_that_fails_after_a_rejection_is_reported(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    credential = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"old"}}'
    script = f"cat {token} >&2 && printf '{credential}'"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", script],
        "interactiveMode": "Never",
    }
    async with serve(only("new")) as server, connected(tmp_path, server, {"exec": plugin}) as client:
        token.unlink()
        with pytest.raises(Unavailable, match=r"cannot renew the credentials .* 'sh' failed: exec: .*No such file"):
            await client.create(POD)


async def test_a_token_that_stays_refused_is_an_error(tmp_path: Path) -> None:
    async with serve(only("none")) as server, connected(tmp_path, server, {"token": "t0"}) as client:
        with pytest.raises(ClusterError, match=r"who are you.*: the API server rejects the credentials") as caught:
            await client.create(POD)
    assert caught.value.status == 401


@pytest.mark.parametrize("content", [None, "", "[]", "current-context: x", "{"])
async def test_a_kubeconfig_that_is_none_is_unavailable(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Unavailable, match="no usable cluster configuration"):
        await ClusterClient.connect(kubeconfig=str(path))


@pytest.mark.parametrize(
    ("no_proxy", "proxy"),
    [("", "http://proxy:1"), ("10.0.0.0/8", None), ("10.1.2.3", None), ("example.org", "http://proxy:1")],
)
def test_the_environments_proxy_is_used_unless_it_is_excepted(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, proxy: str | None
) -> None:
    from multistep.kube.connection import _proxy_of_environment

    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert _proxy_of_environment("https://10.1.2.3:6443") == proxy
