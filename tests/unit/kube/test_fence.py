"""The fence of the API client: a replica that is not the leader can read, but not write."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from multistep.errors import NotLeading
from multistep.kube.client import ClusterClient
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.exec import MAX_CHUNK_BYTES
from multistep.kube.requests import WRITES as VERBS
from multistep.kube.requests import ApiRequests
from multistep.kube.resources import PODS, TRIALS
from multistep.runner_client.session import Session
from tests.support.api_server import ApiServer, serve
from tests.support.cluster_contract import CASES
from tests.support.exec_server import exec_server, relay_to
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_runner import FakeRunner
from tests.support.fenced import READS, Fenced

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}
TRIAL = {"resource": TRIALS, "namespace": "ns", "name": "t"}
WRITES: dict[str, dict[str, Any]] = {
    "apply_status": {**TRIAL, "uid": "u", "resource_version": "1", "status": {}},
    "patch": {**TRIAL, "changes": {}},
    "delete": TRIAL,
    "create": {"manifest": POD},
    "open_exec": {"namespace": "ns", "pod": "p", "container": "c", "argv": []},
}
CLIENT_ONLY = {"apply": {"manifest": POD}, "replace": {"manifest": POD}}


class Gate:
    leading = True
    asked = 0

    def check(self) -> None:
        self.asked += 1
        if not self.leading:
            raise NotLeading("not leading")


@asynccontextmanager
async def client_of(gate: Gate, *statuses: int, lost_after: int = 0) -> AsyncIterator[tuple[ClusterClient, ApiServer]]:
    """Run a client of a server that returns these statuses, then 200. lost_after: number of requests until the lease is lost."""
    left = list(statuses)

    async def handle(request: web.Request) -> web.StreamResponse:
        if len(server.seen) == lost_after:
            gate.leading = False
        return web.json_response({**POD, "items": [], "metadata": {"resourceVersion": "1"}}, status=left.pop(0) if left else 200)

    async with serve(handle) as server, ClusterClient(ApiRequests(server.connection(), check=gate.check)) as client:
        yield client, server


def test_every_call_of_a_cluster_is_known_here_as_a_read_or_a_write() -> None:
    calls = {name for name, _ in inspect.getmembers(Cluster, inspect.isfunction) if not name.startswith("_")}
    assert calls == READS | WRITES.keys()


@pytest.mark.parametrize("name", [*WRITES, *CLIENT_ONLY])
async def test_a_write_of_one_that_does_not_lead_is_not_even_sent(name: str) -> None:
    gate = Gate()
    gate.leading = False
    async with client_of(gate) as (client, server):
        with pytest.raises(NotLeading):
            await getattr(client, name)(**{**WRITES, **CLIENT_ONLY}[name])
    assert server.seen == []


async def test_every_verb_that_writes_is_checked_once_when_it_is_sent() -> None:
    gate = Gate()
    async with client_of(gate) as (client, server):
        for name, arguments in {**WRITES, **CLIENT_ONLY}.items():
            if name != "open_exec":
                await getattr(client, name)(**arguments)
    assert gate.asked == len(server.seen) == len(WRITES) - 1 + len(CLIENT_ONLY)
    assert {method for method, *_ in server.seen} == {method for method, _ in VERBS.values()}


@pytest.mark.parametrize("status", [429, 401])
async def test_a_write_whose_lease_is_lost_before_its_retry_is_not_sent_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.kube.requests.pause_seconds", lambda *_: 0.0)
    monkeypatch.setattr("multistep.kube.request_limit.MAX_PAUSE_SECONDS", 0.0)
    async with client_of(Gate(), status, lost_after=1) as (client, server):
        with pytest.raises(NotLeading):
            await client.create(POD)
    assert len(server.seen) == 1


async def test_a_write_that_waited_at_the_gate_is_checked_when_it_is_sent() -> None:
    gate = Gate()
    async with client_of(gate) as (client, server):
        requests = client._http.limit
        requests._closed_until = math.inf
        asked = asyncio.create_task(client.create(POD))
        while not requests._waiting:
            await asyncio.sleep(0)
        gate.leading, requests._closed_until = False, 0.0
        requests._give_slots()
        with pytest.raises(NotLeading):
            await asked
    assert server.seen == []


async def test_reading_is_for_everybody() -> None:
    gate = Gate()
    gate.leading = False
    async with client_of(gate) as (client, server):
        await client.get(TRIALS, "ns", "t")
        assert await client.list_all(PODS) == await client.list_metadata(TRIALS, "ns") == []
        assert [each async for each in client.iterate(TRIALS)] == []
    assert (len(server.seen), gate.asked) == (4, 0)


async def test_a_session_that_is_open_starts_nothing_once_the_lease_is_lost() -> None:
    gate, runner = Gate(), FakeRunner("uid")
    async with exec_server(relay_to(runner)) as server, ClusterClient(ApiRequests(server.connection(), check=gate.check)) as client:
        stream = await client.open_exec("ns", "p", "main", ["x"])
        async with Session(stream, pod_uid="uid") as session:
            await session.hello()
            gate.leading = False
            with pytest.raises(NotLeading):
                await session.start({"id": "1/a/agent", "argv": ["true"]})
    assert not runner.starts


async def test_each_frame_of_a_long_message_is_checked() -> None:
    gate = Gate()
    async with (
        exec_server(relay_to(FakeRunner("uid"))) as server,
        ClusterClient(ApiRequests(server.connection(), check=gate.check)) as client,
    ):
        stream = await client.open_exec("ns", "p", "main", ["x"])
        gate.asked = 0
        await stream.send(b"\0" * (2 * MAX_CHUNK_BYTES + 1))
        gate.leading = False
        await stream.send_eof()
        await stream.close()
    assert gate.asked == 3


# -- The class Fenced, which adds the same fence to an in-memory cluster


@pytest.mark.parametrize("name", [name for name in CASES if "lease" not in name and "metadata" not in name])
async def test_for_the_leader_the_simulated_fence_is_a_cluster_like_any_other(name: str) -> None:
    fenced: Any = Fenced(FakeCluster(pods_run=False), Gate().check)
    await CASES[name](fenced, "default")


@pytest.mark.parametrize("name", WRITES)
async def test_the_simulated_fence_sends_no_write_either(name: str) -> None:
    gate, cluster = Gate(), FakeCluster()
    gate.leading = False
    arguments: Mapping[str, Any] = WRITES[name]
    with pytest.raises(NotLeading):
        await getattr(Fenced(cluster, gate.check), name)(**arguments)
    assert cluster.faults.trace == []
