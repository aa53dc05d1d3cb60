"""Reads a trial's results from the URI in its status: all of them into a directory, or a part of one file."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from multistep.api.trial.status import TrialStatus, is_finished
from multistep.client.connection import Cluster
from multistep.client.outcome import outcome
from multistep.client.results.unpack import IN_MEMORY_BYTES, Unpacked, unpack
from multistep.errors import NotFound, StoreError, Unavailable, UsageError

_SILENCE_SECONDS = 60
_PART_BYTES = 1 << 20  # maximum response size of the results server
_PATIENCE_SECONDS, _PAUSE_SECONDS = 20.0, 1.0


@dataclass(frozen=True)
class ServicePath:
    """A URL path under which the API server proxies requests to a Service in the cluster."""

    path: str


@dataclass(frozen=True)
class WebAddress:
    """An http or https URL, which is requested directly."""

    url: str


def locate(uri: str) -> ServicePath | WebAddress:
    """Parse ``http(s)://...`` or ``service://NAMESPACE/SERVICE:PORT/PATH``. Raises StoreError if the URI has another form."""
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https") and parts.netloc:
        return WebAddress(uri)
    service, _, rest = parts.path.lstrip("/").partition("/")
    if parts.scheme != "service" or not parts.netloc or not service or not rest:
        raise StoreError(
            f"results are at {_shown(uri)}, which this version does not support; it supports http(s):// and service://"
        )
    namespace, name = quote(parts.netloc, safe=""), quote(service, safe=":")
    return ServicePath(f"/api/v1/namespaces/{namespace}/services/{name}/proxy/{rest}")


def check_directory(directory: Path, *, force: bool = False) -> None:
    """Raise UsageError if results cannot be written to the directory. force: accept a directory that is not empty."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: results are many files")
    if not force and directory.is_dir() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty: name a new directory, so that results of two trials do not mix")


def results_uri(name: str, status: TrialStatus) -> str:
    """Return the URI of a trial's results. Raises UsageError if the trial has not finished, StoreError if it has no results."""
    if status.results is not None:
        return status.results
    if is_finished(status):
        raise StoreError(f"trial {name} has no results: {outcome(status).why}")
    raise UsageError(f"trial {name} is {outcome(status).phase}: its results can be fetched when it has finished")


async def download(cluster: Cluster, uri: str, directory: Path) -> Unpacked:
    """Download and unpack results. uri: the trial's status.results. Raises StoreError or ClusterError if they cannot be read or
    written."""
    with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
        async with aclosing(_read(cluster, uri)) as chunks:
            async for chunk in chunks:
                file.write(chunk)
        file.seek(0)
        return await asyncio.to_thread(unpack, file, directory)


async def read_part(cluster: Cluster, uri: str, path: str, offset: int, limit: int) -> bytes | None:
    """Return at most ``limit`` bytes of a result file; None if the file is missing.

    path: the URL-quoted path of the file. offset: where to start, in bytes; a negative offset counts from the end of the file.
    """
    return await _part(cluster, uri, f"/files/{path}?offset={offset}&limit={limit}", limit)


async def read_log(cluster: Cluster, uri: str, offset: int, limit: int) -> bytes | None:
    """Return at most ``limit`` bytes of a build log, from ``offset`` (in bytes) on; None if the log does not exist."""
    return await _part(cluster, uri, f"?offset={offset}&limit={limit}", limit)


async def read_file(cluster: Cluster, uri: str, path: str) -> bytes | None:
    """Return a result file; None if the file is missing. path: the path of the file, not quoted."""
    found = [part async for part in _parts(cluster, uri, path)]
    return b"".join(found) if found else None


async def download_file(cluster: Cluster, uri: str, path: str, file: Path) -> None:
    """Write a result file to ``file``, whose directory is created; write nothing if it is missing. path: as for ``read_file``."""
    async for part in _parts(cluster, uri, path):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as target:
            target.write(part)


async def _parts(cluster: Cluster, uri: str, path: str) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a result file; nothing if it is missing. Raises StoreError if it is deleted meanwhile."""
    offset = 0
    while True:
        part = await read_part(cluster, uri, quote(path), offset, _PART_BYTES)
        if part is None and offset:
            raise StoreError(f"{path} was deleted while it was read")
        if part is None:
            return
        yield part
        offset += len(part)
        if len(part) < _PART_BYTES:
            return


async def read_whole(cluster: Cluster, uri: str, path: str, limit: int) -> bytes:
    """Return the response to a request of the URI with a path appended. Raises NotFound, and StoreError if the response has more
    than ``limit`` bytes."""
    found = bytearray()
    async with aclosing(_body(cluster, uri, path)) as source:
        async for chunk in source:
            found += chunk
            if len(found) > limit:
                raise StoreError(f"the answer from {_shown(uri)} has more than {limit} bytes")
    return bytes(found)


async def _part(cluster: Cluster, uri: str, query: str, limit: int) -> bytes | None:
    found = b""
    try:
        async with aclosing(_body(cluster, uri, query)) as source:
            async for chunk in source:
                found += chunk
                if len(found) >= limit:
                    break
    except NotFound:
        return None
    return found[:limit]


async def _read(cluster: Cluster, uri: str) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(_body(cluster, uri)) as source:
            async for chunk in source:
                yield chunk
    except NotFound as error:
        raise StoreError(f"no results exist at {_shown(uri)}: they, or the operator, were deleted") from error


def _body(cluster: Cluster, uri: str, query: str = "") -> AsyncGenerator[bytes, None]:
    """Return the response to a request of the URI with a path and query appended. Raises StoreError if the URI is invalid."""
    place = locate(uri)
    return _patient(cluster, place.path + query) if isinstance(place, ServicePath) else _get(place.url + query)


async def _patient(cluster: Cluster, path: str) -> AsyncGenerator[bytes, None]:
    """Yield a Service's response. Retry for some seconds while the Service has no endpoint, e.g. when the operator restarts."""
    patience, started = time.monotonic() + _PATIENCE_SECONDS, False
    while True:
        try:
            async with aclosing(cluster.raw_stream(path)) as source:
                async for chunk in source:
                    started = True
                    yield chunk
            return
        except Unavailable as error:
            if started or error.status != 503 or time.monotonic() > patience:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


async def _get(url: str) -> AsyncGenerator[bytes, None]:
    import aiohttp

    limits = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE_SECONDS, sock_read=_SILENCE_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=limits, trust_env=True) as session, session.get(url) as response:
            if response.status == 404:
                raise NotFound(f"GET {_shown(url)}", status=404)
            if response.status != 200:
                raise StoreError(f"GET {_shown(url)} was answered with HTTP {response.status}: check the operator's log")
            async for chunk in response.content.iter_any():
                yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise StoreError(f"GET {_shown(url)}: {type(error).__name__}: check that this machine can reach the operator") from error


def _shown(uri: str) -> str:
    """Return a URI for messages: without its path, which contains the access token."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}/..."
