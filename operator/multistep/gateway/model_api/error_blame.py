"""Decides whether the request, the provider or the configuration (the key, the model, the account) is to blame for a provider's
error.

Providers describe the same error in many shapes. The rules use the status and the fields for type, code and parameter. They use the
message only if these do not decide. tests/unit/gateway/answer_shapes.py lists recorded errors and who is to blame for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from multistep.gateway.model_api.answer_memory import has_too_many_parts

Blamed = Literal["Request", "Provider", "Account", "Model", "ModelByText", "Unclear"]
"""What an error blames.

- Request: the agent's request.
- Provider: the provider's service.
- Account: the key or the account.
- Model: the model's name.
- ModelByText: the model's name, but only the message says so.
- Unclear: the request or the configuration. Only the outcome of other requests can show which of them is to blame.
"""

_ACCOUNT_MESSAGES: Final = (
    *(
        "Your credit balance is too low",
        "Budget has been exceeded",
        "ExceededBudget",
        "Key limit exceeded",
        "Organization has been",
    ),
    "User location is not supported",
)
_MODEL_MESSAGES: Final = ("model:", "models/")
CONFIGURATION_MESSAGES: Final = (*_ACCOUNT_MESSAGES, *_MODEL_MESSAGES)
"""Starts of messages about credit, budgets, keys and models, for errors whose type does not decide. No field of a request may have
such a name, because messages about unknown fields start with the field's name."""
_OF_THE_ACCOUNT: Final = frozenset(
    (
        *("apikeyinvalid", "invalidapikey", "incorrectapikey", "authenticationerror", "billingerror", "budgetexceeded"),
        *("insufficientbalance", "insufficientcredits", "insufficientquota", "billinghardlimitreached", "billingnotactive"),
        *("exceededcurrentquotaerror", "accountdeactivated", "organizationrestricted", "paymentrequired", "arrearage"),
        *("keylimitexceeded", "creditlimitexceeded", "spendlimitexceeded", "quotaexhausted"),
    )
)
_ALSO_RATE_LIMITS: Final = frozenset(("insufficientquota", "quotaexhausted"))
"""Error codes that OpenAI sends for an account without credit, but some other APIs also for limits per minute."""
_OF_THE_MODEL: Final = re.compile(
    r"(invalid|unknown|unsupported|unrecognized|nosuch|nonexistent|wrong)model(id|name|error)*"
    r"|model(id|name)?(isnot|is|not|doesnot)?(found|exist|exists|available|supported|allowed|accessible|permitted|accessdenied"
    r"|invalid|unknown|unsupported|deprecated|decommissioned|archived|retired|blocked|permissiondenied)(error|exception)*"
    r"|deploymentnotfound"
)
_OF_THE_REQUEST: Final = frozenset(
    (
        *("contextlengthexceeded", "contextwindowexceeded", "modelcontextwindowexceeded", "stringabovemaxlength"),
        *("invalidprompt", "requesttoolarge", "payloadtoolarge", "contentfilter", "contentpolicyviolation", "biopolicy"),
        *("cyberpolicy", "misalignmentpolicyviolation", "datainspectionfailed", "responsibleaipolicyviolation"),
        *("invalidimage", "invalidimageformat", "invalidimagemode", "invalidimageurl", "invalidbase64image"),
        *("imagetoolarge", "imagetoosmall", "imagefiletoolarge", "emptyimagefile", "unsupportedimagemediatype"),
        *("imageparseerror", "imagecontentpolicyviolation", "imagefilenotfound", "failedtodownloadimage"),
    )
)
_REQUEST_OR_MODEL: Final = frozenset(
    (
        *("invalidrequesterror", "invalidrequest", "badrequest", "badrequesterror", "validationerror", "unprocessableentity"),
        *("unprocessableentityerror", "invalidargument", "failedprecondition", "notfound", "notfounderror", "outofrange"),
    )
)
_NOT: Final = r"(?:not|n['\u2019]t)"
_WRONG_MODEL: Final = re.compile(
    rf"\bmodels?\b[^.;]{{0,120}}?\b(?:is |are |was |does |do |could |did |has |can)?{_NOT} (?:been |be )?(?:a |an )?"
    r"(?:valid|exist|found|available|recogni[sz]ed|known|accessible|allowed|permitted|enabled|registered|deployed)\b"
    rf"|\b{_NOT} (?:a |an |the )?(?:valid|known|existing|available|recogni[sz]ed|allowed|supported|found the) model\b"
    r"|\b(?:invalid|unknown|unsupported|unrecogni[sz]ed|nonexistent|unexpected|incorrect|wrong|no such|no|not find(?: the)?)"
    r"\W+(?:requested\W+|given\W+|provided\W+)?model(?:\W|s\b|$)"
    r"|\bmodel\b[^.;]{0,60}?\b(?:is |are |was |has been )?(?:invalid|unknown|unrecogni[sz]ed|decommissioned|deprecated|retired|"
    r"unavailable|no longer (?:available|supported))\b"
    r"|\b(?:access|permission)\b[^.;]{0,40}?\bmodel\b|\bmodel not exist\b|模型[^。]{0,20}(?:不存在|未找到|无效|不支持)",
    re.IGNORECASE,
)
_TOKENS: Final = re.compile(r"\btokens?\b|\bTPM\b", re.IGNORECASE)
_OF_ALL_REQUESTS: Final = re.compile(r"\b(?:used|current|usage|remaining)\b", re.IGNORECASE)
_LIMIT: Final = r"limit\D{0,24}([\d,]{1,16})\b"
_REQUESTED: Final = r"request(?:ed\W{0,4}|(?:ed)?\b\D{0,24}(?=[\d,]{1,16}\s(?:\w{1,9}\s)?tokens?\b))([\d,]{1,16})\b"
_LIMIT_AND_REQUESTED: Final = re.compile(rf"{_LIMIT}.{{0,60}}?{_REQUESTED}", re.IGNORECASE | re.DOTALL)
_REQUESTED_AND_LIMIT: Final = re.compile(rf"{_REQUESTED}.{{0,60}}?{_LIMIT}", re.IGNORECASE | re.DOTALL)
_PER_MINUTE: Final = re.compile(r"([\d,]{1,16})\s(?:input |prompt |total )?tokens per min", re.IGNORECASE)
# The limit is searched for only in this many characters of a message. Users may choose the server, and matching long texts takes
# time.
_AMOUNTS_WITHIN: Final = 300
_LIMIT_HEADERS: Final = ("anthropic-ratelimit-input-tokens-limit", "anthropic-ratelimit-tokens-limit", "x-ratelimit-limit-tokens")
_BYTES_PER_TOKEN: Final = 6  # more than in usual text, so that the number of tokens is not overestimated
_MAX_ERROR: Final = 1 << 20  # in bytes. Some servers repeat the request in their error
_STATUS: Final = range(400, 600)
_MODEL_STATUSES: Final = frozenset((200, 400, 403, 404, 422))
_MAX_DEPTH: Final = 6


