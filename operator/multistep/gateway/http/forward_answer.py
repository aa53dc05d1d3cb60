"""Forwards an answer to the agent, byte for byte, and records the answer's usage before the agent can see the answer's end.

The gateway never sends a request again once it relays the answer. It records the usage before it sends the last event, so the usage
counts even if the agent then disconnects. If the provider's answer is cut off, the gateway aborts the agent's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from aiohttp import ClientError, ClientResponse, SocketTimeoutError, web
from multidict import CIMultiDict

from multistep.gateway.accounting.ledger_rows import Kind, State
from multistep.gateway.accounting.open_steps import LARGE_BYTES
from multistep.gateway.capture.request_capture import RequestCapture
from multistep.gateway.http.client_connection import ClientConnection
from multistep.gateway.http.request_outcome import RequestOutcome
from multistep.gateway.model_api.answer_parsers import CHAT, AnswerEvent, AnswerParser, ApiFormat, EventReader, TokenUsage
from multistep.gateway.model_api.error_blame import Blamed, ProviderError, blame, error_in_body
from multistep.gateway.model_api.forwarded_headers import answer_headers
from multistep.gateway.model_api.messages_as_chat import MessagesStream, document_of
from multistep.gateway.model_api.request_parsers import ParsedRequest
from multistep.gateway.model_api.token_fields import IDS_FIELD
from multistep.gateway.model_api.usage_chunks import UsageChunks

REDACTED: Final = "[REDACTED]"
_MESSAGE_CHARACTERS: Final = 300
_BROKEN: Final = (ClientError, TimeoutError, OSError)
_KINDS: Final[Mapping[Blamed, Kind]] = {
    "Provider": "Provider",
    "Account": "Configuration",
    "Request": "",
}
NO_IDS: Final = "capture Tokens: the model server gives no token ids; it must be vLLM from 0.10.2, or SGLang"
"""The message of a failure whose cause is that the server does not know the field of token_fields.IDS_FIELD."""
SLOW_SECONDS: Final = 5.0
"""If the agent read its answer with a longer delay, the delay may be why the provider cut the answer off."""


class Relay:
    """Forwards one answer of the provider to the agent."""

    def __init__(
        self,
        client: ClientConnection,
        answer: ClientResponse,
        api: ApiFormat,
        key: str,
        parsed: ParsedRequest,
        outcome: RequestOutcome,
        start: bytes = b"",
        capture: RequestCapture | None = None,
    ) -> None:
        """Prepare to forward an answer. ``key`` is the provider's key, which must not reach the agent. ``start`` has the bytes of
        the answer that were already read. With ``capture``, record the answer's tokens."""
        self._client = client
        self._answer = answer
        self._parser = AnswerParser(CHAT if parsed.converted else api, reads_model=bool(parsed.others))
        self._key = key
        self._parsed = parsed
        self._outcome = outcome
        self._start = start
        self._capture = capture
        self._usage_chunks = UsageChunks() if parsed.strips_usage else None
        self._messages = MessagesStream() if parsed.converted else None
        self._recorded: TokenUsage | None = None
        self._ended = False

    async def run(self) -> web.StreamResponse:
        """Forward the answer, and return the response that the agent got."""
        headers = answer_headers(self._answer.headers.items(), self._key, REDACTED)
        if self._answer.content_type == "text/event-stream" and self._answer.status < 400:
            return await self._stream(headers)
        return await self._whole(headers)

    async def _whole(self, headers: Sequence[tuple[str, str]]) -> web.StreamResponse:
        try:
            body = await self._read_whole()
        except _BROKEN as error:
            return await self._cut(web.Response(status=502), error)
        self._outcome.heard()
        response = web.Response(status=self._answer.status, reason=self._answer.reason, headers=CIMultiDict(headers))
        if self._answer.status >= 400:
            response.body = self._redacted(document_of(body) if self._parsed.converted else body)
            await self._record_error(body)
            return response
        async with self._parsing(body):
            if self._capture is not None and not self._encoded:
                body = self._capture.cut_document(body)
            self._parser.document(body)
        response.body = self._redacted(document_of(body) if self._parsed.converted else body)
        if not self._parser.ended and not self._encoded:
            return await self._cut(response, None)
        await self._record(self._parser.usage)
        return response

    async def _read_whole(self) -> bytes:
        body = bytearray(self._start)
        async for piece in self._answer.content.iter_any():
            self._outcome.count_bytes(len(piece))
            body += piece
        return bytes(body)

    async def _stream(self, headers: Sequence[tuple[str, str]]) -> web.StreamResponse:
        response = web.StreamResponse(status=self._answer.status, reason=self._answer.reason, headers=CIMultiDict(headers))
        if self._capture is not None:
            self._client.ends_on_leave = True
            if self._client.disconnected:
                raise asyncio.CancelledError
        await self._client.start(response)
        events = EventReader()
        broken: Exception | None = None
        try:
            async for piece in self._answer.content.iter_any():
                before = events.pending
                complete = events.feed(piece)
                self._outcome.count_bytes(events.pending - before)
                await self._pass_on(response, complete)
        except _BROKEN as error:
            broken = error
        if (rest := events.rest()) is not None:
            await self._pass_on(response, [rest])
        if self._usage_chunks is not None:
            await self._client.write(response, self._redacted(self._usage_chunks.rest()))
        if broken is None:
            self._parser.close(usage_expected=self._parsed.strips_usage)
            await self._record_end()
        if not self._ended and self._parser.failure is not None:
            await self._record(None)
        elif not self._ended:
            return await self._cut(response, broken)
        await self._client.end(response)
        return response

    async def _pass_on(self, response: web.StreamResponse, events: Sequence[AnswerEvent]) -> None:
        kept = []
        for event in events:
            async with self._parsing(event.data):
                kept.append(self._read(event))
        await self._record_end()
        await self._client.write(response, self._redacted(b"".join(kept)))
        if self._capture is not None and not self._client.disconnected:
            self._capture.passed_on()

    def _parsing(self, data: bytes) -> AbstractAsyncContextManager[None]:
        return self._outcome.parsing(len(data)) if len(data) > LARGE_BYTES else nullcontext()

    def _read(self, event: AnswerEvent) -> bytes:
        """Parse an event for its usage, and return the bytes to forward to the agent."""
        if event.data and event.name != b"ping":  # comments and pings show only that the connection exists
            self._outcome.heard()
        forwarded = event if self._capture is None else self._capture.cut_event(event)
        if forwarded is None:
            return b""
        self._parser.event(forwarded.data, forwarded.name)
        if self._messages is not None:
            return self._messages.feed(forwarded.data)
        return forwarded.raw if self._usage_chunks is None else self._usage_chunks.feed(forwarded)

    async def _record_end(self) -> None:
        """Record the usage as soon as the answer's end is read, and again if a later event corrects the usage."""
        if not self._parser.ended or (self._ended and self._parser.usage == self._recorded):
            return
        self._ended = True
        self._recorded = self._parser.usage
        await self._record(self._recorded)

    async def _record(self, usage: TokenUsage | None) -> None:
        """Record the end of an answer with a status below 400."""
        state: State = "failed"
        kind: Kind = "Provider"
        message = ""
        error = self._parser.failure
        if error is not None:
            words = redact(error.message, self._key)
            kind = await self._kind_of(200, error)
            message = f"the provider reported an error in its answer{words and f': {words}'}"
        elif not self._parser.answers and not self._encoded:
            message = "the provider's answer is no answer of the API"
        elif self._parser.malformed:  # many agents fail on such an event, and others ignore it
            state = "done"
            message = "the provider's answer has an event that is no JSON"
        else:
            state, kind = "done", ""
        if self._capture is not None:
            if state == "done" and self._capture.lacks_ids and not await self._outcome.model_works(for_others=False):
                state, kind, message = "failed", "Configuration", NO_IDS
            self._capture.end("Aborted" if self._client.disconnected else "Done" if state == "done" else "Cut", usage)
        await self._outcome.finish(state, self._answer.status, usage, kind, message, self._parser.model)

    async def _record_error(self, body: bytes) -> None:
        status = self._answer.status
        kind = await self._kind_of(status, error_in_body(body))
        if IDS_FIELD in self._parsed.added and IDS_FIELD.encode() in body and not await self._outcome.model_works(for_others=False):
            kind = "Configuration"
        await self._outcome.finish("failed", status, TokenUsage(), kind, error_message(body, self._key))

    async def _kind_of(self, status: int, error: ProviderError) -> Kind:
        """Return the kind of failure of an error.

        An agent may choose a request whose error looks as if the model's name or the key were wrong. If the provider answered
        another request of the trial for the model, both are right, so the request caused the error. (A provider answers a wrong
        path with the same 404 as a wrong model.)
        """
        blamed = blame(status, error, references=self._parsed.opaque)
        if blamed in ("Model", "ModelByText", "Unclear"):
            return "" if await self._outcome.model_works(for_others=blamed == "ModelByText") else "Configuration"
        return _KINDS[blamed]

    async def _cut(self, response: web.StreamResponse, error: Exception | None) -> web.StreamResponse:
        why = f"has no end{f': {type(error).__name__}' if error else ''}"
        if self._answer.content_type == "text/html":  # e.g. a proxy's error page, or a web page to which baseURL leads
            why = "is text/html and no JSON"
        if self._capture is not None:
            self._capture.end("Cut")
        await self._outcome.finish("cut", self._answer.status, None, self._kind_of_cut(error), f"the provider's answer {why}")
        self._client.abort()
        return response

    def _kind_of_cut(self, error: Exception | None) -> Kind:
        if self._client.stalled_seconds > SLOW_SECONDS:
            return ""
        return self._outcome.blame_silence() if is_silence(error) else "Provider"

    @property
    def _encoded(self) -> bool:
        return self._answer.headers.get("Content-Encoding", "identity") != "identity"

    def _redacted(self, data: bytes) -> bytes:
        key = self._key.encode()
        return data.replace(key, REDACTED.encode()) if key in data else data


def is_silence(error: Exception | None) -> bool:
    """Return whether the provider sent nothing for ``answer_timeout_seconds``."""
    return isinstance(error, SocketTimeoutError)


def error_message(body: bytes, key: str) -> str:
    """Return the message of a provider's error, without the key, for the trial's status."""
    return redact(error_in_body(body).message or body[:1000].decode(errors="replace"), key)


def redact(text: str, key: str) -> str:
    """Return the start of a provider's text, without the key and without characters that cannot be printed."""
    printable = "".join(char if char.isprintable() else " " for char in text.replace(key, REDACTED)[:_MESSAGE_CHARACTERS])
    return printable.encode(errors="replace").decode()
