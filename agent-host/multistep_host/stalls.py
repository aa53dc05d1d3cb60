"""Asks the model gateway how long the provider stalled the step. The agent's timeout is extended by this duration.

The gateway's name is resolved once, before an agent first runs: the containers of a pod share /etc/hosts, so an agent that is root
could name a server of its own, whose answers extend the timeout.
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
_addresses: dict[str, str] = {}  # by name; for the life of the process, which ends with the pod
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the gateway is in the cluster: use no proxy


async def stalled_seconds(request: StallsRequest | None) -> float:
    """Return how long the step was stalled, in seconds, at most `max_seconds`; 0 without a gateway, or if it does not answer."""
    if request is None:
        return 0.0
    try:
        found = await asyncio.to_thread(_read, request)
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        _log.warning("the model gateway did not report the step's stalls: %s", error)
        return 0.0
    return min(max(0.0, found), request.max_seconds)


async def pin(request: StallsRequest | None) -> None:
    """Resolve the gateway's name, unless it was resolved before. To be called before the agent runs."""
    if request is None:
        return
    try:
        await asyncio.to_thread(_address, request.url)
    except OSError as error:
        _log.warning("the model gateway's name cannot be resolved: %s", error)


def _address(url: str) -> str:
    """Return the address of the URL's host, as resolved first. Raises OSError."""
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
