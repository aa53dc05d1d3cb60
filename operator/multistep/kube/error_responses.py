"""Converts error responses of the API server to exceptions of multistep.errors."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable

MAX_MESSAGE_CHARACTERS = 1000


def error_of(what: str, status: int, body: bytes, headers: Mapping[str, str]) -> ClusterError:
    """Return the error for a response other than 2xx. what: the request, for the message, such as ``get pod ns/name``."""
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


def no_answer(what: str, error: BaseException) -> Unavailable:
    """Return the error for a failed connection or a timeout."""
    where = f" at {error.host}:{error.port}" if isinstance(error, aiohttp.ClientConnectorError) else ""
    return Unavailable(f"{what}: no answer from the API server{where}: {_cause(error)}"[:MAX_MESSAGE_CHARACTERS])


def _cause(error: BaseException) -> str:
    """Return why a connection failed. aiohttp's own texts contain addresses of Python objects."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if not isinstance(error, aiohttp.ClientConnectorError):
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    found = error.os_error
    if isinstance(found, ssl.SSLError) or found.errno is None:
        return str(found)
    # A positive errno is the system's. Errors of getaddrinfo have other numbers, and their own text.
    return (os.strerror(found.errno) if found.errno > 0 else found.strerror) or str(found)


def _status_object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # an HTML page of a proxy, for example
        return {}
    return value if isinstance(value, Mapping) else {}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in the header Retry-After, None without it. API servers never send a date in it."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None
