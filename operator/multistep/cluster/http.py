"""Requests to the API server: time limits, retries, renewal of credentials, errors, counting.

A write is sent again only when it was refused with 429, that is before anything was done. Without an answer it may have
happened, and only who asked can look whether it did.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import aiohttp
from yarl import URL

from multistep.cluster.connection import Connection
from multistep.cluster.edge import Object
from multistep.cluster.errors import no_answer, refusal
from multistep.cluster.gate import Gate
from multistep.errors import ClusterError, Unavailable

RequestObserver = Callable[[str, str, int, float], None]  # verb, plural, HTTP status (0: no answer), seconds

REQUEST_TIMEOUT_SECONDS: Final = 30.0
ATTEMPTS: Final = 4
MAX_PAUSE_SECONDS: Final = 10.0
MAX_REFUSAL_BYTES: Final = 64 * 1024
URGENT: Final = frozenset({"leases"})  # do not wait at the gate, nor to be sent again: a leader that is late is taken for dead


# The API server reads the JSON of an apply as YAML, in which these must be escaped, and only these: it takes no escaped
# surrogate pair (as json.dumps writes an emoji), and no raw control character.
_ESCAPED = re.compile("[\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def encode(body: Mapping[str, Any]) -> bytes:
    """A body as JSON that is YAML as well, whatever its texts hold."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPED.sub(_escape, text).encode()


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"  # YAML cannot say half a surrogate pair at all


class Http:
    """Requests over one Connection. timeout_seconds: of each. gate: what all wait at. observe: told of each that was sent."""

    def __init__(
        self,
        connection: Connection,
        *,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        gate: Gate | None = None,
        observe: RequestObserver | None = None,
    ) -> None:
        self.connection = connection
        self.gate = gate or Gate()
        self.timeout_seconds = timeout_seconds
        self.observe = observe or (lambda _verb, _plural, _code, _seconds: None)

    async def read(self, verb: str, plural: str, path: str, params: Mapping[str, str] | None = None, *, accept: str = "") -> Object:
        """A GET, tried again while the server is Unavailable. accept: the form of the answer, if another than usual."""
        return await self.send(verb, plural, "GET", path, params=params, accept=accept)

    async def send(
        self,
        verb: str,
        plural: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        accept: str = "",
        attempts: int = ATTEMPTS,
    ) -> Object:
        """One request, tried again where that is safe. attempts: in all. Raises ClusterError."""
        data = None if body is None else encode(body)
        headers = {"Content-Type": content_type if data is not None else "", "Accept": accept}
        attempt = 1
        while True:
            try:
                async with AsyncExitStack() as stack:
                    if plural not in URGENT:
                        await stack.enter_async_context(self.gate.passing())
                    return await self._once(verb, plural, method, path, params, data, headers)
            except Unavailable as error:
                safe = method == "GET" or (error.status == 429 and plural not in URGENT)
                if attempt >= attempts or not safe or (error.retry_after or 0.0) > MAX_PAUSE_SECONDS:
                    raise  # who asked has time and can wait without holding anything
                await asyncio.sleep(pause_seconds(attempt, error.retry_after))
            attempt += 1

    async def _once(
        self,
        verb: str,
        plural: str,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str],
    ) -> Object:
        limits = aiohttp.ClientTimeout(total=self.timeout_seconds)
        what = f"{verb} {path}"
        async with self._open(verb, plural, method, path, params, data, headers, limits) as response:
            try:
                answer = json.loads(await response.read())
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise no_answer(what, error) from error
        if not isinstance(answer, dict):
            raise ClusterError(f"{what}: the answer is no object: is this a Kubernetes API server?")
        return answer

    @asynccontextmanager
    async def stream(
        self, verb: str, plural: str, path: str, params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A GET whose body is read by the caller. silence_seconds: the longest time without a byte."""
        limits = aiohttp.ClientTimeout(total=None, connect=self.timeout_seconds, sock_read=silence_seconds)
        async with self._open(verb, plural, "GET", path, params, None, {}, limits) as response:
            yield response

    @asynccontextmanager
    async def _open(
        self,
        verb: str,
        plural: str,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        headers: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = URL(self.connection.base_url + path, encoded=True).extend_query(params or {})
        what = f"{verb} {path}"

        async def attempt() -> aiohttp.ClientResponse:
            options = await self.connection.request_options()
            options["headers"].update({name: value for name, value in headers.items() if value})
            return await self._counted(
                verb, plural, self.connection.session("api").request(method, url, data=data, timeout=limits, **options)
            )

        try:
            response = await attempt()
            if response.status == 401:  # refused before anything was done: safe to say again, with new credentials
                response.release()
                await self.connection.refresh(rejected=True)
                response = await attempt()
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise no_answer(what, error) from error
        async with response:
            if response.status >= 300:
                raise await _refusal(what, response)
            yield response

    async def _counted(self, verb: str, plural: str, request: Any) -> aiohttp.ClientResponse:
        loop = asyncio.get_running_loop()
        started, code = loop.time(), 0
        try:
            response: aiohttp.ClientResponse = await request
            code = response.status
            return response
        finally:
            self.observe(verb, plural, code, loop.time() - started)


async def _refusal(what: str, response: aiohttp.ClientResponse) -> ClusterError:
    try:
        body = await response.content.read(MAX_REFUSAL_BYTES)
    except (aiohttp.ClientError, OSError):
        body = b""  # the status says enough
    return refusal(what, response.status, body, response.headers)


def pause_seconds(attempt: int, retry_after: float | None = None) -> float:
    """How long to wait before trying again after the attempt-th failure: with jitter, as many wait for one server."""
    own = random.uniform(0.5, 1.5) * 0.2 * 2.0**attempt
    return min(max(own, retry_after or 0.0), MAX_PAUSE_SECONDS)
