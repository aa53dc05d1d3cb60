"""Asks the model gateway how long the provider stalled the step. The agent's timeout is extended by this duration.

The gateway's name is resolved only once, before an agent first runs. Later, an agent that is root could redirect the name to its
own server and extend its timeout, because the containers of a pod share /etc/hosts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import urllib.request
from http.client import HTTPException
from urllib.parse import urlsplit

from multistep_host.phase_requests import StallsRequest

_TIMEOUT_SECONDS = 10.0
_log = logging.getLogger(__name__)
_addresses: dict[str, str] = {}  # resolved addresses by name, kept until the process ends
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # without a proxy, because the gateway is in the cluster


async def stalled_seconds(request: StallsRequest | None) -> float:
    """Return how long the step was stalled, in seconds and at most `max_seconds`. Without a gateway, or if it does not answer,
    return 0."""
    if request is None:
        return 0.0
    try:
        found = await asyncio.to_thread(_read, request)
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        _log.warning("the model gateway did not report the step's stalls: %s", error)
        return 0.0
    return min(max(0.0, found), request.max_seconds)


async def pin(request: StallsRequest | None) -> None:
    """Resolve the gateway's name, unless it was resolved before. Call this function before the agent runs."""
    if request is None:
        return
    try:
        await asyncio.to_thread(_address, request.url)
    except OSError as error:
        _log.warning("the model gateway's name cannot be resolved: %s", error)


def _address(url: str) -> str:
    """Return the address to which the URL's host was first resolved. Raises OSError if it cannot be resolved."""
    name = urlsplit(url).hostname or ""
    if name not in _addresses:
        _addresses[name] = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    return _addresses[name]


def _read(request: StallsRequest) -> float:
    url, address = urlsplit(request.url), _address(request.url)
    host = f"[{address}]" if ":" in address else address
    place = url._replace(netloc=f"{host}:{url.port or 80}").geturl()
    # The egress sidecar decides by the header Host, and connects to an address that it resolved itself.
    headers = {"Authorization": f"Bearer {request.token}", "Host": url.netloc}
    asked = urllib.request.Request(place, headers=headers)
    with _opener.open(asked, timeout=_TIMEOUT_SECONDS) as answer:
        return float(json.load(answer)["stalledSeconds"])
