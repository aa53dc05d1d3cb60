"""Learns how a model server writes its answers to requests that do not ask for tokens.

A server either writes the fields of token ids as null or leaves them out (model_api/token_fields.py). So the gateway once asks each
server for two answers of at most two tokens, a whole one and a stream.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout

from multistep.gateway.keys.credentials import Credential
from multistep.gateway.model_api.answer_parsers import EventReader
from multistep.gateway.model_api.token_fields import AnswerForms, form_of

_KEPT_SECONDS: Final = 3600.0
_TIMEOUT: Final = ClientTimeout(total=60)
_MAX_BYTES: Final = 1 << 20
_MAX_SERVERS: Final = 1024
_INVALID: Final = (ClientError, TimeoutError, OSError, ValueError, TypeError, AttributeError, RecursionError)


class ServerForms:
    """The forms of servers, by URL and model."""

    def __init__(self, http: ClientSession) -> None:
        self._http = http
        self._forms: dict[tuple[str, str], tuple[AnswerForms, float]] = {}
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, url: str, credential: Credential, model: str) -> AnswerForms:
        """Return the forms of the server with this URL of chat completions. If the server does not answer the gateway's requests,
        which the agent's own request then shows, too, return the default."""
        server = url, model
        if len(self._locks) >= _MAX_SERVERS:  # agents can request any model
            self._locks.clear()
            self._forms.clear()
        async with self._locks[server]:
            forms, at = self._forms.get(server, (AnswerForms(), -_KEPT_SECONDS))
            if time.monotonic() - at < _KEPT_SECONDS:
                return forms
            try:
                learned = AnswerForms(
                    form_of(await self._documents(url, credential, model, stream=False)),
                    form_of(await self._documents(url, credential, model, stream=True)),
                )
            except _INVALID:
                return forms
            self._forms[server] = learned, time.monotonic()
            return learned

    async def _documents(self, url: str, credential: Credential, model: str, *, stream: bool) -> Sequence[Any]:
        """Return the documents of an answer. Raises an error of _INVALID."""
        asked = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "a"}], "stream": stream}
        headers = dict([credential.header()])
        async with self._http.post(url, json=asked, headers=headers, timeout=_TIMEOUT, raise_for_status=True) as answer:
            body = b""
            while len(body) < _MAX_BYTES and (piece := await answer.content.readany()):
                body += piece
        if not stream:
            return [json.loads(body)]
        return [json.loads(event.data) for event in EventReader().feed(body) if event.data.startswith(b"{")]
