"""Test that the servers for tests answer real clients and stop after the test."""

from __future__ import annotations

import aiohttp
import pytest

from tests.support.servers import prometheus, registry, s3


async def _status(url: str, headers: dict[str, str] | None = None) -> int:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status


async def test_an_s3_server_rejects_requests_without_a_signature() -> None:
    async with s3() as server:
        assert await _status(f"{server.url}/{server.bucket}/key") == 403
        assert (server.directory / server.bucket).is_dir()
    with pytest.raises(aiohttp.ClientConnectorError):
        await _status(server.url)


async def test_a_private_registry_wants_the_password() -> None:
    async with registry(private=True) as server:
        assert await _status(f"{server.url}/v2/") == 401
        assert (
            await _status(f"{server.url}/v2/", {"Authorization": aiohttp.encode_basic_auth(server.username, server.password)})
            == 200
        )


async def test_a_prometheus_takes_its_configuration() -> None:
    async with (
        prometheus({"global": {"scrape_interval": "7s"}}) as server,
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}/api/v1/status/config") as response,
    ):
        assert "scrape_interval: 7s" in (await response.json())["data"]["yaml"]
