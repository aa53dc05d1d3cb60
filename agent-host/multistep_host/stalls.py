"""Asks the model gateway how long the provider stalled the step. The agent's timeout is extended by this duration."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from http.client import HTTPException

from multistep_host.phase_requests import StallsRequest

_TIMEOUT_SECONDS = 10.0
_log = logging.getLogger(__name__)
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


def _read(request: StallsRequest) -> float:
    asked = urllib.request.Request(request.url, headers={"Authorization": f"Bearer {request.token}"})
    with _opener.open(asked, timeout=_TIMEOUT_SECONDS) as answer:
        return float(json.load(answer)["stalledSeconds"])
