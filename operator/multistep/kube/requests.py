"""Sends requests to the API server, with timeouts, retries, renewal of credentials, errors and metrics.

A write is retried only after a rejection with 429 or 401, because a request that was rejected in this way had no effect. A write
without an answer may have succeeded, so it is not retried. The caller finds out by reading the object.

Only the leader may write to the cluster. A process that was suspended may resume in the middle of its work, after it lost the
lease. So the client checks the lease (``check``) immediately before it sends a write, starts an exec session or sends a frame in an
exec session. Requests that are already in flight do no harm. A status is written only at the resourceVersion that was read,
deletions have a UID, names are unique, and a runner executes each request id at most once.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from yarl import URL

from multistep.backoff import Backoff
from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.connection import Connection
from multistep.kube.request_limit import RequestLimit
from multistep.kube.resources import EVENTS, LEASES, Resource

MAX_MESSAGE_CHARACTERS = 1000


def response_error(what: str, status: int, body: bytes, headers: Mapping[str, str]) -> ClusterError:
    """Return the error for a response other than 2xx. ``what`` names the request in the message, e.g. ``get pod ns/name``."""
    fields = _status_object(body)
    reason = str(fields.get("reason") or "")
    message = str(fields.get("message") or body[:300].decode(errors="replace").strip() or "no message")
    text = f"{what}: {message[:MAX_MESSAGE_CHARACTERS]} (HTTP {status}{f', {reason}' if reason else ''})"
    if status == 401:
        text = f"{text}: the API server rejects the credentials; if they have expired, log in again"
    if status == 404:
        return NotFound(text, status=status, reason=reason)
    if status == 409:
        return (AlreadyExists if reason == "AlreadyExists" else Conflict)(text, status=status, reason=reason)
    if status == 429 or status >= 500:
        return Unavailable(text, status=status, reason=reason, retry_after=_retry_after(headers))
    return ClusterError(text, status=status, reason=reason)


def no_answer_error(what: str, error: BaseException) -> Unavailable:
    """Return the error for a failed connection or a timeout."""
    where = f" at {error.host}:{error.port}" if isinstance(error, aiohttp.ClientConnectorError) else ""
    return Unavailable(f"{what}: no answer from the API server{where}: {_cause(error)}"[:MAX_MESSAGE_CHARACTERS])


def _cause(error: BaseException) -> str:
    """Return why a connection failed, without aiohttp's own texts, which contain addresses of Python objects."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if not isinstance(error, aiohttp.ClientConnectorError):
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    cause = error.os_error
    if isinstance(cause, ssl.SSLError) or cause.errno is None:
        return str(cause)
    # A positive errno is an error of the system. Errors of getaddrinfo have other numbers, and a text of their own.
    return (os.strerror(cause.errno) if cause.errno > 0 else cause.strerror) or str(cause)


def _status_object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # e.g. an HTML page of a proxy
        return {}
    return value if isinstance(value, Mapping) else {}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in the header Retry-After, or None without it. API servers never send a date there."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


RequestObserver = Callable[[str, str, int, float], None]
"""A function that is called with the verb, the plural resource, the HTTP status (0 for no answer) and the duration in seconds."""
Check = Callable[[], None]
"""Raises NotLeading if this process does not hold the lease."""

REQUEST_TIMEOUT_SECONDS: Final = 30.0
ATTEMPTS: Final = 4
MAX_PAUSE_SECONDS: Final = 10.0
BACKOFF: Final = Backoff(first=0.2, last=MAX_PAUSE_SECONDS, jitter=2.0)
MAX_ERROR_BYTES: Final = 64 * 1024
WRITES: Final = {  # HTTP method and Content-Type of each verb
    "create": ("POST", "application/json"),
    "replace": ("PUT", "application/json"),
    "patch": ("PATCH", "application/merge-patch+json"),
    "apply": ("PATCH", "application/apply-patch+yaml"),  # the body is JSON, which is also YAML
    "delete": ("DELETE", "application/json"),
}

# Characters to escape in the body of an apply. The API server parses this JSON as YAML, in which these characters must be escaped.
# Other characters stay as they are, because the server rejects escaped surrogate pairs, e.g. for an emoji.
_ESCAPED = re.compile("[\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def encode(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON that is also valid YAML, whatever characters its strings contain."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPED.sub(_escape, text).encode()


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"  # YAML cannot express a lone surrogate, so it is replaced


@dataclass(frozen=True)
class _Request:
    """One request to the API server."""

    verb: str
    """Kubernetes' name of the operation, for errors and metrics."""
    plural: str
    """Kubernetes' plural name of the resource, for errors and metrics."""
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)
    data: bytes | None = None

    @property
    def what(self) -> str:
        return f"{self.verb} {self.path}"

    @property
    def method(self) -> str:
        return WRITES[self.verb][0] if self.verb in WRITES else "GET"

    @property
    def urgent(self) -> bool:
        """Whether the request concerns the leader lease. It is then never queued, and a write is not retried, because a leader that
        renews late loses the lease."""
        return self.plural == LEASES.plural

    def can_be_retried(self, error: Unavailable) -> bool:
        """Return whether to retry now. Events are sent only once, so that an overloaded API server gets fewer requests."""
        safe = error.status == 429 and not self.urgent and self.plural != EVENTS.plural
        return (safe or self.method == "GET") and (error.retry_after or 0.0) <= MAX_PAUSE_SECONDS


