"""The dashboard's HTTP server: authenticates requests by a token, and listens on this machine's loopback address only."""

from __future__ import annotations

import asyncio
import hmac
import html
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from multistep.api.trial.status import is_finished
from multistep.api.trial.trial import parse_status
from multistep.cli.dashboard.board import Board, trial_facts
from multistep.cli.trial.follow_output import following
from multistep.cli.trial.output_formats import Escaped, Readable, Wanted
from multistep.cli.trial.read_output import Reader
from multistep.client.connection import Cluster
from multistep.client.objects import find_trial
from multistep.errors import MultistepError, UsageError

TAIL_LINES: Final = 500  # number of lines of each phase that the dashboard shows at first


async def output(cluster: Cluster, namespace: str, name: str) -> AsyncIterator[bytes]:
    """Yield the trial's output, with control characters escaped, until the trial finishes. Raises MultistepError if the output
    cannot be read."""
    printed = bytearray()
    form = Readable(Escaped(printed.extend, titles=True))
    reader = Reader(cluster, namespace, Wanted(follow=True), form, TAIL_LINES)
    async for status in following(cluster, namespace, name, reader, lambda why: printed.extend(f"{why}\n".encode())):
        if is_finished(status):
            form.close()
        if printed:
            yield bytes(printed)
            printed.clear()


BATCH_SECONDS: Final = 0.5  # changes within this time are sent to the page in one message
_WHERE: Final = "<!-- where -->"  # the place in the page for the shown cluster and namespaces
_PAGE = files("multistep.cli.dashboard") / "page"
_TYPES = {"dashboard.html": "text/html", "dashboard.js": "text/javascript", "dashboard.css": "text/css"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@asynccontextmanager
async def serve(cluster: Cluster, board: Board, namespace: str | None, port: int, where: str = "") -> AsyncIterator[str]:
    """Serve the dashboard on 127.0.0.1, and yield its URL. port: 0 for a free port. where: the shown cluster and namespaces, as
    text. Raises UsageError if the port is not available."""
    token = secrets.token_urlsafe(24)
    application = _application(_Pages(cluster, board, namespace, where), token)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            raise UsageError(f"--port {port}: cannot listen on it: {error.strerror}; without --port a free one is used") from error
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/?token={token}"
    finally:
        await runner.cleanup()


def _application(pages: _Pages, token: str) -> web.Application:
    application = web.Application(middlewares=[_guard(token)])
    application.add_routes(
        [
            web.get("/", pages.file),
            web.get("/{file:dashboard\\.(js|css)}", pages.file),
            web.get("/changes", pages.changes),
            web.get("/trials/{namespace}/{name}", pages.trial),
            web.get("/trials/{namespace}/{name}/logs", pages.logs),
        ]
    )
    return application


def _guard(token: str) -> Any:
    """Return the middleware that authenticates requests by the token, and rejects requests for other host names.

    The printed URL contains the token, and the first response stores it in a cookie for later requests. Other host names are
    rejected because a foreign page could make its own host name resolve to this server (DNS rebinding).
    """

    @web.middleware
    async def guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        port = request.transport.get_extra_info("sockname")[1] if request.transport else 0
        cookie = f"multistep-dashboard-{port}"  # a name per port, because browsers send a cookie to all ports of a host
        if request.host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            raise web.HTTPForbidden(text=f"the dashboard is at 127.0.0.1:{port}, not at {request.host}\n")
        if request.path == "/" and _same(request.query.get("token", ""), token):
            found = web.HTTPFound("/")
            found.set_cookie(cookie, token, httponly=True, samesite="Strict")
            raise found
        if not _same(request.cookies.get(cookie, ""), token):
            raise web.HTTPForbidden(text="open the URL that `multistep dashboard` printed: it contains a token\n")
        return await handler(request)

    return guard


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


class _Pages:
    """The request handlers of the page and its data."""

    def __init__(self, cluster: Cluster, board: Board, namespace: str | None, where: str) -> None:
        """namespace: the only namespace whose trials are served, or None for all. where: the shown cluster, as text."""
        self._cluster, self._board, self._namespace, self._where = cluster, board, namespace, where

    async def file(self, request: web.Request) -> web.Response:
        """Return the page, its script or its style sheet."""
        name = request.match_info.get("file", "dashboard.html")
        text = (_PAGE / name).read_text().replace(_WHERE, html.escape(self._where))
        return web.Response(text=text, content_type=_TYPES[name], headers=_HEADERS)

    async def changes(self, request: web.Request) -> web.StreamResponse:
        """Send all rows, then the changes, as server-sent events. A browser that reconnects receives all rows again."""
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        version = 0
        while True:
            found = await self._board.changes(version)
            version = found["version"]
            await response.write(f"data: {json.dumps(found)}\n\n".encode())
            await asyncio.sleep(BATCH_SECONDS)

    async def trial(self, request: web.Request) -> web.Response:
        """Return the status of a trial as JSON, with ``facts``: lines on the trial."""
        namespace, name = self._named(request)
        try:
            found = await find_trial(self._cluster, namespace, name)
            if found is None:
                raise web.HTTPNotFound(text=f"trial {name} does not exist in namespace {namespace}\n")
            status = parse_status(found)
        except MultistepError as error:
            raise web.HTTPBadGateway(text=f"{error}\n") from error
        document = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        return web.json_response({**document, "facts": trial_facts(namespace, name, status)}, headers=_HEADERS)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """Send the output of a trial's phases as text, until the trial finishes."""
        namespace, name = self._named(request)
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        try:
            async for part in output(self._cluster, namespace, name):
                await response.write(part)
        except MultistepError as error:
            await response.write(f"\n{error}\n".encode())
        return response

    def _named(self, request: web.Request) -> tuple[str, str]:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if self._namespace not in (None, namespace):
            raise web.HTTPNotFound(text=f"the dashboard shows namespace {self._namespace} only\n")
        return namespace, name
