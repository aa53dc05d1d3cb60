"""The operator's client of the gateway. It registers providers' keys, and starts and ends steps' model access."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout
from pydantic import TypeAdapter

from multistep.errors import GatewayError, GatewayUnavailable, StepUnknownToGateway
from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.accounting.request_ledger import Missed
from multistep.gateway.accounting.step_usage import StepUsage
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import SigningKey, StepKey, fingerprint
from multistep.gateway.pace import ModelLoad

CLOSE_TIMEOUT_SECONDS = 100.0
"""Longer than the gateway waits for a step's open requests before it answers."""
CAPTURE_TIMEOUT_SECONDS = 100.0
_TIMEOUT_SECONDS = 15.0
_PIECE_BYTES: Final = 1 << 20
_ASK_SECONDS: Final = 90.0  # longer than the gateway waits for the credential, and for the model's answer
_LOADS: Final = TypeAdapter(dict[str, ModelLoad])
_ROWS: Final = TypeAdapter(list[RequestRow])
_MISSED: Final = TypeAdapter(list[Missed])
# The gateway answers 401 while only one of the two processes has restarted with a new admin token, and 409 after a signing key was
# removed or replaced. Both errors are temporary.
_LATER: Final = (401, 409)


class NeededCredentials(NamedTuple):
    """The credentials that the gateway needs from the operator."""

    wanted: list[str]
    """Ids of credentials for which requests wait, e.g. after the gateway restarted."""
    rejected: Mapping[str, str]
    """Sources of the keys that a provider rejected and that the operator must read again, by the credential's id."""


class GatewayAdmin:
    """Sends requests to the gateway's admin port."""

    def __init__(self, http: ClientSession, url: str, token: str) -> None:
        """Create a client for the port at ``url`` (``http://HOST:PORT``). ``token`` is the operator's bearer token."""
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}

    async def register(self, id_: str, credential: Credential) -> None:
        """Register or replace a provider's key. The call is idempotent. Raises GatewayError, GatewayUnavailable."""
        await self._call("PUT", f"/credentials/{quote(id_, safe='')}", _TIMEOUT_SECONDS, json=credential.wire())

    async def accepted_keys(self) -> list[str]:
        """Return the ids of the signing keys whose tokens the gateway accepts, oldest first."""
        return list((await self._call("GET", "/signing-keys", _TIMEOUT_SECONDS))["accepted"])

    async def needed_credentials(self) -> NeededCredentials:
        """Return the credentials that the gateway lacks or that a provider rejected."""
        credentials = await self._call("GET", "/credentials", _TIMEOUT_SECONDS)
        return NeededCredentials(credentials["wanted"], credentials["rejected"])

    async def renew(self, id_: str, key: str | None) -> None:
        """Send the key that a credential's source has now, or None if the source cannot be read. The call is idempotent."""
        with suppress(StepUnknownToGateway):  # raised if the gateway restarted meanwhile
            await self._call("PUT", f"/credentials/{quote(id_, safe='')}/key", _TIMEOUT_SECONDS, json={"key": key})

    async def loads(self) -> Mapping[str, ModelLoad]:
        """Return the numbers of the provider's answers and refusals since the gateway's start, by requested model."""
        return _LOADS.validate_python(await self._call("GET", "/models", _TIMEOUT_SECONDS))

    async def open(self, step: StepKey, key: SigningKey, until: float) -> None:
        """Record that a step starts. ``key`` signs the step's token, which expires at ``until`` (seconds since the epoch). The call
        is idempotent. Raises GatewayUnavailable, even if the gateway answers but does not accept the key, or has another key under
        this id."""
        body = {"key": key.id, "until": until, "fingerprint": fingerprint(key.secret)}
        await self._call("PUT", f"{_path(step)}/open", _TIMEOUT_SECONDS, json=body)

    async def ask(self, token: str, path: str, body: Mapping[str, Any]) -> None:
        """Send a request to a model, and wait for its end, which the usage of the token's step shows. Raises GatewayUnavailable."""
        question = {"token": token, "path": path, "body": body}
        await self._call("POST", "/ask", _ASK_SECONDS, json=question)

    async def missed_by(self, step: StepKey) -> Sequence[Missed]:
        """Return the times since the step's start in which the gateway may not have answered the step's requests, earliest
        first."""
        return _MISSED.validate_python(await self._call("GET", f"{_path(step)}/missed", _TIMEOUT_SECONDS))

    async def close(self, step: StepKey) -> StepUsage:
        """Block a step's token, wait until the step's requests have ended, and return its usage. The call is idempotent.

        Raises GatewayUnavailable, or StepUnknownToGateway if the gateway has no record of the step. The usage is then unknown, not
        0.
        """
        return StepUsage.model_validate(await self._call("PUT", f"{_path(step)}/close", CLOSE_TIMEOUT_SECONDS))

    async def requests_of(self, uid: str) -> Sequence[RequestRow]:
        """Return the finished requests of a trial, oldest first, at most 2,000."""
        return _ROWS.validate_python(await self._call("GET", f"/trials/{quote(uid, safe='')}/requests", _TIMEOUT_SECONDS))

    async def read_capture(self, step: StepKey) -> AsyncIterator[bytes]:
        """Yield the token records of a closed step in pieces. Raises GatewayUnavailable, and StepUnknownToGateway if the step has
        none."""
        url = f"{self._url}{_path(step)}/capture"
        try:
            async with self._http.get(url, headers=self._headers, timeout=ClientTimeout(total=CAPTURE_TIMEOUT_SECONDS)) as answer:
                if answer.status != 200:
                    await _result(answer, url)
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    yield piece
        except (ClientError, TimeoutError) as error:
            raise GatewayUnavailable(
                f"the model gateway at {self._url} did not send token records: {type(error).__name__}"
            ) from error

    async def delete_capture(self, step: StepKey) -> None:
        """Delete the token records of a closed step. The call is idempotent. Raises GatewayUnavailable."""
        await self._call("DELETE", f"{_path(step)}/capture", _TIMEOUT_SECONDS)

    async def set_weights(self, sweep: str, version: str, *, paused: bool) -> int:
        """Set the version of the weights that answer the requests of a sweep's agents, and hold these requests while ``paused``.

        ``sweep`` is NAMESPACE/NAME/UID. Return the number of requests in flight. The call is idempotent. Raises GatewayUnavailable.
        """
        answer = await self._call("PUT", f"/sweeps/{sweep}/weights", _TIMEOUT_SECONDS, json={"version": version, "paused": paused})
        return int(answer["inFlight"])

    async def _call(self, method: str, path: str, seconds: float, *, json: Any = None) -> Any:
        limit = ClientTimeout(total=seconds)
        try:
            async with self._http.request(method, self._url + path, json=json, headers=self._headers, timeout=limit) as answer:
                return await _result(answer, path)
        except (ClientError, TimeoutError, OSError) as error:
            raise GatewayUnavailable(f"the model gateway at {self._url} did not answer: {type(error).__name__}") from error


def _path(step: StepKey) -> str:
    return "/steps/" + "/".join(quote(part, safe="") for part in step)


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
