"""Serves results over HTTP to readers that have the trial's token. A reader gets a tar stream of the whole trial or parts of its
files. Also serves the history of a namespace to readers that have the namespace's token.

The token is part of the URL in the trial's status, so access logs must not contain URLs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from aiohttp import web

from multistep.errors import StoreError
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.files.trial_key import ResultsStore, TrialKey
from multistep.store.history import History
from multistep.store.results_volume import ResultsVolume

T = TypeVar("T")

MAX_DOWNLOADS = 8  # maximum number of concurrent downloads. Further ones are queued
WRITE_TIMEOUT_SECONDS = 60.0  # maximum time to send a chunk, so that a stalled reader does not block a download

MAX_PART_BYTES = 1024 * 1024

PATH = "/results/{namespace}/{name}/{uid}/{token}"
KEY_PATH = "/signing-key.pem"
FILE_PATH = PATH + "/files/{path:.+}"
BUILD_PATH = "/builds/{namespace}/{name}/{uid}/{token}/{build}"


HISTORY_PATH = "/history/{namespace}/{token}"
PACK_PATH = HISTORY_PATH + "/packs/{name:.+}"
OPEN_PATH = HISTORY_PATH + "/open"


def add_routes(
    app: web.Application,
    volume: ResultsVolume,
    shipping: ResultsUploader | None = None,
    history: History | None = None,
    *,
    public_key: bytes | None = None,
) -> None:
    """Add the routes.

    - ``GET /results/NAMESPACE/NAME/UID/TOKEN`` returns a tar stream. The status is 404 if the trial or the token is unknown, and
      503 while the object store is unavailable.
    - ``GET /results/NAMESPACE/NAME/UID/TOKEN/files/PATH?offset=N&limit=N`` returns at most ``limit`` bytes (up to 1 MiB) of a file.
      A negative offset counts from the file's end.
    - ``GET /builds/NAMESPACE/NAME/UID/TOKEN/BUILD`` returns a part of a build's log, with the same parameters.
    - ``GET /history/NAMESPACE/TOKEN`` returns the packs of a namespace's history as JSON, ``.../packs/NAME`` a pack, and
      ``.../open`` the lines that are in no pack yet.
    - ``GET /signing-key.pem`` returns the public key that verifies evidence, if there is one.
    """
    if public_key is not None:
        app.router.add_get(KEY_PATH, partial(_public_key, public_key))
    if history is not None:
        rows = _History(volume, history)
        app.router.add_get(HISTORY_PATH, rows.get_packs, allow_head=False)
        app.router.add_get(PACK_PATH, rows.get_pack, allow_head=False)
        app.router.add_get(OPEN_PATH, rows.get_open, allow_head=False)
    results = _Results(volume, shipping)
    app.router.add_get(PATH, results.get, allow_head=False)
    app.router.add_get(FILE_PATH, results.get_part, allow_head=False)
    app.router.add_get(BUILD_PATH, results.get_build_log, allow_head=False)


async def _public_key(key: bytes, _: web.Request) -> web.Response:
    return web.Response(body=key, content_type="application/x-pem-file")


class _Results:
    def __init__(self, volume: ResultsVolume, shipping: ResultsUploader | None) -> None:
        self._volume = volume
        self._shipping = shipping
        self._slots = asyncio.Semaphore(MAX_DOWNLOADS)

    async def get(self, request: web.Request) -> web.StreamResponse:
        key = self._allowed(request)
        store = await self._store_of(key)
        response = web.StreamResponse(headers=_headers(key))
        response.force_close()  # the server cannot count requests after a stream (gateway.http.limit_connections)
        async with self._slots:
            await response.prepare(request)
            try:
                await self._send(store, key, response)
                await asyncio.wait_for(response.write_eof(), WRITE_TIMEOUT_SECONDS)
            except (StoreError, TimeoutError):
                _cut(request)  # closes the connection before the body's end, so that the reader detects the error
        return response

    async def get_part(self, request: web.Request) -> web.Response:
        key = self._allowed(request)
        store = await self._store_of(key)
        offset, limit = _span(request)
        try:
            part = await store.part(key, request.match_info["path"], offset=offset, limit=limit)
        except StoreError as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
        if part is None:
            raise web.HTTPNotFound
        return web.Response(body=part, headers=_headers(key) | {"Content-Type": "application/octet-stream"})

    async def get_build_log(self, request: web.Request) -> web.Response:
        """Return a part of a build's log. Any trial's token gives access, because only those who know a build's inputs know its
        digest."""
        key, (offset, limit) = self._allowed(request), _span(request)
        try:
            part = await self._volume.build_logs.part(request.match_info["build"], offset, limit)
        except StoreError as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
        if part is None:
            raise web.HTTPNotFound
        return web.Response(body=part, headers=_headers(key) | {"Content-Type": "application/octet-stream"})

    def _allowed(self, request: web.Request) -> TrialKey:
        """Return the requested trial. Raises HTTPNotFound for a missing trial and for a wrong token, so that nobody learns which
        trials exist."""
        shown = request.match_info
        try:
            key = TrialKey(shown["namespace"], shown["name"], shown["uid"])
        except StoreError:
            raise web.HTTPNotFound from None
        if not self._volume.access.grants(key, shown["token"]):
            raise web.HTTPNotFound
        return key

    async def _store_of(self, key: TrialKey) -> ResultsStore:
        """Return the store with the complete results. This is the object store if it has the manifest, otherwise the volume."""
        try:
            if self._shipping is not None and await self._shipping.results.exists(key):
                return self._shipping.results
        except StoreError as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
        if not await self._volume.exists(key):
            raise web.HTTPNotFound
        return self._volume

    async def _send(self, store: ResultsStore, key: TrialKey, response: web.StreamResponse) -> None:
        async with aclosing(store.archive(key)) as chunks:
            async for chunk in chunks:
                await asyncio.wait_for(response.write(chunk), WRITE_TIMEOUT_SECONDS)


class _History:
    def __init__(self, volume: ResultsVolume, history: History) -> None:
        self._access = volume.access
        self._history = history
        self._slots = asyncio.Semaphore(MAX_DOWNLOADS)

    async def get_packs(self, request: web.Request) -> web.Response:
        packs = await self._read(self._history.packs(self._allowed(request)))
        return web.json_response([asdict(pack) for pack in packs], headers=_NO_STORE)

    async def get_pack(self, request: web.Request) -> web.Response:
        return _lines(await self._read(self._history.read(self._allowed(request), request.match_info["name"])))

    async def get_open(self, request: web.Request) -> web.Response:
        return _lines(await self._read(self._history.open_lines(self._allowed(request))))

    def _allowed(self, request: web.Request) -> str:
        """Return the requested namespace. Raises HTTPNotFound for a wrong token."""
        namespace, token = request.match_info["namespace"], request.match_info["token"]
        if not self._access.grants_history(namespace, token):
            raise web.HTTPNotFound
        return namespace

    async def _read(self, answer: Awaitable[T]) -> T:
        async with self._slots:
            try:
                return await answer
            except StoreError as error:
                raise web.HTTPServiceUnavailable(text=f"{error}\n") from None


def _lines(data: bytes | None) -> web.Response:
    if data is None:
        raise web.HTTPNotFound
    return web.Response(body=data, headers=_NO_STORE | {"Content-Type": "application/octet-stream"})


def _span(request: web.Request) -> tuple[int, int]:
    """Return the requested offset and limit, in bytes."""
    try:
        offset, limit = int(request.query.get("offset", "0")), int(request.query.get("limit", str(MAX_PART_BYTES)))
    except ValueError:
        raise web.HTTPBadRequest(text="offset and limit must be integers (bytes)") from None
    if not 1 <= limit <= MAX_PART_BYTES:
        raise web.HTTPBadRequest(text=f"limit must be from 1 to {MAX_PART_BYTES} bytes")
    return offset, limit


_NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def _headers(key: TrialKey) -> dict[str, str]:
    return {
        "Content-Type": "application/x-tar",
        "Content-Disposition": f'attachment; filename="{key.name}.tar"',
        **_NO_STORE,
    }


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
