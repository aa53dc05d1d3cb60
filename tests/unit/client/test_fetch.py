"""Test how results are found and read: through the API server, or by HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import nullcontext

import pytest

from multistep.client.results import fetch
from multistep.client.results.fetch import ServicePath, WebAddress, locate
from multistep.errors import StoreError, Unavailable
from tests.unit.cli.fakes import RESULTS, RESULTS_PATH, CliCluster


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        (RESULTS, ServicePath(RESULTS_PATH)),
        ("http://127.0.0.1:8080/results/x", WebAddress("http://127.0.0.1:8080/results/x")),
        ("service://a/b:80/x/%2e", ServicePath("/api/v1/namespaces/a/services/b:80/proxy/x/%2e")),
    ],
)
def test_where_results_are(uri: str, place: object) -> None:
    assert locate(uri) == place


@pytest.mark.parametrize("uri", ["s3://bucket/x", "service://ns", "service://ns/svc", "file:///etc/passwd", "http:///x", ""])
def test_where_results_cannot_be(uri: str) -> None:
    with pytest.raises(StoreError, match="does not support"):
        locate(uri)


class Replaced(CliCluster):
    """A cluster in which the first requests to the operator fail with the HTTP statuses in `codes`."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.codes = list(codes)
        self.served = {"/api/v1/namespaces/m/services/s:http/proxy/results/t": b"body"}

    async def raw_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        if self.codes:
            raise Unavailable("no endpoints available", status=self.codes.pop(0))
        async for chunk in super().raw_stream(path):
            yield chunk


@pytest.mark.parametrize(("codes", "patience", "comes"), [([503, 503], 20.0, True), ([503], -1.0, False), ([500], 20.0, False)])
async def test_an_operator_that_is_being_replaced_is_waited_for(
    codes: list[int], patience: float, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fetch, "_PATIENCE_SECONDS", patience)
    with nullcontext() if comes else pytest.raises(Unavailable, match="no endpoints"):
        found = [chunk async for chunk in fetch._read(Replaced(*codes), "service://m/s:http/results/t")]
        assert found == [b"body"]


@pytest.mark.parametrize(("status_code", "reported"), [(200, ""), (404, "no results exist at")])
async def test_results_over_http(status_code: int, reported: str) -> None:
    from aiohttp import web
    from aiohttp.test_utils import TestServer

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status_code, body=b"body")

    app = web.Application()
    app.router.add_get("/results/t", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/results/t"))
        if reported:
            with pytest.raises(StoreError, match=reported):
                [chunk async for chunk in fetch._read(CliCluster(), url)]
        else:
            assert b"".join([chunk async for chunk in fetch._read(CliCluster(), url)]) == b"body"
