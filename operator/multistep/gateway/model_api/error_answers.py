"""The gateway's own errors, in each API's format. Agents show the message, and decide by the status whether to retry."""

from __future__ import annotations

import json
from typing import Any, Final

from aiohttp import web

from multistep.providers import ProviderName

HELD_TOO_LONG: Final = 529
"""HTTP status of the answer to a request that waited too long. It is not 429, because the agent codex exits at the first 429."""
RETRY_SECONDS: Final = 5

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    425: "credential_unknown",
    426: "upgrade_refused",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_GEMINI: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    529: "UNAVAILABLE",
}


class Refused(Exception):
    """The gateway answers a request with an error of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def response(self, provider: ProviderName | None) -> web.Response:
        """Return the HTTP response in the provider's error format."""
        headers = {"Retry-After": str(RETRY_SECONDS)} if self.status in (425, HELD_TOO_LONG) else {}
        body = json.dumps(_body(provider, self.status, f"Multistep's model gateway: {self}"))
        reason = "Overloaded" if self.status == HELD_TOO_LONG else None  # aiohttp has no reason phrase for 529
        return web.Response(status=self.status, reason=reason, text=body, content_type="application/json", headers=headers)


def _body(provider: ProviderName | None, status: int, message: str) -> dict[str, Any]:
    kind = _TYPES[status]
    if provider == "gemini":
        return {"error": {"code": status, "message": message, "status": _GEMINI.get(status, "FAILED_PRECONDITION")}}
    if provider == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}
