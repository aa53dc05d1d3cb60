"""The operator's client of the gateway: signs step tokens, registers providers' keys, and ends steps' model access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout
from pydantic import TypeAdapter

from multistep.errors import GatewayError, GatewayUnavailable, StepUnknownToGateway
from multistep.gateway.accounting.request_ledger import Missed
from multistep.gateway.accounting.step_usage import StepUsage
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import SigningKey, StepClaims, StepKey, fingerprint, sign
from multistep.gateway.pace import ModelLoad

CLOSE_TIMEOUT_SECONDS = 100.0
"""Longer than the gateway waits for a step's open requests before it answers."""
_TIMEOUT_SECONDS = 15.0
_LOADS: Final = TypeAdapter(dict[str, ModelLoad])
_MISSED: Final = TypeAdapter(list[Missed])
# 401: the admin token was changed, and not both processes have restarted; 409: a signing key was removed or replaced
_LATER: Final = (401, 409)


@dataclass(frozen=True)
class AcceptedTokens:
    """What a gateway accepts. key_ids: ids of the signing keys of step tokens, oldest first; sealed: whether the gateway reads
    sealed (encrypted) claims; sources: whether it takes the sources of providers' keys; tool_policy: whether it can refuse tools of
    providers. Gateways of earlier releases do not."""

    key_ids: tuple[str, ...] = ()
    sealed: bool = False
    sources: bool = False
    tool_policy: bool = False


def step_token(claims: StepClaims, key: SigningKey, *, sealed: bool) -> str:
    """Return the token that a step's programs use as the provider's API key."""
    return sign(claims, key, sealed=sealed)


class GatewayAdmin:
    """Client of the gateway's admin port. url: ``http://HOST:PORT``; token: the operator's bearer token."""

    def __init__(self, http: ClientSession, url: str, token: str) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}

    async def register(self, id_: str, credential: Credential) -> None:
        """Register or replace a provider's key. Idempotent. Raises GatewayError, GatewayUnavailable."""
        await self._call("PUT", f"/credentials/{quote(id_, safe='')}", _TIMEOUT_SECONDS, json=credential.wire())

    async def accepted_tokens(self) -> AcceptedTokens:
        """Return which tokens the gateway accepts."""
        found = await self._call("GET", "/signing-keys", _TIMEOUT_SECONDS)
        can = (found.get(name) is True for name in ("sealed", "sources", "toolPolicy"))
        return AcceptedTokens(tuple(found["accepted"]), *can)

    async def wanted(self) -> list[str]:
        """Return the ids of credentials for which requests wait, e.g. after the gateway restarted."""
        found = await self._call("GET", "/credentials", _TIMEOUT_SECONDS)
        return list(found["wanted"])

    async def rejected(self) -> Mapping[str, str]:
        """Return the sources of the keys that a provider rejected and that are to be read again, by the credential's id."""
        found = await self._call("GET", "/credentials", _TIMEOUT_SECONDS)
        return dict(found.get("rejected") or {})

    async def renew(self, id_: str, key: str | None) -> None:
        """Tell the gateway which key the source of a credential has now; None if it cannot be read. Idempotent."""
        with suppress(StepUnknownToGateway):  # the gateway restarted meanwhile
            await self._call("PUT", f"/credentials/{quote(id_, safe='')}/key", _TIMEOUT_SECONDS, json={"key": key})

    async def loads(self) -> Mapping[str, ModelLoad]:
        """Return the provider's answers and refusals by requested model, since the gateway's start."""
        return _LOADS.validate_python(await self._call("GET", "/models", _TIMEOUT_SECONDS))

    async def open(self, step: StepKey, key: SigningKey, until: float) -> None:
        """Record that a step starts. key: signs its token; until: when the token expires, in seconds since the epoch. Idempotent.
        Raises GatewayUnavailable, also if the gateway does not accept the key any more, or has another key under its id."""
        body = {"key": key.id, "until": until, "fingerprint": fingerprint(key.secret)}
        with suppress(StepUnknownToGateway):  # status 404: a gateway of an earlier release does not have this path
            await self._call("PUT", f"{_path(step)}/open", _TIMEOUT_SECONDS, json=body)

    async def missed_by(self, step: StepKey) -> Sequence[Missed]:
        """Return the times since the step's start in which the gateway may not have answered its requests, earliest first. A
        gateway of an earlier release reports none."""
        try:
            return _MISSED.validate_python(await self._call("GET", f"{_path(step)}/missed", _TIMEOUT_SECONDS))
        except StepUnknownToGateway:
            return []

    async def close(self, step: StepKey) -> StepUsage:
        """Block a step's token, wait until its requests have ended, and return its usage. Idempotent.

        Raises GatewayUnavailable, or StepUnknownToGateway if the gateway has no record of a request of the step. The usage is then
        unknown, not 0.
        """
        return StepUsage.model_validate(await self._call("PUT", f"{_path(step)}/close", CLOSE_TIMEOUT_SECONDS))

    async def _call(self, method: str, path: str, seconds: float, *, json: Any = None) -> Any:
        limit = ClientTimeout(total=seconds)
        try:
            async with self._http.request(method, self._url + path, json=json, headers=self._headers, timeout=limit) as answer:
                return await _result(answer, path)
        except (ClientError, TimeoutError, OSError) as error:
            raise GatewayUnavailable(f"the model gateway at {self._url} did not answer: {type(error).__name__}") from error


def _path(step: StepKey) -> str:
    return "/steps/" + "/".join(quote(each, safe="") for each in step)


async def _result(answer: ClientResponse, path: str) -> Any:
    if answer.status == 204:
        return None
    body = await answer.read()
    if answer.status == 200:
        return await answer.json()
    message = f"the model gateway answered {answer.status} to {path}: {body[:300].decode(errors='replace')}"
    if answer.status == 404:
        raise StepUnknownToGateway(message)
    if answer.status >= 500 or answer.status in _LATER:
        raise GatewayUnavailable(message)
    raise GatewayError(message)