@dataclass(frozen=True)
class ProviderError:
    """The parts of a provider's error that decide who is to blame."""

    words: frozenset[str] = frozenset()
    """The error's types, codes and reasons, reduced to lower-case letters and digits."""
    codes: tuple[int, ...] = ()
    """The codes that are HTTP statuses."""
    fields: frozenset[str] = frozenset()
    """Names of the request's fields that the error blames."""
    message: str = ""


def parse_error(document: Any) -> ProviderError:
    """Return the error in a JSON document. It may be in an object ``error``, ``errors`` or ``detail``, or in the document
    itself."""
    words: set[str] = set()
    codes: list[int] = []
    fields: set[str] = set()
    messages: list[str] = []
    for part in _parts(document, _MAX_DEPTH):
        for name in ("type", "code", "status", "reason", "error_code", "error_type", "__type", "statusCode"):
            value = part.get(name)
            code = _number(value)
            if code is not None and code in _STATUS:
                codes.append(code)
            if isinstance(value, (str, int)) and not isinstance(value, bool):
                words.add(_word(str(value)))
        fields |= {field for field in (part.get("param"), _last(part.get("loc"))) if isinstance(field, str)}
        texts = [part.get(name) for name in ("message", "msg", "detail", "error", "Message")]
        messages += [text for text in texts if isinstance(text, str)]
    return ProviderError(frozenset(words), tuple(codes), frozenset(fields), messages[0] if messages else "")


