"""An HTTP client that fetches tasks. It limits sizes, classifies errors, and sends credentials only to the host for which they are
meant."""

from __future__ import annotations

import base64
import ipaddress
import ssl
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
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

from multistep.api.trial.values import DENIED, NOT_ALLOWED, NOT_FOUND, TOO_LARGE
from multistep.errors import SourceError


def block_networks(blocked_networks: Sequence[str]) -> None:
    """Block connections to the networks until the process ends. An audit hook checks the connections of all libraries."""
    networks = [ipaddress.ip_network(network) for network in blocked_networks]

    def check(event: str, args: tuple[object, ...]) -> None:
        if event == "socket.connect":
            check_address(args[1], networks)

    sys.addaudithook(check)


def check_address(address: object, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> None:
    """Raise SourceError if a socket's address is in one of the networks, or is not an internet address."""
    if not isinstance(address, tuple):
        raise SourceError("connecting to anything but an internet address is refused", reason=NOT_ALLOWED)
    target = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(target, ipaddress.IPv6Address):
        target = target.ipv4_mapped or target.sixtofour or target
    if any(target in network for network in networks):
        text = f"{address[0]} is an address that tasks are not fetched from (the operator's setting taskBlockedNetworks)"
        raise SourceError(text, reason=NOT_ALLOWED)


def host_of(url: str) -> str:
    """Return ``HOST`` or ``HOST:PORT`` of a URL. Raises SourceError."""
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError as error:
        raise SourceError(f"the URL of {parts.hostname} has an invalid port") from error
    if not parts.hostname:
        raise SourceError("the URL has no host")
    return (f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname) + port


def matches_host(host: str, patterns: Sequence[str]) -> bool:
    """Return whether a host, with or without its port, matches one of the patterns."""
    bare = host if host.endswith("]") else host.rpartition(":")[0] or host
    return any(fnmatchcase(name, pattern.lower()) for name in {host.lower(), bare.lower()} for pattern in patterns)


def check_allowed_host(host: str, allowed: Sequence[str]) -> None:
    """Raise SourceError if the operator's settings do not allow fetching tasks from this host."""
    if allowed and not matches_host(host, allowed):
        text = f"tasks are not fetched from {host}: the operator's setting taskAllowedHosts has {', '.join(allowed)}"
        raise SourceError(text, reason=NOT_ALLOWED)


_HOPS = 6
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHUNK = 1 << 18
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 30.0

Response = urllib3.BaseHTTPResponse


def make_pool(ca: str = "") -> urllib3.PoolManager:
    """Return a connection pool without redirects and retries. It trusts the certificates ``ca`` (PEM) and those of the system."""
    context = ssl.create_default_context()
    if ca:
        try:
            context.load_verify_locations(cadata=ca)
        except ssl.SSLError as error:
            raise SourceError("ca.crt in the Secret is not a PEM certificate") from error
    timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
    return urllib3.PoolManager(num_pools=4, retries=False, timeout=timeout, ssl_context=context)


class HttpClient:
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
        """Send a request and return the response, whatever its status. The caller reads the body.

        The header ``authorization`` is sent only to the URL's origin, never to another origin after a redirect.
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


def body_chunks(response: Response, what: str, most: int) -> Iterator[bytes]:
    """Yield a body's chunks. Raises SourceError, which names the body ``what``, if it is incomplete or exceeds ``most`` bytes."""
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


def read_body(response: Response, what: str, most: int = 4 << 20) -> bytes:
    """Return the whole body. Raises SourceError if it exceeds ``most`` bytes."""
    return b"".join(body_chunks(response, what, most))


def check_status(response: Response, what: str) -> Response:
    """Return the response if its status is 2xx. Otherwise raise SourceError, with ``what`` as the URL, which has no credentials."""
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


def basic_authorization(user: str, password: str) -> str:
    """Return the Authorization header's value for a user name and a password."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def connection_error(error: Exception, what: str) -> SourceError:
    """Return a SourceError for a failed request. The message omits the URL, which may be presigned. Invalid certificates and
    requests are permanent errors, all others are transient."""
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
