"""Limits of the results' port, which all pods of the cluster can reach, also those of agents."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from multistep.app.endpoints import Endpoints
from multistep.settings import Settings
from tests.unit.gateway.test_heads import Client

GET = b"GET /signing-key.pem HTTP/1.1\r\nHost: results\r\n"


@pytest.mark.parametrize("before", [[], [b"GET /none HTTP/1.1\r\nHost: results\r\n\r\n"], [GET + b"\r\n"]])
async def test_a_head_that_does_not_end_is_cut_off(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], before: list[bytes]
) -> None:
    """Otherwise one agent could fill the operator's memory with unfinished heads."""
    results = unused_tcp_port_factory()
    settings = Settings(results_dir=tmp_path, listen_host="127.0.0.1", results_port=results, metrics_port=0)
    unused = cast(Any, None)
    async with Endpoints(unused, unused, unused, None, public_key=b"key").served(settings):
        client = Client(*await asyncio.open_connection("127.0.0.1", results))
        for each in before:
            await client.send(each)
            assert (await client.answer())[0] in (200, 404)
        await client.send(GET, *(b"x-%d: %s\r\n" % (number, b"a" * 4000) for number in range(10)))
        await client.closed()
        client.writer.close()


async def test_the_operator_uses_all_file_descriptors_that_it_may_have(tmp_path: Path) -> None:
    """Otherwise one agent could occupy the first 1024 file descriptors, and no trial could continue."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most - 1), most))
    unused = cast(Any, None)
    settings = Settings(results_dir=tmp_path, listen_host="127.0.0.1", results_port=0, metrics_port=0)
    try:
        async with Endpoints(unused, unused, unused, None).served(settings):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
