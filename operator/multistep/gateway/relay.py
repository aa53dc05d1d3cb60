"""Forwards an answer to the agent, byte for byte, and records the answer's usage before the agent can see the answer's end.

A request whose answer is relayed is never sent again. The ledger has the usage before the agent gets the last event, so the usage
counts even if the agent then disconnects. If the provider's answer is cut off, the agent's connection is aborted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, Protocol

from aiohttp import ClientError, ClientResponse, SocketTimeoutError, web
from multidict import CIMultiDict

from multistep.gateway.bodies import Asked
from multistep.gateway.client_connection import ClientConnection
from multistep.gateway.dialects import Dialect, Reading, Usage, blames_configuration
from multistep.gateway.events import Event, EventReader
from multistep.gateway.headers import answer_headers
from multistep.gateway.ledger import Kind, State

REDACTED: Final = "[REDACTED]"
REQUEST_MAY_BE_WRONG: Final = (403, 404)  # either the request is wrong, or the configuration, such as the key or the model
_CONFIGURATION_IS_WRONG: Final = (401, 402)
_MESSAGE_CHARACTERS: Final = 300
_BROKEN: Final = (ClientError, TimeoutError, OSError)
SLOW_SECONDS: Final = 5.0
"""If the agent made an answer wait for longer, that may be why the provider cut it off."""


class Request(Protocol):
    """The request that is answered."""

    async def finish(self, state: State, status: int, usage: Usage | None, kind: Kind = "", message: str = "") -> None:
        """Record the end of the request. May be called again with newer usage. usage: None if unknown."""

    def blame_silence(self) -> Kind:
        """Return the kind of failure if the provider sent nothing for ``answer_timeout_seconds``."""


class Relay:
    """Forwards one answer. key: the provider's key, which must not reach the agent; asked: the parsed request."""

    def __init__(
        self, client: ClientConnection, answer: ClientResponse, dialect: Dialect, key: str, asked: Asked, request: Request
    ) -> None:
        self._client = client
        self._answer = answer
        self._reading = Reading(dialect)
        self._key = key
        self._asked = asked
        self._request = request
        self._recorded: Usage | None = None
        self._ended = False

    async def run(self) -> web.StreamResponse:
        """Forward the answer, and return the response that the agent got."""
        headers = answer_headers(self._answer.headers.items(), self._key, REDACTED)
        if self._answer.content_type == "text/event-stream" and self._answer.status < 400:
            return await self._stream(headers)
        return await self._whole(headers)

    async def _whole(self, headers: Sequence[tuple[str, str]]) -> web.StreamResponse:
        try:
            body = await self._answer.read()
        except _BROKEN as error:
            return await self._cut(web.Response(status=502), error)
        response = web.Response(status=self._answer.status, reason=self._answer.reason, headers=CIMultiDict(headers))
        response.body = self._redacted(body)
        if self._answer.status >= 400:
            await self._record_error(body)
            return response
        self._reading.document(body)
        if not self._reading.ended and not self._encoded:
            return await self._cut(response, None)
        if self._reading.failed:
            await self._fail(self._reading.usage)
        else:
            await self._request.finish("done", self._answer.status, self._reading.usage)
        return response

    async def _stream(self, headers: Sequence[tuple[str, str]]) -> web.StreamResponse:
        response = web.StreamResponse(status=self._answer.status, reason=self._answer.reason, headers=CIMultiDict(headers))
        await self._client.start(response)
        events = EventReader()
        broken: Exception | None = None
        try:
            async for piece in self._answer.content.iter_any():
                await self._pass_on(response, events.feed(piece))
        except _BROKEN as error:
            broken = error
        if (rest := events.rest()) is not None:
            await self._pass_on(response, [rest])
        if not self._ended and self._reading.failed:
            await self._fail(None)
        elif not self._ended:
            return await self._cut(response, broken)
        await self._client.end(response)
        return response

    async def _pass_on(self, response: web.StreamResponse, events: Sequence[Event]) -> None:
        kept = [event.raw for event in events if self._read(event)]
        await self._record_end()
        await self._client.write(response, self._redacted(b"".join(kept)))

    def _read(self, event: Event) -> bool:
        """Parse an event for its usage; return whether to forward the event to the agent."""
        self._reading.event(event.data)
        return not (self._asked.strips_usage and _only_usage(event.data))

    async def _record_end(self) -> None:
        """Record the usage as soon as the answer's end is read, and again if a later event corrects the usage."""
        if not self._reading.ended or (self._ended and self._reading.usage == self._recorded):
            return
        self._ended, self._recorded = True, self._reading.usage
        if self._reading.failed:
            await self._fail(self._recorded)
        else:
            await self._request.finish("done", self._answer.status, self._recorded)

    async def _fail(self, usage: Usage | None) -> None:
        words = message_of(self._reading.error.encode(errors="replace"), self._key)
        message = f"the provider reported an error in its answer{words and f': {words}'}"
        await self._request.finish("failed", self._answer.status, usage, self._blame, message)

    async def _record_error(self, body: bytes) -> None:
        status = self._answer.status
        await self._request.finish("failed", status, Usage(), self._kind_of(status, body), message_of(body, self._key))

    def _kind_of(self, status: int, body: bytes) -> Kind:
        """Return the kind of failure of an answer with an error status.

        Providers answer 403 or 404, too, if a file or a conversation does not exist. So if the request has such references, only
        the answer's body shows that the configuration is wrong.
        """
        if status in _CONFIGURATION_IS_WRONG or (status in REQUEST_MAY_BE_WRONG and not self._asked.opaque):
            return "Configuration"
        if status in (400, *REQUEST_MAY_BE_WRONG) and blames_configuration(body):
            return "Configuration"
        return "Provider" if status >= 500 or status == 408 else ""

    async def _cut(self, response: web.StreamResponse, error: Exception | None) -> web.StreamResponse:
        why = f"has no end{f': {type(error).__name__}' if error else ''}"
        if self._answer.content_type == "text/html":  # e.g. a proxy's error page, or baseURL leads to a web page
            why = "is text/html and no JSON"
        await self._request.finish("cut", self._answer.status, None, self._kind_of_cut(error), f"the provider's answer {why}")
        self._client.abort()
        return response

    def _kind_of_cut(self, error: Exception | None) -> Kind:
        if self._client.stalled_seconds > SLOW_SECONDS:
            return ""
        return self._request.blame_silence() if is_silence(error) else "Provider"

    @property
    def _blame(self) -> Kind:
        """Return the kind of failure of an answer that reports an error."""
        return "" if self._reading.blames_request else "Provider"

    @property
    def _encoded(self) -> bool:
        return self._answer.headers.get("Content-Encoding", "identity") != "identity"

    def _redacted(self, data: bytes) -> bytes:
        key = self._key.encode()
        return data.replace(key, REDACTED.encode()) if key in data else data


def is_silence(error: Exception | None) -> bool:
    """Return whether the provider sent nothing for ``answer_timeout_seconds``."""
    return isinstance(error, SocketTimeoutError)


def message_of(body: bytes, key: str) -> str:
    """Return the message of a provider's error, without the key, for the trial's status."""
    text = body.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    shown = "".join(each if each.isprintable() else " " for each in text.replace(key, REDACTED)[:_MESSAGE_CHARACTERS])
    return shown.encode(errors="replace").decode()


def _only_usage(data: bytes) -> bool:
    """Return whether this is the last chunk of a chat stream, which has usage and no choices."""
    if b'"usage"' not in data:
        return False
    try:
        chunk = json.loads(data)
    except ValueError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and bool(chunk.get("usage"))
