"""Step tokens. Each is a JWT (HS256) that names a step, the models that the step may call, and the budgets that apply.

The operator signs them with a secret that only the operator and the gateway have. A program uses its token as the provider's API
key. The claims are encrypted ("sealed"), because an agent must not learn its trial, attempt or sweep from its token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import jwt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel, ConfigDict, Field, ValidationError

ALGORITHM: Final = "HS256"
MIN_SECRET_BYTES: Final = 32  # minimum key length for HS256 (RFC 7518, section 3.2)
LONGEST_SECONDS: Final = 7 * 86400.0
"""Maximum lifetime of a token."""
GRACE_SECONDS: Final = 3600.0
"""A token expires this long after the timeout of the phase that uses it."""
_SEALED: Final = "sealed"
_NONCE_BYTES: Final = 12  # as AES-GCM expects
_KEY_ID: Final = re.compile(r"k([0-9]{1,9})")

Role = Literal["agent", "judge", "user"]
"""Who of a trial calls a model: its agent, a judge, by the processes of the verifier's phase, or the simulated user."""


class InvalidToken(Exception):
    """The token is not valid. The message is shown to the agent, and does not contain the token."""


class StepKey(NamedTuple):
    """The identity of a step's requests, which consists of trial UID, attempt, step (index or name) and role."""

    uid: str
    attempt: str
    step: str
    role: str

    def __str__(self) -> str:
        return "/".join(self)


def account_of(step: StepKey) -> str:
    """Return the name of the budget that a step's requests use: UID/ROLE."""
    return f"{step.uid}/{step.role}"


class SigningKey(NamedTuple):
    """A secret that signs step tokens. The header of a token names the key's id."""

    id: str
    secret: bytes


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class BudgetLimits(_Model):
    """Maximum tokens and US dollars to use. None means no limit."""

    input_tokens: int | None = Field(default=None, alias="inputTokens", ge=0)
    output_tokens: int | None = Field(default=None, alias="outputTokens", ge=0)
    cost_usd: float | None = Field(default=None, alias="costUSD", ge=0)


class StepClaims(_Model):
    """The claims of a step token."""

    sub: str = Field(pattern=r"^[^/]+/[^/]+/[^/]+/(agent|judge|user)$", max_length=1024)
    """The step's key as TRIALUID/ATTEMPT/STEP/ROLE."""
    sweep: str = Field(default="", max_length=512)
    """The sweep, as NAMESPACE/NAME/UID, or "". The UID differs if a sweep is deleted and created again."""
    agent: str = ""
    """Name of the agent, for metrics; the role for requests of judges and simulated users."""
    models: tuple[str, ...] = ()
    """The allowed models. If there are none, any model is allowed."""
    limits: BudgetLimits = BudgetLimits()
    """Budget of the trial's role, over all steps and attempts."""
    sweep_limits: BudgetLimits = Field(default=BudgetLimits(), alias="sweepLimits")
    """The budget of all trials of the sweep together."""
    refuses_tools: bool = Field(default=False, alias="refusesTools")
    """Whether the gateway refuses requests that use tools of the provider."""
    captures: bool = False
    """Whether the gateway records the token ids of the step's requests."""
    trained_models: tuple[str, ...] = Field(default=(), alias="trainedModels")
    """Names of the trial's model. The records of other models are marked. If there are none, the trial has no model."""
    credential: str = Field(min_length=1, max_length=253)
    """Id of the provider's key."""
    exp: int
    """When the token expires, in seconds since the epoch."""

    @property
    def key(self) -> StepKey:
        """The step that sends requests with this token."""
        return StepKey(*self.sub.split("/"))

    @property
    def account(self) -> str:
        """Return the name of the budget of the trial's role."""
        return account_of(self.key)

    @property
    def turn(self) -> str:
        """The sweep, or the UID of a trial that has no sweep. A lane serves the requests of different names alternately."""
        return self.sweep or self.key.uid

    @property
    def limited(self) -> bool:
        """Whether any budget applies to the step's requests."""
        return any(limit is not None for limits in self._budgets for limit in limits.model_dump().values())

    @property
    def limits_cost(self) -> bool:
        """Whether a budget in US dollars applies to the step's requests."""
        return any(limits.cost_usd is not None for limits in self._budgets)

    @property
    def _budgets(self) -> tuple[BudgetLimits, ...]:
        return (self.limits, self.sweep_limits) if self.sweep else (self.limits,)


def expires_at(now: float, timeout: float | None) -> int:
    """Return when a token for a phase that begins now expires, in seconds since the epoch. timeout: the phase's, in seconds."""
    return int(now + (LONGEST_SECONDS if timeout is None else min(LONGEST_SECONDS, timeout + GRACE_SECONDS)))


