"""Test the connection of the commands to a cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from multistep.cli import cluster as cluster_module
from multistep.cli.cluster import connect
from multistep.cli.terminal import print_err
from multistep.client.options import Target
from multistep.errors import Unavailable
from multistep.kube.resources import PODS
from tests.support.api_server import serve

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}


def kubeconfig(directory: Path, server: str, credentials: Mapping[str, object] | None = None) -> str:
    path = directory / "config"
    context = {"name": "c", "context": {"cluster": "k", "user": "u"}}
    cluster = {"name": "k", "cluster": {"server": server}}
    user = {"name": "u", "user": credentials or {"token": "t"}}
    path.write_text(json.dumps({"current-context": "c", "contexts": [context], "clusters": [cluster], "users": [user]}))
    return str(path)


async def test_fields_that_commands_set_are_theirs_and_not_the_operators(tmp_path: Path) -> None:
    """Commands write with their own field manager. With the operator's field manager, the operator's next server-side apply would
    remove the fields that the commands set. Unknown fields are errors, as with kubectl."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(POD)

    async with serve(handle) as server, connect(Target(kubeconfig=kubeconfig(tmp_path, server.url))) as client:
        await client.create(POD)
        await client.apply(POD)
        await client.patch(PODS, "ns", "p", {})
    assert all("fieldValidation=Strict" in url for method, url, *_ in server.seen if method != "GET")
    assert [url.partition("fieldManager=")[2].partition("&")[0] for _, url, *_ in server.seen] == ["multistep-cli"] * 3


@pytest.mark.parametrize(
    ("content", "context", "reported"),
    [
        (None, None, "kubeconfig {path} does not exist: set $KUBECONFIG, or use --kubeconfig and --context"),
        ("a: [", None, "kubeconfig {path} cannot be read: while parsing a flow node"),
        ("directory", None, "kubeconfig {path} cannot be read: Is a directory: set $KUBECONFIG"),
        ("", None, "no kubeconfig names a cluster: set $KUBECONFIG"),
        ("contexts: 3", "d", "the kubeconfig has no context 'd', only none: set $KUBECONFIG"),
        ("valid", "d", "the kubeconfig has no context 'd', only 'c': set $KUBECONFIG, or use --kubeconfig and --context"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None, context: str | None, reported: str
) -> None:
    path = tmp_path / "config"
    if content == "directory":
        path.mkdir()
    elif content == "valid":
        kubeconfig(tmp_path, "https://127.0.0.1:9")
    elif content is not None:
        path.write_text(content)
    with pytest.raises(Unavailable) as caught:
        async with connect(Target(kubeconfig=str(path), context=context)):
            pass
    assert str(caught.value).startswith(reported.format(path=path))


async def test_an_error_that_is_not_the_kubeconfigs_does_not_advise_to_change_it(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "interactiveMode": "Never"}
    path = kubeconfig(tmp_path, "https://127.0.0.1:9", {"exec": plugin})
    with pytest.raises(Unavailable, match=r"'no-such-plugin' failed: .*no-such-plugin'$"):
        async with connect(Target(kubeconfig=path)):
            pass


@pytest.mark.parametrize(("seconds", "silence", "silent"), [(0.3, 0.1, True), (0.0, 3600.0, False)])
async def test_a_server_that_does_not_answer_is_named_while_the_command_waits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    silence: float,
    silent: bool,
) -> None:
    monkeypatch.setattr(cluster_module, "SILENCE_SECONDS", silence)
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def recorded(delay: float, callback: Any, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, callback, *arguments, **options)
        if callback is print_err:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", recorded)

    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.json_response(POD)

    async with serve(handle) as server, connect(Target(kubeconfig=kubeconfig(tmp_path, server.url))) as client:
        await client.get(PODS, "ns", "p")
        assert [timer.cancelled() for timer in timers] == [True]  # by the answer: nothing is printed afterwards
        await client.get(PODS, "ns", "p")
        assert len(timers) == 1
    noted = f"waiting for the API server {server.url}\n"
    assert capsys.readouterr().err == (noted if silent else "")
