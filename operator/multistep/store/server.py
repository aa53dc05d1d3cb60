"""Serves results over HTTP: one tar stream per trial, or parts of its files, for whoever can show its token.

The trial's status tells the token, which is part of the address: access logs must not hold it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from aiohttp import web

from ..errors import StoreError
from .shipping import Shipping
from .volume import TrialKey, Volume

MAX_DOWNLOADS = 8  # at once; more wait
WRITE_TIMEOUT_SECONDS = 60.0  # for a reader to take one chunk; one that sleeps must not keep others waiting

MAX_PART_BYTES = 1024 * 1024

PATH = "/results/{namespace}/{name}/{uid}/{token}"
FILE_PATH = PATH + "/files/{path:.+}"


def add_routes(app: web.Application, volume: Volume, shipping: Shipping | None = None) -> None:
    """Mount ``GET /results/NAMESPACE/NAME/UID/TOKEN``: 200 with a tar stream, or 404; 503 while the object store is away;
    and below that ``/files/PATH``, with ``?offset=N&limit=N`` in bytes: at most limit (1 MiB) bytes of one file; a negative offset
    counts from its end."""
    results = _Results(volume, shipping)
    app.router.add_get(PATH, results.get, allow_head=False)
    app.router.add_get(FILE_PATH, results.get_part, allow_head=False)


class _Results:
    def __init__(self, volume: Volume, shipping: Shipping | None) -> None:
        self._volume = volume
        self._shipping = shipping
        self._slots = asyncio.Semaphore(MAX_DOWNLOADS)

    async def get(self, request: web.Request) -> web.StreamResponse:
        key = self._allowed(request)
        place = await self._place(key)
        response = web.StreamResponse(headers=_headers(key))
        async with self._slots:
            await response.prepare(request)
            try:
                await self._send(place, key, response)
            except (StoreError, TimeoutError):
                _cut(request)  # without the end of its body, so that nobody takes it for whole
                return response
            await response.write_eof()
        return response

    async def get_part(self, request: web.Request) -> web.Response:
        key = self._allowed(request)
        place = await self._place(key)
        try:
            offset, limit = int(request.query.get("offset", "0")), int(request.query.get("limit", str(MAX_PART_BYTES)))
        except ValueError:
            raise web.HTTPBadRequest(text="offset and limit are numbers of bytes") from None
        if not 1 <= limit <= MAX_PART_BYTES:
            raise web.HTTPBadRequest(text=f"limit is from 1 to {MAX_PART_BYTES}")
        try:
            part = await place.part(key, request.match_info["path"], offset=offset, limit=limit)
        except StoreError as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
        if part is None:
            raise web.HTTPNotFound
        return web.Response(body=part, headers=_headers(key) | {"Content-Type": "application/octet-stream"})

    def _allowed(self, request: web.Request) -> TrialKey:
        """The trial that is asked for; 404 tells nothing of what there is."""
        shown = request.match_info
        try:
            key = TrialKey(shown["namespace"], shown["name"], shown["uid"])
        except StoreError:
            raise web.HTTPNotFound from None
        if not self._volume.grants(key, shown["token"]):
            raise web.HTTPNotFound
        return key

    async def _place(self, key: TrialKey) -> Volume | Shipping:
        """Where the results are as a whole: the object store, if it has their manifest."""
        try:
            if self._shipping is not None and await self._shipping.exists(key):
                return self._shipping
        except StoreError as error:
            raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
        if not await self._volume.exists(key):
            raise web.HTTPNotFound
        return self._volume

    async def _send(self, place: Volume | Shipping, key: TrialKey, response: web.StreamResponse) -> None:
        async with aclosing(place.archive(key)) as chunks:
            async for chunk in chunks:
                await asyncio.wait_for(response.write(chunk), WRITE_TIMEOUT_SECONDS)


def _headers(key: TrialKey) -> dict[str, str]:
    return {
        "Content-Type": "application/x-tar",
        "Content-Disposition": f'attachment; filename="{key.name}.tar"',
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
