"""Where the process may connect to.

It is asked at each connection, for the address itself: no name and no redirect leads around it.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from ...errors import SourceError
from ..reasons import NOT_ALLOWED


def install(blocked_networks: Sequence[str]) -> None:
    """From now on, for the rest of the process's life. Whatever library connects, Python asks its audit hooks."""
    networks = [ipaddress.ip_network(each) for each in blocked_networks]

    def check(event: str, args: tuple[object, ...]) -> None:
        if event == "socket.connect":
            check_address(args[1], networks)

    sys.addaudithook(check)


def check_address(address: object, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> None:
    """SourceError: the address of a socket is in one of the networks, or is no internet address."""
    if not isinstance(address, tuple):
        raise SourceError("connecting to anything but an internet address is refused", reason=NOT_ALLOWED)
    found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found.sixtofour or found
    if any(found in network for network in networks):
        text = f"{address[0]} is an address that tasks are not fetched from (the operator's setting taskBlockedNetworks)"
        raise SourceError(text, reason=NOT_ALLOWED)


def host_of(url: str) -> str:
    """``HOST`` or ``HOST:PORT`` of a URL."""
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError as error:
        raise SourceError(f"the port in the URL of {parts.hostname} is no port") from error
    if not parts.hostname:
        raise SourceError("the URL has no host")
    return (f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname) + port


def listed(host: str, patterns: Sequence[str]) -> bool:
    """Whether a host, with or without its port, is among the patterns."""
    bare = host if host.endswith("]") else host.rpartition(":")[0] or host
    return any(fnmatchcase(each, pattern.lower()) for each in {host.lower(), bare.lower()} for pattern in patterns)


def check_named(host: str, allowed: Sequence[str]) -> None:
    """SourceError: the operator does not fetch tasks from there."""
    if allowed and not listed(host, allowed):
        text = f"tasks are not fetched from {host}: the operator's setting taskAllowedHosts has {', '.join(allowed)}"
        raise SourceError(text, reason=NOT_ALLOWED)
