"""Results over HTTP: each request needs the token, and reaches results only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from multistep.errors import StoreError
from multistep.store import results_server as server
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume

from .helpers import KEY, keep, member, opened, tar

Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client(volume: ResultsVolume) -> AsyncIterator[Client]:
    app = web.Application()
    server.add_routes(app, volume)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_the_public_key_is_public(volume: ResultsVolume, client: Client) -> None:
    assert (await client.get("/signing-key.pem")).status == 404
    app = web.Application()
    server.add_routes(app, volume, public_key=b"PEM")
    async with TestClient(TestServer(app)) as signed:
        assert await (await signed.get("/signing-key.pem")).read() == b"PEM"


async def test_results_come_as_a_tar(volume: ResultsVolume, client: Client) -> None:
    await keep(volume, tar(member("0/a", b"text")))
    response = await client.get(volume.access.uri("", KEY))
    assert response.status == 200
    assert response.content_type == "application/x-tar"
    assert "steps/one/agent/a" in opened(await response.read())


@pytest.mark.parametrize(
    "path",
    [
        "/results",
        "/results/default",
        "/results/default/trial-1/{uid}",
        "/results/default/trial-1/{uid}/",
        "/results/default/trial-1/{uid}/{token}x",
        "/results/default/trial-1/{uid}/{token}/result.json",
        "/results/default/trial-1/{uid}/" + "0" * 32,
        "/results/default/trial-2/{uid}/{token}",
        "/results/..%2Fx/trial-1/{uid}/{token}",
        "/results/default/%2e%2e/{uid}/{token}",
        "/results/default/trial-1/{uid}/%C3%A9",
    ],
)
async def test_anything_else_is_not_found(volume: ResultsVolume, client: Client, path: str) -> None:
    await keep(volume, tar(member("0/a", b"text")))
    response = await client.get(path.format(uid=KEY.uid, token=volume.access.token(KEY)))
    assert response.status == 404


async def test_a_trial_without_results_is_not_found_even_with_its_token(volume: ResultsVolume, client: Client) -> None:
    assert (await client.get(volume.access.uri("", KEY))).status == 404


async def test_what_breaks_off_cannot_be_taken_for_whole(
    volume: ResultsVolume, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(volume, tar(member("0/a", b"text")))

    async def broken(_: TrialKey) -> AsyncGenerator[bytes, None]:
        yield bytes(1024)
        raise StoreError("the disk is gone")

    monkeypatch.setattr(volume, "archive", broken)
    with pytest.raises(aiohttp.ClientError):
        await (await client.get(volume.access.uri("", KEY))).read()


async def test_more_downloads_than_are_allowed_at_once_wait_for_each_other(
    volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_DOWNLOADS", 2)
    running: list[int] = []
    most, two = 0, asyncio.Barrier(2)

    async def slow(_: TrialKey) -> AsyncGenerator[bytes, None]:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        await two.wait()  # until both allowed downloads are running
        await asyncio.sleep(0.02)
        yield b"all"
        running.pop()

    await keep(volume, tar())
    monkeypatch.setattr(volume, "archive", slow)
    app = web.Application()
    server.add_routes(app, volume)
    async with TestClient(TestServer(app)) as client:
        assert await asyncio.gather(*(_read(client, volume) for _ in range(6))) == [b"all"] * 6
    assert most == 2


async def _read(client: Client, volume: ResultsVolume) -> bytes:
    return await (await client.get(volume.access.uri("", KEY))).read()


@pytest.mark.parametrize(
    ("path", "query", "status", "body"),
    [
        ("steps/one/agent/a", "", 200, b"0123456789"),
        ("steps/one/agent/a", "?offset=7&limit=2", 200, b"78"),
        ("steps/one/agent/a", "?offset=-3", 200, b"789"),
        ("steps/one/agent/a", "?offset=-99&limit=1", 200, b"0"),
        ("steps/one/agent/a", "?offset=99", 200, b""),
        ("steps/one/agent/a", "?limit=0", 400, None),
        ("steps/one/agent/a", "?limit=9999999", 400, None),
        ("steps/one/agent/a", "?offset=x", 400, None),
        ("steps/one/agent", "", 404, None),
        ("steps/one/agent/b", "", 404, None),
        ("steps/one/agent/link", "", 404, None),
        ("steps%2F..%2F..%2F..%2F.key", "", 404, None),
        ("%2Fetc%2Fpasswd", "", 404, None),
        (".attempt", "", 404, None),
        ("a%00b", "", 404, None),
    ],
)
async def test_a_part_of_one_file_can_be_read(
    volume: ResultsVolume, client: Client, path: str, query: str, status: int, body: bytes | None
) -> None:
    await keep(volume, tar(member("0/a", b"0123456789"), member("0/link", kind=b"2", target="/etc/passwd")))
    response = await client.get(f"{volume.access.uri('', KEY)}/files/{path}{query}")
    assert response.status == status
    assert body is None or await response.read() == body


async def test_a_part_needs_the_token(volume: ResultsVolume, client: Client) -> None:
    await keep(volume, tar(member("0/a", b"text")))
    assert (await client.get(f"{volume.access.uri('', KEY)[:-1]}x/files/steps/one/agent/a")).status == 404
