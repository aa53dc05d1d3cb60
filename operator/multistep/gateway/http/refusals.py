"""Decides whether and when to send a request again that the provider refused (429, 503, 529), or that found no connection.

No provider charges for these answers. The gateway sends the request again after a pause, unless the account has no credit or the
request alone exceeds a rate limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from aiohttp import ClientResponse

from multistep.backoff import Backoff
from multistep.gateway.accounting.ledger_rows import Kind
from multistep.gateway.model_api.error_blame import blame, error_in_body, exceeds_limit_alone, has_no_credit
from multistep.gateway.model_api.request_parsers import ParsedRequest

REFUSALS: Final = frozenset((429, 503, 529))
_TOO_MANY: Final = 429
_BACKOFF: Final = Backoff(first=1.0, last=15.0, jitter=1.0)  # used if the provider sends no Retry-After. The first pause is 1 to 2
# s


@dataclass(frozen=True)
class Refusal:
    """The provider refused the request, or no connection could be made (status 0)."""

    status: int
    pause: float
    """Seconds until the request is sent again."""
    message: str


OTHERS_REFUSED: Final = Refusal(429, 0.0, "it refused other requests for the model")


def kind_of_refusal(answer: ClientResponse, body: bytes, parsed: ParsedRequest, *, own_api: bool) -> Kind | None:
    """Return the kind of failure of a refusal (429, 503, 529), or None if the request may be sent again.

    ``own_api`` tells whether the provider itself answered. Other servers use the provider's error code for an account without
    credit also for rate limits.
    """
    if answer.status != _TOO_MANY:
        return None
    error = error_in_body(body)
    if blame(_TOO_MANY, error) == "Account" or (own_api and advised_pause(answer) is None and has_no_credit(error)):
        return "Configuration"
    size = 0 if parsed.opaque or parsed.caches else len(parsed.body)  # cache reads do not count in Anthropic's limit
    return "" if exceeds_limit_alone(error, size, answer.headers) else None  # "" if the agent's request is too large


def pause_after(answer: ClientResponse, refusals: int) -> float:
    """Return the seconds to wait before the request is sent again. This is the time that the provider asks for, or a back-off.

    ``refusals`` is how often the provider has refused this request.
    """
    advised = advised_pause(answer)
    return pause_without_advice(refusals) if advised is None else advised


def pause_without_advice(refusals: int) -> float:
    """Return the seconds to wait if the provider sent no Retry-After. The wait doubles with each refusal of the request."""
    return _BACKOFF.seconds(refusals)


def advised_pause(answer: ClientResponse) -> float | None:
    """Return the wait in seconds that the header Retry-After (a number or a date) asks for, or None without a valid header."""
    text = answer.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
