"""Step tokens: a JWT (HS256) says which step calls, which models it may call, and what it may spend.

The operator signs them with a secret that only it and the gateway have. A program uses its token as the provider's API key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import jwt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

ALGORITHM: Final = "HS256"
MIN_SECRET_BYTES: Final = 32  # RFC 7518, 3.2
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Role = Literal["agent", "verifier"]


class InvalidToken(Exception):
    """The token is not valid. The text is shown to the agent and does not contain the token."""


class StepKey(NamedTuple):
    """Identity of a step's requests: trial UID, attempt, step (index or name) and role."""

    uid: str
    attempt: str
    step: str
    role: str

    def __str__(self) -> str:
        return "/".join(self)


class SigningKey(NamedTuple):
    """A secret that signs step tokens, with its id, which the token's header names."""

    id: str
    secret: bytes


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Limits(_Model):
    """Maximum tokens and US dollars that may be used; None for no limit."""

    input_tokens: int | None = Field(default=None, alias="inputTokens", ge=0)
    output_tokens: int | None = Field(default=None, alias="outputTokens", ge=0)
    cost_usd: float | None = Field(default=None, alias="costUSD", ge=0)


class StepClaims(_Model):
    """The claims of a step token.

    sub: TRIALUID/ATTEMPT/STEP/ROLE; sweep: NAMESPACE/NAME or ""; agent: the agent's name, for metrics; models: the allowed
    models, empty for any; limits: budget of this step and role; sweep_limits: budget of all steps of the sweep together;
    credential: id of the provider's key; exp: Unix time.
    """

    sub: str = Field(pattern=r"^[^/]+/[^/]+/[^/]+/(agent|verifier)$", max_length=512)
    trial: str = ""
    attempt: int | str = ""
    step: int | str = ""
    role: Role = "agent"
    sweep: str = Field(default="", max_length=512)
    namespace: str = ""
    agent: str = ""
    models: tuple[str, ...] = ()
    limits: Limits = Limits()
    sweep_limits: Limits = Field(default=Limits(), alias="sweepLimits")
    credential: str = Field(min_length=1, max_length=253)
    exp: int

    @property
    def key(self) -> StepKey:
        """Return the step that calls."""
        return StepKey(*self.sub.split("/"))

    @property
    def turn(self) -> str:
        """Return the name under which requests take turns in a lane: the sweep, or the trial's UID without a sweep."""
        return self.sweep or self.key.uid


def sign(claims: StepClaims, key: SigningKey) -> str:
    """Return a signed token with these claims."""
    body = claims.model_dump(mode="json", by_alias=True, exclude_none=True)
    return jwt.encode(body, key.secret, algorithm=ALGORITHM, headers={"kid": key.id})


def verify(token: str, secrets: Mapping[str, bytes]) -> StepClaims:
    """Return the token's claims. secrets: signing secrets by key id. Raises InvalidToken."""
    try:
        secret = secrets.get(str(jwt.get_unverified_header(token).get("kid")))
        if secret is None:
            raise InvalidToken("its signing key is unknown")
        body = jwt.decode(token, secret, algorithms=[ALGORITHM], options={"require": ["exp", "sub"]})
        return StepClaims.model_validate(body)
    except jwt.ExpiredSignatureError as error:
        raise InvalidToken("it has expired") from error
    except (jwt.InvalidTokenError, ValidationError) as error:
        raise InvalidToken("it is forged or malformed") from error


def read_signing_keys(directory: Path) -> dict[str, bytes]:
    """Return the secrets of a mounted Secret: one file per key, named by the key's id. Raises ValueError for a short secret."""
    found = {file.name: file.read_bytes().strip() for file in sorted(directory.iterdir()) if _KEY_ID.fullmatch(file.name)}
    if short := [name for name, secret in found.items() if len(secret) < MIN_SECRET_BYTES]:
        raise ValueError(f"{directory / short[0]}: the secret has fewer than {MIN_SECRET_BYTES} bytes")
    return found