def error_in_body(body: bytes) -> ProviderError:
    """Return the error in an answer's body. If the body is not JSON, or is too large, the message is the start of the body."""
    if len(body) <= _MAX_ERROR and not has_too_many_parts(body):
        with suppress(ValueError, RecursionError):
            return parse_error(json.loads(body))
    return ProviderError(message=body[:1000].decode(errors="replace"))


def _parts(document: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that describe the error, the innermost first."""
    if isinstance(document, list):
        for part in document[:16] if depth else []:
            yield from _parts(part, depth - 1)
    if not isinstance(document, Mapping) or not depth:
        return
    response = document.get("response")
    for inner in (response.get("error") if isinstance(response, Mapping) else None, document.get("error"), document.get("errors")):
        yield from _parts(inner, depth - 1)
    for name in ("detail", "details", "metadata", "choices"):
        yield from _parts(document.get(name), depth - 1)
    yield document


def blame(status: int, error: ProviderError, *, references: bool = False) -> Blamed:
    """Return what an error blames. ``status`` is the HTTP status, which is 200 for an error inside an answer. ``references`` tells
    whether the request refers to files, conversations or tools, which the provider may report as missing."""
    if status < min(_STATUS):
        status = next(iter(error.codes), status)
    return next((blamed for rule, blamed in _RULES if rule(status, error, references)), "Request")


_Rule = Callable[[int, ProviderError, bool], bool]
_RULES: Final[tuple[tuple[_Rule, Blamed], ...]] = (
    (lambda status, _, __: status in (401, 402), "Account"),
    (lambda status, error, _: status < 500 and _names_account(status, error), "Account"),
    (lambda _, error, __: bool(error.words & _OF_THE_REQUEST), "Request"),
    (lambda status, error, _: status in _MODEL_STATUSES and _names_model(error), "Model"),
    (lambda status, error, references: status in _MODEL_STATUSES and not references and _describes_model(error), "ModelByText"),
    (lambda status, _, references: status in (403, 404) and not references, "Unclear"),
    (lambda status, _, __: status >= 500 or status in (408, 429), "Provider"),
    (lambda status, error, _: status < min(_STATUS) and not error.words & _REQUEST_OR_MODEL, "Provider"),
)
"""The first rule that applies decides. If none applies, the request is to blame."""


def _names_account(status: int, error: ProviderError) -> bool:
    words = error.words - (_ALSO_RATE_LIMITS if status == 429 else frozenset())
    return bool(words & _OF_THE_ACCOUNT) or error.message.startswith(_ACCOUNT_MESSAGES)


def _names_model(error: ProviderError) -> bool:
    by_code = any(_OF_THE_MODEL.fullmatch(word) for word in error.words) or "model" in error.fields
    return by_code or error.message.startswith(_MODEL_MESSAGES)


def _describes_model(error: ProviderError) -> bool:
    return _WRONG_MODEL.search(error.message[:1000]) is not None


def has_no_credit(error: ProviderError) -> bool:
    """Return whether a 429 of OpenAI itself shows that the account has no credit, so that later requests fail, too."""
    return "insufficientquota" in error.words


def _number(value: Any) -> int | None:
    """Return the value if it is a number or a text such as "400", otherwise None."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text[:100].lower())


def _last(loc: Any) -> Any:
    return loc[-1] if isinstance(loc, list) and loc else None


def exceeds_limit_alone(error: ProviderError, size: int = 0, headers: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Return whether a 429 shows that the request alone exceeds a limit of tokens, so that it always fails. A limit of 0 does not
    count, because then every request of the account fails.

    ``size`` is the number of bytes of the request's text, or 0 if the limited tokens do not depend on it. ``headers`` are the
    answer's.
    """
    message = error.message[:_AMOUNTS_WITHIN]
    if not _OF_ALL_REQUESTS.search(error.message):
        if amounts := _LIMIT_AND_REQUESTED.search(message):
            return 0 < _amount(amounts[1]) < _amount(amounts[2])
        if (amounts := _REQUESTED_AND_LIMIT.search(message)) and _TOKENS.search(message):
            return 0 < _amount(amounts[2]) < _amount(amounts[1])
    per_minute = _PER_MINUTE.search(message)
    limits = [per_minute[1] if per_minute else "", *(headers.get(name, "") for name in _LIMIT_HEADERS)]
    return any(0 < _amount(limit) < size // _BYTES_PER_TOKEN for limit in limits)


def _amount(text: str) -> int:
    digits = text.replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else 0
