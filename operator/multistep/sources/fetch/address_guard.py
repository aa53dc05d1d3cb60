"""Restricts the addresses to which the process may connect.

Each connection is checked by its IP address, so neither DNS nor a redirect can bypass the check.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from multistep.errors import SourceError
from multistep.sources.task.condition_reasons import NOT_ALLOWED


def install(blocked_networks: Sequence[str]) -> None:
    """Block connections to the networks until the process ends, with an audit hook: it sees the connections of every library."""
    networks = [ipaddress.ip_network(each) for each in blocked_networks]

    def check(event: str, args: tuple[object, ...]) -> None:
        if event == "socket.connect":
            check_address(args[1], networks)

    sys.addaudithook(check)


def check_address(address: object, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> None:
    """Raise SourceError if a socket's address is in one of the networks, or is not an internet address."""
    if not isinstance(address, tuple):
        raise SourceError("connecting to anything but an internet address is refused", reason=NOT_ALLOWED)
    found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found.sixtofour or found
    if any(found in network for network in networks):
        text = f"{address[0]} is an address that tasks are not fetched from (the operator's setting taskBlockedNetworks)"
        raise SourceError(text, reason=NOT_ALLOWED)


def host_of(url: str) -> str:
    """Return ``HOST`` or ``HOST:PORT`` of a URL."""
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError as error:
        raise SourceError(f"the URL of {parts.hostname} has an invalid port") from error
    if not parts.hostname:
        raise SourceError("the URL has no host")
    return (f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname) + port


def listed(host: str, patterns: Sequence[str]) -> bool:
    """Return whether a host, with or without its port, matches one of the patterns."""
    bare = host if host.endswith("]") else host.rpartition(":")[0] or host
    return any(fnmatchcase(each, pattern.lower()) for each in {host.lower(), bare.lower()} for pattern in patterns)


def check_named(host: str, allowed: Sequence[str]) -> None:
    """Raise SourceError if the operator's settings do not allow fetching tasks from this host."""
    if allowed and not listed(host, allowed):
        text = f"tasks are not fetched from {host}: the operator's setting taskAllowedHosts has {', '.join(allowed)}"
        raise SourceError(text, reason=NOT_ALLOWED)
