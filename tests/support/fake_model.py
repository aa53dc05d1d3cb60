"""A scripted model server: OpenAI chat completions and responses, Anthropic messages, and Gemini, streamed or not.

``python -m tests.support.fake_model --port PORT``. The instruction contains the script (tests/support/model_script.py);
suffixes of the model's name select faults:

    -fail-STATUS[-N]  answers all requests, or the first N of each API key, with STATUS and a Retry-After; -500 means -fail-500
    -cut              breaks the connection in the middle of the answer
    -short            ends the response properly, but before the stream's end event
    -error            sends an error event in the middle of a stream
    -drop             breaks the connection before the answer
    -slow-MS          waits MS milliseconds before each event, or before an answer that is not streamed
    -cap-N-MS         handles N concurrent requests, each for MS milliseconds, and rejects others with 429
    -credit           answers 400, as Anthropic does if the account has no credit
    -quota[-retry]    answers 429, as OpenAI does if the account has no credit; with -retry it sends a Retry-After
    -too-large        answers 429, as OpenAI does if the request alone exceeds a rate limit
    -echo             answers 400 with the request's headers in the message
    -vllm             answers chat completions as vLLM does, with token ids if they are asked for

PUT /_faults sets a list of such suffixes; each later request gets the next one, and after the last one
the list repeats. The suffix "" selects no fault.
GET /_ledger lists the requests with the charged tokens; DELETE /_ledger empties the list.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.support.model_answers import Answer, Api, answer

Outcome = Literal["open", "answered", "refused", "cut", "left"]
_MESSAGES = {429: "Rate limit exceeded", 529: "Overloaded", 401: "invalid x-api-key", 404: "model not found"}
_LIMITS = (429, 503, 529)


@dataclass
class Entry:
    """One request as the provider sees it. faults: the model's name and the suffix from PUT /_faults. Tokens are charged when
    the answer starts."""

    api: str
    model: str
    key: str
    stream: bool
    path: str
    body: str
    headers: dict[str, str]
    faults: str
    status: int = 0
    outcome: Outcome = "open"
    input: int = 0
    cached: int = 0
    output: int = 0


def _is_set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class FakeModel:
    """The server's state. retry_after: Retry-After of rejected requests, in seconds; port: the TCP port on which it listens;
    revoked: keys that it answers with the status, message and type in revocation; open: while it is not set, requests that
    `-cap` accepted wait."""

    retry_after: float = 1.0
    port: int = 0
    entries: list[Entry] = field(default_factory=list)
    most_at_once: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    revoked: set[str] = field(default_factory=set)
    revocation: tuple[int, str, str] = (401, "", "authentication_error")
    open: asyncio.Event = field(default_factory=_is_set)
    _refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    _busy: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        """Return the server's URL on this machine."""
        return f"http://127.0.0.1:{self.port}"

    def app(self) -> web.Application:
        """Return the server's aiohttp application."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/_ledger", self._show)
        app.router.add_delete("/_ledger", self._forget)
        app.router.add_put("/_faults", self._set_faults)
        app.router.add_post("/{path:.*}", self._post)
        app.router.add_get("/{path:.*}", self._get)
        return app

    async def _show(self, _: web.Request) -> web.Response:
        return web.json_response([asdict(each) for each in self.entries])

    async def _forget(self, _: web.Request) -> web.Response:
        self.entries.clear()
        return web.Response(status=204)

    async def _set_faults(self, request: web.Request) -> web.Response:
        self.faults = await request.json()
        return web.Response(status=204)

    async def _get(self, request: web.Request) -> web.Response:
        if "Upgrade" in request.headers:
            return web.json_response({"error": {"message": "no websockets here"}}, status=426)
        model = {"id": "fake-1", "object": "model", "type": "model", "display_name": "fake-1"}
        return web.json_response({"object": "list", "data": [model], "has_more": False})

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = json.loads(body or b"{}")
        path = request.path
        if path.endswith(("/count_tokens", ":countTokens")):
            return web.json_response({"input_tokens": len(body) // 4 + 1, "totalTokens": len(body) // 4 + 1})
        api = _api_of(path)
        if api is None:
            return web.json_response({"error": {"message": f"no such path: {path}"}}, status=404)
        in_path = re.search(r"/models/([^/:]+):", path)
        model = in_path[1] if in_path else str(asked.get("model"))
        stream = ":stream" in path if in_path else bool(asked.get("stream"))
        headers = {name: value for name, value in request.headers.items()}  # noqa: C416  a copy without the multidict's type
        fault = self.faults[len(self.entries) % len(self.faults)] if self.faults else ""
        entry = Entry(api, model, _key_of(request), stream, request.path_qs, body.decode(errors="replace"), headers, model + fault)
        self.entries.append(entry)
        try:
            return await self._with_faults(request, entry, lambda: answer(api, asked, model, body))
        except (ConnectionError, asyncio.CancelledError):
            entry.outcome = "left"
            raise

    async def _with_faults(self, request: web.Request, entry: Entry, make: Any) -> web.StreamResponse:
        if entry.key in self.revoked:
            return self._refuse(entry, *self.revocation)
        if (status := self._refusal(entry)) is not None:
            return self._refuse(entry, status)
        if "-credit" in entry.faults:
            return self._refuse(entry, 400, "Your credit balance is too low to access the Anthropic API.")
        if "-quota" in entry.faults:
            text, retry = "You exceeded your current quota.", "-quota-retry" in entry.faults
            return self._refuse(entry, 429, text, "insufficient_quota", retry=retry)
        if "-too-large" in entry.faults:
            return self._refuse(entry, 429, "Request too large for m (TPM): Limit 30000, Requested 36278.", "tokens")
        if "-echo" in entry.faults:
            return self._refuse(entry, 400, json.dumps(entry.headers))
        if "-drop" in entry.faults:
            return _broken(request, entry)
        if (cap := re.search(r"-cap-(\d+)-(\d+)", entry.faults)) is None:
            return await self._answer(request, entry, make())
        if self._busy[entry.model] >= int(cap[1]):
            return self._refuse(entry, 429)
        self._busy[entry.model] += 1
        self.most_at_once[entry.model] = max(self.most_at_once[entry.model], self._busy[entry.model])
        try:
            await self.open.wait()
            await asyncio.sleep(int(cap[2]) / 1000)
            return await self._answer(request, entry, make())
        finally:
            self._busy[entry.model] -= 1

    def _refusal(self, entry: Entry) -> int | None:
        found = re.search(r"-fail-(\d{3})(?:-(\d+))?", entry.faults) or re.search(r"(?<!-slow)-(500)(?=$|-)()", entry.faults)
        if found is None:
            return None
        self._refused[entry.key, entry.model] += 1
        return int(found[1]) if self._refused[entry.key, entry.model] <= int(found[2] or 10**9) else None

    def _refuse(self, entry: Entry, status: int, message: str = "", kind: str = "api_error", *, retry: bool = True) -> web.Response:
        entry.status, entry.outcome = status, "refused"
        error = {"type": kind, "message": message or _MESSAGES.get(status, "Internal server error")}
        headers = {"Retry-After": f"{self.retry_after:g}"} if status in _LIMITS and retry else {}
        return web.json_response({"type": "error", "error": error}, status=status, reason="Refused", headers=headers)

    async def _answer(self, request: web.Request, entry: Entry, found: Answer) -> web.StreamResponse:
        entry.status = 200
        entry.input, entry.cached, entry.output = found.tokens.input, found.tokens.cached, found.tokens.output
        slow = re.search(r"-slow-(\d+)", entry.faults)
        pause = int(slow[1]) / 1000 if slow else 0.0
        if entry.stream:
            return await _streamed(request, entry, found, pause)
        await asyncio.sleep(pause)
        body = json.dumps(found.document).encode()
        if "-cut" in entry.faults or "-short" in entry.faults:
            return await _half_a_document(request, entry, body)
        entry.outcome = "answered"
        return web.Response(body=body, content_type="application/json", headers={"x-request-id": f"req-{len(body)}"})


async def _streamed(request: web.Request, entry: Entry, found: Answer, pause: float) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "x-request-id": "req-stream"})
    await response.prepare(request)
    half = len(found.events) // 2
    for number, (name, data) in enumerate(found.events):
        await asyncio.sleep(pause)
        if number == half and "-cut" in entry.faults:
            await response.write(b"data: {")
            return _broken(request, entry)
        if number == half and "-short" in entry.faults:
            entry.outcome = "cut"
            return response
        if number == half and "-error" in entry.faults:
            entry.outcome = "cut"
            await response.write(
                b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
            )
            return response
        await response.write(f"{f'event: {name}' + chr(10) if name else ''}data: {data}\n\n".encode())
    entry.outcome = "answered"
    return response


async def _half_a_document(request: web.Request, entry: Entry, body: bytes) -> web.StreamResponse:
    length = {"Content-Length": str(len(body))} if "-cut" in entry.faults else {}
    response = web.StreamResponse(headers={"Content-Type": "application/json", **length})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if length:
        return _broken(request, entry)
    entry.outcome = "cut"
    return response


def _broken(request: web.Request, entry: Entry) -> web.Response:
    entry.outcome = "cut"
    assert request.transport is not None
    request.transport.close()  # the transport sends all written data before it closes
    return web.Response()


def _api_of(path: str) -> Api | None:
    endings: dict[str, Api] = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}
    found = next((api for ending, api in endings.items() if path.endswith(ending)), None)
    return "gemini" if path.endswith((":generateContent", ":streamGenerateContent")) else found


def _key_of(request: web.Request) -> str:
    headers = request.headers
    bearer = headers.get("Authorization", "").removeprefix("Bearer ")
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or bearer


@asynccontextmanager
async def fake_model(host: str = "127.0.0.1", port: int = 0, retry_after: float = 1.0) -> AsyncIterator[FakeModel]:
    """Run the server inside the context; port 0: any free port."""
    model = FakeModel(retry_after)
    runner = web.AppRunner(model.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        model.port = int(runner.addresses[0][1])
        yield model
    finally:
        await runner.cleanup()


async def _serve(host: str, port: int, retry_after: float) -> None:
    async with fake_model(host, port, retry_after) as model:
        print(f"listening on port {model.port}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A scripted model server")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--retry-after", type=float, default=1.0, help="seconds")
    given = parser.parse_args()
    asyncio.run(_serve(given.host, given.port, given.retry_after))