@dataclass
class ApiRequests:
    """Sends requests over one Connection."""

    connection: Connection
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    """Timeout of each request to the API server."""
    limit: RequestLimit = field(default_factory=RequestLimit)
    observe: RequestObserver = lambda _verb, _plural, _code, _seconds: None
    """Function to call after each request."""
    check: Check = lambda: None
    """Function to call before each write. It raises an error if this replica no longer has the lease."""

    async def read(
        self, verb: str, resource: Resource, path: str, params: Mapping[str, str] | None = None, *, accept: str = ""
    ) -> Object:
        """Send a GET, and return the answer. Retry with back-off while the server is Unavailable. ``accept`` is the media type of
        the answer, "" for JSON."""
        headers = {"Accept": accept} if accept else {}
        return await self._with_retries(_Request(verb, resource.plural, path, params or {}, headers))

    async def send(self, verb: str, resource: Resource, path: str, params: Mapping[str, str], body: Mapping[str, Any]) -> Object:
        """Send a write, and retry it if that is safe. Raises ClusterError if it fails. Raises NotLeading, without sending the
        write, if the lease is lost."""
        headers = {"Content-Type": WRITES[verb][1]}
        return await self._with_retries(_Request(verb, resource.plural, path, params, headers, encode(body)))

    async def _with_retries(self, request: _Request) -> Object:
        attempt = 1
        while True:
            try:
                async with nullcontext() if request.urgent else self.limit.passing():
                    return await self._once(request)
            except Unavailable as error:
                if attempt >= ATTEMPTS or not request.can_be_retried(error):
                    raise  # the caller retries later, because a requeued object uses no connection while it waits
                await asyncio.sleep(pause_seconds(attempt, error.retry_after))
            attempt += 1

    async def _once(self, request: _Request) -> Object:
        async with self._open(request, aiohttp.ClientTimeout(total=self.timeout_seconds)) as response:
            answer = json.loads(await response.read())
        if not isinstance(answer, dict):
            raise ClusterError(f"{request.what}: the answer is not a JSON object; check that the address is that of an API server")
        return answer

    @asynccontextmanager
    async def stream(
        self, verb: str, plural: str, path: str, params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a GET whose body the caller reads. Raises Unavailable if a read fails or takes longer than ``silence_seconds``."""
        limits = aiohttp.ClientTimeout(total=None, connect=self.timeout_seconds, sock_read=silence_seconds)
        async with self._open(_Request(verb, plural, path, params), limits) as response:
            yield response

    @asynccontextmanager
    async def _open(self, request: _Request, limits: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            response = await self._answer(request, limits)
            if response.status == 401:  # the request had no effect, so it is safe to retry with renewed credentials
                response.release()
                await self.connection.refresh(rejected=True)
                response = await self._answer(request, limits)
            async with response:
                if response.status >= 300:
                    body = b""  # stays empty if the body cannot be read, so that the error has only the HTTP status
                    with suppress(aiohttp.ClientError, OSError):
                        body = await response.content.read(MAX_ERROR_BYTES)
                    raise response_error(request.what, response.status, body, response.headers)
                yield response
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # OSError includes TimeoutError. A ValueError is an answer that is not JSON.
            raise no_answer_error(request.what, error) from error

    async def _answer(self, request: _Request, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Send the request, and report its verb, resource, HTTP status and duration to ``observe``."""
        options = await self.connection.request_options()
        options["headers"].update(request.headers)
        url = URL(self.connection.base_url + request.path, encoded=True).extend_query(request.params)
        session = self.connection.session("api")
        loop = asyncio.get_running_loop()
        if request.method != "GET":
            self.check()
        started = loop.time()
        code = 0
        try:
            response = await session.request(request.method, url, data=request.data, timeout=limits, **options)
            code = response.status
            return response
        finally:
            self.observe(request.verb, request.plural, code, loop.time() - started)


def pause_seconds(attempt: int, retry_after: float | None = None) -> float:
    """Return the back-off in seconds after a number of failures, with jitter, because many clients may wait for the same server."""
    return min(max(BACKOFF.seconds(attempt), retry_after or 0.0), MAX_PAUSE_SECONDS)
