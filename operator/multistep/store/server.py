"""Serves results over HTTP: one tar stream per trial, for whoever can show its token (which the trial's status tells).

The token is part of the address: access logs must not hold it.
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

PATH = "/results/{namespace}/{name}/{uid}/{token}"


def add_routes(app: web.Application, volume: Volume, shipping: Shipping | None = None) -> None:
    """Mount ``GET /results/NAMESPACE/NAME/UID/TOKEN``: 200 with a tar stream, or 404; 503 while the object store is away."""
    results = _Results(volume, shipping)
    app.router.add_get(PATH, results.get, allow_head=False)


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
