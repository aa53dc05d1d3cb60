"""The providers' keys, in memory only. The operator registers them again after the gateway restarts."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from multistep.providers import BASE_URL, ProviderName

_KEPT_SECONDS: Final = 86400.0
_CONFIRMED_SECONDS: Final = 10.0  # time for which the gateway does not ask for a key again after the operator has confirmed it


class Credential(BaseModel):
    """A provider's key."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="forbid", hide_input_in_errors=True)

    provider: ProviderName
    key: SecretStr
    base_url: str | None = Field(default=None, alias="baseURL", pattern=BASE_URL)
    """URL of the API, e.g. ``https://api.openai.com/v1``. None stands for the provider's default URL."""
    source: str = Field(default="", max_length=600)
    """NAMESPACE/SECRET/KEY from which the operator can read the key again, or ""."""

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
        headers = {"openai": self.bearer(), "anthropic": ("x-api-key", key), "gemini": ("x-goog-api-key", key)}
        return headers[self.provider]

    def bearer(self) -> tuple[str, str]:
        """Return the header that authenticates to a server of OpenAI's API."""
        return "Authorization", f"Bearer {self.key.get_secret_value()}"

    def wire(self) -> dict[str, Any]:
        """Return the JSON body of the request that registers this credential."""
        return {**self.model_dump(by_alias=True), "key": self.key.get_secret_value()}

    def without_source(self) -> Credential:
        """Return this credential without its source. Credentials of one account are then equal, even if different Secrets have the
        key."""
        return self.model_copy(update={"source": ""})

    def with_key(self, key: str) -> Credential:
        """Return this credential with another key. Raises ValidationError."""
        return Credential.model_validate({**self.wire(), "key": key})


@dataclass
class _Registered:
    """A registered credential. Times are on the monotonic clock."""

    credential: Credential
    used_at: float
    """When a request last used the credential."""
    confirmed_at: float = -math.inf
    """When the operator last reported that the source still has this key."""


class Credentials:
    """The registered credentials, by id."""

    def __init__(self) -> None:
        self._registered: dict[str, _Registered] = {}
        self._changed = asyncio.Event()
        self._wanted = Counter[str]()
        self._rejected = Counter[str]()

    def has(self, id_: str) -> bool:
        """Return whether a credential with this id is registered."""
        return id_ in self._registered

    @property
    def wanted(self) -> list[str]:
        """The ids of the credentials that are not registered and for which requests wait."""
        return sorted(+self._wanted)

    @property
    def rejected(self) -> Mapping[str, str]:
        """The sources of the keys that a provider rejected and that requests wait for the operator to read again, by the
        credential's id."""
        return {id_: self._registered[id_].credential.source for id_ in +self._rejected}

    def register(self, id_: str, credential: Credential) -> None:
        """Register or replace a credential."""
        self._registered[id_] = _Registered(credential, time.monotonic())
        self._notify()

    def renew(self, id_: str, key: str | None) -> None:
        """Replace a credential's key by the one that its source has now. If the source cannot be read (None), the key stays. Raises
        ValidationError for an invalid key, and KeyError for an unknown credential."""
        registered = self._registered[id_]
        if key is not None:
            registered.credential = registered.credential.with_key(key)
        registered.confirmed_at = time.monotonic()
        self._notify()

    def forget(self) -> None:
        """Drop the credentials that no request used for a day. A later request waits until the operator registers the
        credential."""
        oldest = time.monotonic() - _KEPT_SECONDS
        self._registered = {
            id_: registered for id_, registered in self._registered.items() if registered.used_at > oldest or self._rejected[id_]
        }

    async def after_rejection(self, id_: str, rejected: Credential, seconds: float) -> Credential | None:
        """Return the credential with the key that its source has now, after the provider rejected a key that may have been rotated.
        Wait for at most ``seconds`` until the operator has read the source again. Return None if the key is still the same."""
        registered = self._registered.get(id_)
        if registered is None or not registered.credential.source:
            return None
        asked_at = time.monotonic()
        self._rejected[id_] += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while registered.credential == rejected and registered.confirmed_at < asked_at - _CONFIRMED_SECONDS:
                        await self._changed.wait()
                        registered = self._registered[id_]
        finally:
            self._rejected[id_] -= 1
        return registered.credential if registered.credential.key != rejected.key else None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def get(self, id_: str, seconds: float) -> Credential | None:
        """Return a credential. If it is not registered, wait for it for at most ``seconds``, then return None."""
        registered = self._registered.get(id_)
        if registered is not None:
            registered.used_at = time.monotonic()
            return registered.credential
        self._wanted[id_] += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while id_ not in self._registered:
                        await self._changed.wait()
        finally:
            self._wanted[id_] -= 1
            self._wanted = +self._wanted
        registered = self._registered.get(id_)
        return None if registered is None else registered.credential
