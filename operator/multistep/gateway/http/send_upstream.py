"""Sends a request to the provider with the provider's key, and once more if the key was rotated."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final

from aiohttp import ClientError, ClientResponse, web
from multidict import CIMultiDict
from yarl import URL

from multistep.gateway.http.request_types import AllowedRequest, GatewayServices
from multistep.gateway.model_api.error_blame import blame, error_in_body
from multistep.gateway.model_api.forwarded_headers import upstream_headers, upstream_query
from multistep.gateway.model_api.messages_as_chat import CHAT_PATH
from multistep.gateway.pace import Lane

_KEY_MAY_BE_WRONG: Final = (401, 403)
_INVALID: Final = 400
_MAY_REJECT_FIELDS: Final = (400, 422)
_ADDED_FIELD: Final = b"stream_options"
_ERROR_BYTES: Final = 4096
_ERROR_SECONDS: Final = 10.0  # maximum time in which an error's first bytes are read


class UpstreamRequest:
    """The provider's side of a request, which may be sent several times."""

    def __init__(self, services: GatewayServices, request: web.Request, allowed: AllowedRequest, lane: Lane) -> None:
        self.credential = allowed.credential
        """The key with which the request was sent last, or will be sent first."""
        self.start = b""
        """The first bytes of the last answer, if they were read already."""
        self.parsed = allowed.parsed
        """The body that was sent last, or will be sent first."""
        if lane.refuses_stream_options:
            self._restore_body()
        self._services = services
        self._request = request
        self._allowed = allowed
        self._lane = lane

    async def send(self, seconds: float) -> ClientResponse:
        """Send the request, and return the answer. If the provider rejects the field that the gateway added to the body, send the
        request again without the field.

        If the provider rejects the key, wait for at most ``seconds`` until the operator has read the key's Secret again.
        """
        answer = await self._send_with_current_key(seconds)
        if self.parsed.original is None or answer.status not in _MAY_REJECT_FIELDS:
            return answer
        self.start = self.start or await start_of(answer)
        if _ADDED_FIELD not in self.start:
            return answer
        answer.release()
        self._lane.refuses_stream_options = True
        self._restore_body()
        return await self._send_with_current_key(seconds)

    @property
    def url(self) -> str:
        """The URL to which the request is sent, without its query."""
        route = self._allowed.route
        base = self.credential.base_url or self._services.settings.base_urls[route.provider]
        return f"{base.rstrip('/')}{CHAT_PATH if self.parsed.converted else route.path}"

    def _restore_body(self) -> None:
        """Remove the gateway's field from the body to send."""
        if self.parsed.original is not None:
            self.parsed = replace(self.parsed, body=self.parsed.original, original=None, strips_usage=False)

    async def _send_with_current_key(self, seconds: float) -> ClientResponse:
        """Send the request. If the provider rejects the key, send the request once more with the key that its Secret has now,
        because the key may have been rotated while the step ran."""
        answer = await self._send()
        self.start = await start_of(answer) if answer.status == _INVALID else b""
        wrong_key = answer.status == _INVALID and blame(_INVALID, error_in_body(self.start)) == "Account"  # as Gemini reports it
        if answer.status not in _KEY_MAY_BE_WRONG and not wrong_key:
            return answer
        id_ = self._allowed.claims.credential
        newer = await self._services.credentials.after_rejection(id_, self.credential, seconds)
        if newer is None:
            return answer
        answer.release()
        self.credential = newer
        self.start = b""
        return await self._send()

    async def _send(self) -> ClientResponse:
        query = upstream_query(self._request.rel_url.raw_query_string)
        credential = self.credential.bearer() if self.parsed.converted else self.credential.header()
        headers = upstream_headers(self._request.headers.items(), credential)
        return await self._services.http.request(
            self._request.method,
            URL(f"{self.url}{'?' + query if query else ''}", encoded=True),
            headers=CIMultiDict(headers),
            data=self.parsed.body or None,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            allow_redirects=False,
        )


async def start_of(answer: ClientResponse) -> bytes:
    """Return the first bytes of an error's body, as many as arrive soon, but at most _ERROR_BYTES."""
    body = b""
    with suppress(ClientError, TimeoutError, OSError):
        async with asyncio.timeout(_ERROR_SECONDS):
            while len(body) < _ERROR_BYTES and (data := await answer.content.read(_ERROR_BYTES - len(body))):
                body += data
    return body
