"""Tasks are fetched from URLs and object stores."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from multistep.settings import BLOCKED_NETWORKS
from multistep.sources.fetch.fetch_messages import FetchRequest
from multistep.sources.load.task_cache import TaskCache
from multistep.sources.task.bundle import BundleEntry, digest_of, pack_directory, tar_chunks
from tests.support import servers
from tests.unit.sources.fetch_cases import fetched, refused, same

NO_TASK = gzip.compress(b"".join(tar_chunks((name, BundleEntry("file", 0o644, data=bytes(1000))) for name in ("a", "b", "c"))))

# -- tasks at URLs


@pytest.fixture
async def s3() -> AsyncIterator[servers.S3]:
    async with servers.s3() as server:
        yield server


async def test_a_file_in_an_object_store_is_had_with_its_keys(s3: servers.S3, cache: TaskCache, task: Path) -> None:
    data = pack_directory(task)
    (s3.directory / s3.bucket / "a b").mkdir()
    (s3.directory / s3.bucket / "a b/t.tar.gz").write_bytes(data)
    keys = {name: value for name, value in s3.environment.items() if name != "AWS_ALLOW_HTTP"}
    request = FetchRequest("url", f"s3://{s3.bucket}/a b/t.tar.gz", digest=digest_of(data), credentials=keys)
    found, bundle = await fetched(cache, request)
    assert found.revision == found.digest == digest_of(data) and same(bundle, task)
    wrong = keys | {"AWS_SECRET_ACCESS_KEY": "wrong-key"}
    anonymous = {"AWS_ENDPOINT_URL": s3.url}
    for credentials in (wrong, anonymous):
        error = await refused(
            cache, FetchRequest("url", request.location, digest=request.digest, scope="o", credentials=credentials)
        )
        assert error.reason == "TaskAccessDenied", error
    missing = FetchRequest("url", f"s3://{s3.bucket}/none", digest=digest_of(b""), credentials=keys)
    assert (await refused(cache, missing)).reason == "TaskNotFound"


class ScriptedServer:
    """A server that returns scripted responses by path. asked: path and Authorization header of each request."""

    def __init__(self) -> None:
        self.answers: dict[str, web.Response] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.server: TestServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, request.headers.get("Authorization")))
        if request.path == "/hang":
            await asyncio.sleep(60)
        if request.path == "/hang-in-body":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"x")
            await asyncio.sleep(60)
        return self.answers.get(request.path, web.Response(status=404))


async def _scripted_server() -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", scripted.serve)
    scripted.server = TestServer(app, host="127.0.0.1")
    await scripted.server.start_server()
    yield scripted
    await scripted.server.close()


@pytest.fixture
async def here() -> AsyncIterator[ScriptedServer]:
    async for each in _scripted_server():
        yield each


@pytest.fixture
async def there() -> AsyncIterator[ScriptedServer]:
    async for each in _scripted_server():
        yield each


async def test_a_redirect_elsewhere_takes_no_credentials_along(
    here: ScriptedServer, there: ScriptedServer, cache: TaskCache, task: Path
) -> None:
    data = pack_directory(task)
    here.answers["/t"] = web.Response(status=302, headers={"Location": f"{there.url}/t"})
    there.answers["/t"] = web.Response(body=data)
    request = FetchRequest("url", f"{here.url}/t", digest=digest_of(data), credentials={"token": "secret-token"})
    await fetched(cache, request)
    assert here.asked == [("/t", "Bearer secret-token")] and there.asked == [("/t", None)]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_with_errors_is_asked_again_later(here: ScriptedServer, cache: TaskCache, status: int) -> None:
    here.answers["/t"] = web.Response(status=status)
    assert (await refused(cache, FetchRequest("url", f"{here.url}/t", digest=digest_of(b"")))).transient


async def test_a_server_that_is_away_is_waited_for(cache: TaskCache) -> None:
    error = await refused(cache, FetchRequest("url", "http://127.0.0.1:1/t?X-Signature=very-secret", digest=digest_of(b"")))
    assert error.transient and "cannot be reached" in str(error) and "very-secret" not in str(error)


@pytest.mark.parametrize("path", ["hang", "hang-in-body"])
async def test_a_fetch_ends_at_its_limit_and_leaves_no_files(path: str, here: ScriptedServer, cache: TaskCache) -> None:
    error = await refused(cache, FetchRequest("url", f"{here.url}/{path}", digest=digest_of(b"")), seconds=0.2)
    assert error.transient and "within 0.2 s" in str(error)


@pytest.mark.parametrize(
    ("data", "rules", "reason"),
    [
        (b"x" * 2000, {"compressed_bytes": 1000}, "TaskTooLarge"),
        (b"no tar", {}, "InvalidSpec"),
        (NO_TASK, {"entries": 2}, "TaskTooLarge"),
        (NO_TASK, {"uncompressed_bytes": 2000}, "TaskTooLarge"),
        (NO_TASK, {}, "InvalidSpec"),
    ],
    ids=["compressed", "no tar", "entries", "uncompressed", "no task"],
)
async def test_what_is_too_large_or_no_task_is_refused(
    here: ScriptedServer, cache: TaskCache, data: bytes, rules: Mapping[str, Any], reason: str
) -> None:
    here.answers["/t"] = web.Response(body=data)
    assert (await refused(cache, FetchRequest("url", f"{here.url}/t", digest=digest_of(data)), **rules)).reason == reason


async def test_another_digest_is_refused(here: ScriptedServer, cache: TaskCache) -> None:
    here.answers["/t"] = web.Response(body=b"x")
    assert (await refused(cache, FetchRequest("url", f"{here.url}/t", digest=digest_of(b"y")))).reason == "TaskDigestMismatch"


# -- sources that the operator's rules reject


@pytest.mark.parametrize("kind", ["oci", "git", "url"])
async def test_addresses_where_clouds_serve_credentials_are_not_connected_to(
    kind: str, here: ScriptedServer, cache: TaskCache
) -> None:
    location = f"127.0.0.1:{here.server.port}/x" if kind == "oci" else f"{here.url}/x"
    error = await refused(cache, FetchRequest(kind, location, digest=digest_of(b"")), blocked_networks=BLOCKED_NETWORKS)  # type: ignore[arg-type]
    assert error.reason == "TaskSourceNotAllowed" and here.asked == []


async def test_nor_does_a_redirect_lead_there(here: ScriptedServer, cache: TaskCache) -> None:
    here.answers["/t"] = web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/meta-data/"})
    error = await refused(cache, FetchRequest("url", f"{here.url}/t", digest=digest_of(b"")), blocked_networks=("169.254.0.0/16",))
    assert error.reason == "TaskSourceNotAllowed" and len(here.asked) == 1


async def test_only_hosts_that_are_allowed_are_asked(here: ScriptedServer, cache: TaskCache) -> None:
    for kind in ("oci", "git", "url"):
        location = f"127.0.0.1:{here.server.port}/x" if kind == "oci" else f"{here.url}/x"
        error = await refused(cache, FetchRequest(kind, location, digest=digest_of(b"")), allowed_hosts=("*.example.com",))
        assert error.reason == "TaskSourceNotAllowed" and here.asked == []
