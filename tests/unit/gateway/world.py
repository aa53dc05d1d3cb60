"""A gateway in front of a fake model, and the requests of agents."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from multistep.gateway.http.servers import running_gateway
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import SigningKey, StepClaims, StepKey, sign_token
from multistep.gateway.model_api.routes import BASE_PATHS
from multistep.gateway.operator_client import GatewayAdmin
from multistep.gateway.settings import GatewaySettings
from multistep.providers import ProviderName
from tests.support.fake_model import FakeModel, fake_model
from tests.support.model_answers import Api

KEY = SigningKey("k1", b"0123456789abcdef0123456789abcdef")
ADMIN_TOKEN = "admin-token-0123456789-0123456789"
REAL_KEYS: dict[ProviderName, str] = {"openai": "sk-REAL-openai", "anthropic": "sk-ant-REAL", "gemini": "AIza-REAL"}
PROVIDERS: dict[Api, ProviderName] = {"chat": "openai", "responses": "openai", "messages": "anthropic", "gemini": "gemini"}
MODELS: dict[Api, str] = {
    "chat": "gpt-5-mini",
    "responses": "gpt-5.2-codex",
    "messages": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-pro",
}
UPSTREAM_PATHS: dict[ProviderName, str] = {"openai": "/v1", "anthropic": "", "gemini": ""}


@dataclass(frozen=True)
class Seen:
    """An answer as an agent received it. error: class name of the exception that interrupted the answer, or ""."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass
class World:
    """A running gateway, the fake model behind it, and clients of its two ports."""

    http: aiohttp.ClientSession
    model: FakeModel
    admin: GatewayAdmin
    port: int
    admin_port: int
    settings: GatewaySettings

    def credential(self, provider: ProviderName, base_url: str | None = "") -> Credential:
        """Return a provider's credential. base_url: "" for the fake model's URL, None for the URL in the gateway's settings."""
        url = self.model.url + UPSTREAM_PATHS[provider] if base_url == "" else base_url
        return Credential.model_validate({"provider": provider, "key": REAL_KEYS[provider], "baseURL": url})

    async def register(self) -> None:
        """Register a credential of each provider with the gateway; its id is the provider's name."""
        for provider in REAL_KEYS:
            await self.admin.register(provider, self.credential(provider))

    async def call(self, api: Api, suffix: str = "", *, stream: bool = False, **more: Any) -> Seen:
        """Send a request for the API's model in MODELS. suffix: appended to the model's name; more: other arguments of send."""
        return await self.send(api, MODELS[api] + suffix, stream=stream, **more)

    async def send(
        self, api: Api, model: str, *, stream: bool, token: str | None = None, text: str = "say: hello", read: int | None = None
    ) -> Seen:
        """Send a request as an agent. read: number of chunks of the answer after which the agent disconnects; None: never."""
        path, headers, body = request_of(api, model, token or token_for(api), stream=stream, text=text)
        status, got, answer_headers = 0, b"", {}
        try:
            async with self.http.post(f"http://127.0.0.1:{self.port}{path}", headers=headers, json=body) as answer:
                status, answer_headers, pieces = answer.status, dict(answer.headers), 0
                async for piece in answer.content.iter_any():
                    got, pieces = got + piece, pieces + 1
                    if read is not None and pieces >= read:
                        answer.close()
                        break
        except (aiohttp.ClientError, OSError) as error:
            return Seen(status, got, answer_headers, type(error).__name__)
        return Seen(status, got, answer_headers)


def token_for(api: Api, uid: str = "uid-1", step: str = "0", key: SigningKey = KEY, **claims: Any) -> str:
    """Return a step token for requests to this API. claims: further or replaced claims, by their names in the token."""
    given = {
        "sub": f"{uid}/1/{step}/agent",
        "credential": PROVIDERS[api],
        "exp": int(time.time()) + 600,
        **claims,
    }
    return sign_token(StepClaims.model_validate(given), key)


def step_of(uid: str = "uid-1", step: str = "0") -> StepKey:
    """Return the key of the step for which ``token_for`` returns tokens."""
    return StepKey(uid, "1", step, "agent")


def request_of(
    api: Api, model: str, token: str, *, stream: bool = False, text: str = "say: hello"
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Return the path, the headers and the body of a request to this API."""
    base = BASE_PATHS[PROVIDERS[api]]
    message = {"role": "user", "content": text}
    streamed = {"stream": True} if stream else {}
    if api == "messages":
        headers = {"x-api-key": token, "anthropic-version": "2023-06-01"}
        return f"{base}/v1/messages", headers, {"model": model, "max_tokens": 1000, "messages": [message], **streamed}
    if api == "gemini":
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        contents = [{"role": "user", "parts": [{"text": text}]}]
        return f"{base}/v1beta/models/{model}:{verb}", {"x-goog-api-key": token}, {"contents": contents}
    headers = {"Authorization": f"Bearer {token}"}
    if api == "chat":
        return f"{base}/chat/completions", headers, {"model": model, "messages": [message], **streamed}
    return f"{base}/responses", headers, {"model": model, "input": text, **streamed}


def write_secrets(directory: Path) -> dict[str, Any]:
    """Write a gateway's keys and token to files; return settings that use them and allow providers without TLS."""
    keys = directory / "keys"
    keys.mkdir(parents=True, exist_ok=True)
    (keys / KEY.id).write_bytes(KEY.secret)
    token = directory / "admin-token"
    token.write_text(ADMIN_TOKEN)
    secrets = {"signing_keys_dir": keys, "admin_token_file": token, "ledger_file": directory / "ledger.sqlite"}
    ports = {"listen_host": "127.0.0.1", "port": 0, "admin_port": 0, "probe_port": 0}
    return {**secrets, **ports, "plain_upstreams": True, "settle_seconds": 0.0}


@asynccontextmanager
async def world(directory: Path, retry_after: float = 0.2, register: bool = True, **settings: Any) -> AsyncIterator[World]:
    """Run a gateway in this process, in front of a fake model. register: whether to register a credential of each provider."""
    given = GatewaySettings(**{**write_secrets(directory), "stop_seconds": 1.0, **settings})
    async with fake_model(retry_after=retry_after) as model, running_gateway(given) as ports:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as http:
            admin = GatewayAdmin(http, f"http://127.0.0.1:{ports.admin_port}", ADMIN_TOKEN)
            found = World(http, model, admin, ports.port, ports.admin_port, given)
            if register:
                await found.register()
            yield found


def documents(body: bytes) -> list[Any]:
    """Return the JSON documents in an answer's body: one per server-sent event, or one if the answer is not streamed."""
    if not body.startswith((b"data:", b"event:")):
        return [json.loads(body)]
    data = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    return [json.loads(each) for each in data if each != b"[DONE]"]