def sign_token(claims: StepClaims, key: SigningKey) -> str:
    """Return a signed token with these claims. A step's programs use it as the provider's API key."""
    text = claims.model_dump_json(by_alias=True, exclude_none=True)
    body = {"exp": claims.exp, _SEALED: _seal(text.encode(), key.secret)}
    return jwt.encode(body, key.secret, algorithm=ALGORITHM, headers={"kid": key.id})


def verify_token(token: str, secrets: Mapping[str, bytes]) -> StepClaims:
    """Return the token's claims. ``secrets`` has the signing secrets by key id. Raises InvalidToken."""
    try:
        secret = secrets.get(str(jwt.get_unverified_header(token).get("kid")))
        if secret is None:
            raise InvalidToken("its signing key is unknown")
        body = jwt.decode(token, secret, algorithms=[ALGORITHM], options={"require": ["exp", _SEALED]})
        return StepClaims.model_validate_json(_unseal(body[_SEALED], secret))
    except jwt.ExpiredSignatureError as error:
        raise InvalidToken("it has expired") from error
    except (jwt.InvalidTokenError, InvalidTag, ValidationError) as error:
        raise InvalidToken("it is forged or malformed") from error


def _seal(text: bytes, secret: bytes) -> str:
    """Return the nonce and the encrypted text, in URL-safe base64."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return base64.urlsafe_b64encode(nonce + _cipher(secret).encrypt(nonce, text, None)).decode()


def _unseal(text: str, secret: bytes) -> bytes:
    data = base64.urlsafe_b64decode(text)
    return _cipher(secret).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)


def _cipher(secret: bytes) -> AESGCM:
    """Return the cipher for claims. Its key is derived from the secret, so that no key both signs and encrypts."""
    return AESGCM(hmac.digest(secret, b"multistep: sealed claims", "sha256"))


def read_signing_keys(directory: Path) -> dict[str, bytes]:
    """Return the signing keys of a mounted Secret by id, oldest first. They are its files k1, k2 and so on, the newest with the
    highest number. Other files are ignored. Raises ValueError if a key is too short or the directory has none."""
    numbers = {file: int(match[1]) for file in directory.iterdir() if (match := _KEY_ID.fullmatch(file.name))}
    keys = {file.name: file.read_bytes().strip() for file in sorted(numbers, key=numbers.__getitem__)}
    if not keys:
        raise ValueError(f"{directory}: has no signing key, such as k1")
    if short := [name for name, secret in keys.items() if len(secret) < MIN_SECRET_BYTES]:
        raise ValueError(f"{directory / short[0]}: the secret has fewer than {MIN_SECRET_BYTES} bytes")
    return keys


_REREAD_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)


class Keyring:
    """The signing keys in a directory, which is read again every 10 seconds. The constructor raises ValueError if a key is too
    short or there is none, and OSError if the directory is missing. Later errors are logged, and the former keys stay in use."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock
        self._secrets = read_signing_keys(directory)
        self._read_at = clock()
        self._absences: dict[str, list[tuple[float, float]]] = {fingerprint(secret): [] for secret in self._secrets.values()}

    def secrets(self) -> Mapping[str, bytes]:
        """Return the secrets by key id, oldest first, read at most 10 seconds ago.

        Reading blocks the event loop only briefly, because a mounted Secret is in memory (tmpfs).
        """
        if not 0 <= self._clock() - self._read_at <= _REREAD_SECONDS:
            self._read()
        return self._secrets

    def absences(self, key: str) -> Sequence[tuple[float, float]]:
        """Return the start and the end (seconds since the epoch) of each time in which the keyring did not have the key with this
        fingerprint. If the keyring has not had the key since the process started, the time starts at the epoch."""
        self.secrets()
        return self._absences.get(key) or ([] if key in self._absences else [(0.0, self._clock())])

    def _read(self) -> None:
        before = self._read_at
        self._read_at = self._clock()
        former = {fingerprint(secret) for secret in self._secrets.values()}
        try:
            self._secrets = read_signing_keys(self._directory)
        except (OSError, ValueError) as error:
            _log.error("cannot read the signing keys again; the former ones stay in use: %s", error)
            return
        present = {fingerprint(secret) for secret in self._secrets.values()}
        for key in present:
            self._absences.setdefault(key, [])
        for key in self._absences.keys() - present:
            began = before if key in former else self._absences[key].pop()[0]
            self._absences[key].append((began, self._read_at))


def fingerprint(secret: bytes) -> str:
    """Return a text that identifies a signing key without revealing it. The key's id cannot identify it, because another key may
    get the same id."""
    return hashlib.sha256(b"multistep: signing key\0" + secret).hexdigest()[:32]
