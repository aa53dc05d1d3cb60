"""Test that the proxy cuts connections at the chosen points: check what the runner and the client receive."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from multistep.engine.journal.operations import Source
from multistep.errors import StreamLost, Unavailable
from multistep.kube.client import ClusterClient
from multistep.kube.exec import open_exec
from multistep.kube.requests import ApiRequests
from multistep.runner_client.session import Session
from tests.chaos.proxy import ANSWER_HALF, BODY_HALF, HALF, LOST, Chance, Place, Proxy, serving
from tests.support.api_server import ApiServer, serve
from tests.support.exec_server import exec_server, relay_to
from tests.support.fake_runner import FakeRunner

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}
UPLOAD, START = "1/a/tests", "1/a/agent"


class Once(Chance):
    """Breaks exactly one connection, at the given point; none if the point is None."""

    def __init__(self, place: Place | None) -> None:
        super().__init__(random.Random())
        self._place = place

    def breaks(self, what: str, moment: str) -> bool:
        if (what, moment) != self._place or self.hits:
            return False
        self.hits[what, moment] += 1
        return True


@asynccontextmanager
async def through(server: ApiServer, chance: Chance) -> AsyncIterator[Proxy]:
    """Route connections to the server through a proxy."""
    there = urlsplit(server.url)
    assert there.hostname and there.port
    listening = socket.create_server(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    proxy = Proxy((there.hostname, there.port), None, None, chance)
    async with serving(proxy, listening):
        yield proxy


@asynccontextmanager
async def session_to(runner: FakeRunner, chance: Chance) -> AsyncIterator[Callable[[], Awaitable[Session]]]:
    """Yield a function that opens sessions with a runner behind a proxy."""
    async with exec_server(relay_to(runner)) as server, through(server, chance):
        connection = server.connection()

        async def opened() -> Session:
            stream = await open_exec(connection, "ns", "pod", "main", ["/multistep/runner", "call"], attempts=1)
            return Session(stream, pod_uid="uid")

        yield opened
        await connection.close()


async def all_of_it(session: Session) -> None:
    await session.hello()
    await session.upload(UPLOAD, "/app", b"x" * 700_000)
    await session.start({"id": START, "argv": ["true"]})
    await session.download([Source("/app/out")], lambda chunk: None)
    await session.close()


def runner() -> FakeRunner:
    return FakeRunner("uid", files={"/app/out": b"out"})


async def test_without_a_broken_connection_everything_passes() -> None:
    there = runner()
    async with session_to(there, Once(None)) as opened:
        await all_of_it(await opened())
    assert len(there.uploads[UPLOAD]) == 700_000 and there.starts[START] == 1


@pytest.mark.parametrize(
    ("place", "uploaded", "started"),
    [
        (("hello", HALF), False, False),
        (("hello", LOST), False, False),
        (("upload", HALF), False, False),
        (("upload", LOST), False, False),
        (("upload", BODY_HALF), False, False),
        (("end of upload", HALF), False, False),
        (("end of upload", LOST), True, False),
        (("start", HALF), True, False),
        (("start", LOST), True, True),
        (("start", ANSWER_HALF), True, True),
        (("download", LOST), True, True),
        (("download", BODY_HALF), True, True),
    ],
)
async def test_a_cut_loses_its_data_and_the_same_again_is_done_once(place: Place, uploaded: bool, started: bool) -> None:
    there, chance = runner(), Once(place)
    async with session_to(there, chance) as opened:
        with pytest.raises(StreamLost):
            await all_of_it(await opened())
        assert (UPLOAD in there.uploads, bool(there.starts[START])) == (uploaded, started)
        await all_of_it(await opened())
    assert len(there.uploads[UPLOAD]) == 700_000 and there.starts[START] == 1
    assert chance.hits == {place: 1}


async def test_an_exec_may_be_lost_before_the_first_word() -> None:
    there, chance = runner(), Once(("exec", LOST))
    async with session_to(there, chance) as opened:
        await all_of_it(await opened())  # no StreamLost: aiohttp repeats a GET request that got no answer
    assert chance.hits and there.starts[START] == 1


async def test_a_lost_answer_of_a_request_means_that_it_was_done() -> None:
    done = []

    async def handle(request: web.Request) -> web.StreamResponse:
        done.append(request.method)
        return web.json_response({})

    async with (
        serve(handle) as server,
        through(server, Once(("POST", LOST))),
        ClusterClient(ApiRequests(server.connection())) as client,
    ):
        with pytest.raises(Unavailable):
            await client.create(POD)
        assert done == ["POST"]
        await client.create(POD)
        assert done == ["POST", "POST"]


async def test_all_connections_can_be_cut_at_once() -> None:
    entered = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        entered.set()
        await asyncio.sleep(30)
        return web.json_response({})

    async with (
        serve(handle) as server,
        through(server, Once(None)) as proxy,
        ClusterClient(ApiRequests(server.connection())) as client,
    ):
        asked = asyncio.create_task(client.create(POD))
        await entered.wait()
        assert proxy.cut_all() == 1
        with pytest.raises(Unavailable):
            await asked


def test_chance_breaks_only_while_active_and_less_often_where_it_broke() -> None:
    chance = Chance(random.Random(1))
    assert not any(chance.breaks("start", LOST) for _ in range(1000))
    chance.active = True
    first = sum(chance.breaks("start", LOST) for _ in range(200))
    then = sum(chance.breaks("start", LOST) for _ in range(200))
    assert first > then > 0 and chance.hits == {("start", LOST): first + then}
