"""The providers' keys, in memory only: the operator registers them again after the gateway restarts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from multistep.providers import BASE_URL, ProviderName


class Credential(BaseModel):
    """A provider's key. base_url: e.g. ``https://api.openai.com/v1``; None for the provider's default URL."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="forbid", hide_input_in_errors=True)

    provider: ProviderName
    key: SecretStr
    base_url: str | None = Field(default=None, alias="baseURL", pattern=BASE_URL)

    @field_validator("key")
    @classmethod
    def _is_a_header(cls, key: SecretStr) -> SecretStr:
        text = key.get_secret_value()
        if not text.isascii() or not text.isprintable() or " " in text or not text:
            raise ValueError("the key is empty or has characters that a header cannot have")
        return key

    def header(self) -> tuple[str, str]:
        """Return the name and value of the HTTP header that authenticates to the provider."""
        key = self.key.get_secret_value()
        headers = {"openai": ("Authorization", f"Bearer {key}"), "anthropic": ("x-api-key", key), "gemini": ("x-goog-api-key", key)}
        return headers[self.provider]

    def wire(self) -> dict[str, Any]:
        """Return the JSON body of the request that registers this credential."""
        return {"provider": self.provider, "key": self.key.get_secret_value(), "baseURL": self.base_url}


class Credentials:
    """The registered credentials, by id."""

    def __init__(self) -> None:
        self._registered: dict[str, Credential] = {}
        self._changed = asyncio.Event()
        self._wanted: dict[str, int] = {}

    @property
    def registered(self) -> list[str]:
        """Return the ids of the registered credentials."""
        return sorted(self._registered)

    @property
    def wanted(self) -> list[str]:
        """Return the ids of credentials that are not registered yet and for which requests wait."""
        return sorted(self._wanted)

    def register(self, id_: str, credential: Credential) -> None:
        """Register or replace a credential."""
        self._registered[id_] = credential
        self._changed.set()
        self._changed = asyncio.Event()

    async def get(self, id_: str, seconds: float) -> Credential | None:
        """Return a credential; wait for its registration for at most ``seconds``, then return None."""
        if id_ in self._registered:
            return self._registered[id_]
        self._wanted[id_] = self._wanted.get(id_, 0) + 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while id_ not in self._registered:
                        await self._changed.wait()
        finally:
            self._wanted[id_] -= 1
            if not self._wanted[id_]:
                del self._wanted[id_]
        return self._registered.get(id_)
