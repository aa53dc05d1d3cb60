"""An HTTP client that fetches tasks: bounds sizes, classifies errors, and sends credentials only to the host that they are for."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import (
    HTTPError,
    InvalidHeader,
    LocationValueError,
    NameResolutionError,
    NewConnectionError,
    SSLError,
    TimeoutError,
    UnrewindableBodyError,
)

from multistep.errors import SourceError
from multistep.sources.fetch.address_guard import host_of
from multistep.sources.task.condition_reasons import DENIED, NOT_FOUND, TOO_LARGE

_HOPS = 6
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 1 << 18
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 30.0

Response = urllib3.BaseHTTPResponse


def make_pool(ca: str = "") -> urllib3.PoolManager:
    """Return a connection pool without redirects and retries. ca: certificates (PEM) to trust in addition to the system's."""
    context = ssl.create_default_context()
    if ca:
        try:
            context.load_verify_locations(cadata=ca)
        except ssl.SSLError as error:
            raise SourceError("ca.crt in the Secret is not a PEM certificate") from error
    timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
    return urllib3.PoolManager(num_pools=4, retries=False, timeout=timeout, ssl_context=context)


class Http:
    """Sends HTTP requests without retries."""

    def __init__(self, pool: urllib3.PoolManager) -> None:
        self._pool = pool

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        authorization: str = "",
        body: bytes | None = None,
        follow: bool = True,
    ) -> Response:
        """Send a request and return the response, whatever its status; its body is not read yet.

        authorization: header value that is sent to the URL's origin only, never to another origin after a redirect.
        """
        origin = _origin(url)
        for _ in range(_HOPS):
            sent = {"Accept-Encoding": "identity", "User-Agent": "multistep", **(headers or {})}
            if authorization and _origin(url) == origin:
                sent["Authorization"] = authorization
            response = self._send(method, url, sent, body)
            if not follow or response.status not in _REDIRECTS or "Location" not in response.headers:
                return response
            response.close()
            url = _next(url, response.headers["Location"])
        raise SourceError(f"{host_of(url)}: more than {_HOPS} redirects")

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        try:
            return self._pool.request(method, url, headers=headers, body=body, redirect=False, preload_content=False)
        except (HTTPError, OSError) as error:
            raise connection_error(error, host_of(url)) from None


def pieces(response: Response, what: str, most: int) -> Iterator[bytes]:
    """Yield a body's chunks. Raises SourceError if the body is incomplete or exceeds ``most`` bytes. what: its name in messages."""
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and int(length) > most:
        raise SourceError(f"{what} has {length} bytes, more than the limit of {most}", reason=TOO_LARGE)
    count = 0
    try:
        while data := response.read(_CHUNK, decode_content=False):
            count += len(data)
            if count > most:
                raise SourceError(f"{what} has more than {most} bytes, which is the limit", reason=TOO_LARGE)
            yield data
    except (HTTPError, OSError) as error:
        raise connection_error(error, what) from None
    finally:
        response.close()


def body(response: Response, what: str, most: int = 4 << 20) -> bytes:
    """Return the whole body. Raises SourceError if it exceeds ``most`` bytes."""
    return b"".join(pieces(response, what, most))


def check_status(response: Response, what: str) -> Response:
    """Return the response if its status is 2xx; else raise SourceError. what: the URL for messages, without credentials."""
    status = response.status
    if 200 <= status < 300:
        return response
    response.close()
    if status in (401, 403):
        text = f"{what}: access denied (HTTP {status}); check the Secret named in secretRef, or name one"
        raise SourceError(text, reason=DENIED)
    if status in (404, 410):
        raise SourceError(f"{what} does not exist (HTTP {status})", reason=NOT_FOUND)
    if status in (408, 425, 429) or status >= 500:
        raise SourceError(f"{what} is temporarily unavailable (HTTP {status})", transient=True)
    raise SourceError(f"{what}: the server answers with HTTP {status}")


def basic(user: str, password: str) -> str:
    """Return the Authorization header's value for a user name and a password."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def connection_error(error: Exception, what: str) -> SourceError:
    """Return a SourceError for a failed request. Its message omits the URL, which may be presigned. Invalid certificates and
    requests are permanent errors, all others are transient.
    """
    if isinstance(error, SSLError) or isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return SourceError(f"{what}: its certificate is not trusted, or it does not use TLS: {_plain(error)}")
    if isinstance(error, LocationValueError | InvalidHeader | UnrewindableBodyError | ValueError):
        return SourceError(f"{what}: the request is invalid: {_plain(error)}")
    if isinstance(error, NameResolutionError):
        return SourceError(f"{what}: the host name cannot be resolved", transient=True)
    if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
        return SourceError(f"{what}: no response before the timeout", transient=True)
    return SourceError(f"{what} cannot be reached: {type(error).__name__}", transient=True)


def _plain(error: Exception) -> str:
    cause = error.__cause__ or error
    return getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or type(error).__name__


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme, 0)
    return parts.scheme, f"{(parts.hostname or '').lower()}:{parts.port or default}"


def _next(url: str, location: str) -> str:
    new = urljoin(url, location)
    schemes = urlsplit(url).scheme, urlsplit(new).scheme
    if schemes[1] not in ("http", "https") or schemes == ("https", "http"):
        raise SourceError(f"{host_of(url)} redirects from {schemes[0]} to {schemes[1] or 'nowhere'}, which is refused")
    return new
