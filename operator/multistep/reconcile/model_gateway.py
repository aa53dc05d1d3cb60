"""Registers providers' keys with the model gateway, issues tokens for steps, and reads the steps' usage.

The keys of reconciled trials stay in memory, to register them again after a restart of the gateway. A new operator process
reconciles every trial at its start, and so gets all keys again.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
from pydantic import SecretStr, ValidationError

from multistep.api.labels import SWEEP
from multistep.api.providers import BY_KEY_VARIABLE, Provider
from multistep.api.trial import MultiStepTrial
from multistep.engine.hosted_agent import HostedAgent
from multistep.engine.operations import HostCall
from multistep.errors import GatewayError, GatewayUnavailable, InvalidSpec, StepUnknownToGateway
from multistep.gateway.client import GatewayAdmin, step_token
from multistep.gateway.credentials import Credential
from multistep.gateway.tokens import SigningKey, StepClaims, StepKey

ADMIN_TOKEN: Final = "admin-token"  # file of the operator's bearer token; the other files are signing keys
GRACE_SECONDS: Final = 3600.0  # a token expires this long after the agent's timeout
LONGEST_SECONDS: Final = 7 * 86400.0  # maximum lifetime of a token, and that of an agent without a timeout
RENEW_SECONDS: Final = 5.0  # interval at which the operator asks the gateway which keys it lacks


class ModelAccess(Protocol):
    """The calls of the model gateway that a reconcile makes."""

    def remember(self, hosted: HostedAgent) -> object:
        """Keep an active trial's keys in memory, to register them again if the gateway restarts."""

    async def variables(self, trial: MultiStepTrial, hosted: HostedAgent, call: HostCall) -> Mapping[str, str]:
        """Return the agent's variables with URLs and a token for the call's step. Raises GatewayUnavailable."""

    async def close(self, trial: MultiStepTrial, step: str) -> Mapping[str, Any]:
        """Block the step's token, and return the data of engine.model_access.report. Raises GatewayUnavailable."""


class ModelGateway:
    """A client of the chart's model gateway. url: the gateway's address for agents; clock: seconds since the epoch."""

    def __init__(self, admin: GatewayAdmin, url: str, signing: SigningKey, clock: Callable[[], float] = time.time) -> None:
        self._admin, self._url, self._signing, self._clock = admin, url.rstrip("/"), signing, clock
        self._known: dict[str, Credential] = {}

    async def variables(self, trial: MultiStepTrial, hosted: HostedAgent, call: HostCall) -> Mapping[str, str]:
        """Register the keys, and return the agent's variables with a token in place of each key."""
        found: dict[str, str] = {}
        for id, (name, provider, credential) in self.remember(hosted).items():
            await self._register(id, credential)
            found[name] = step_token(self._claims(trial, call, id), self._signing)
            found |= dict.fromkeys(provider.url_variables, f"{self._url}{provider.path}")
        return found

    async def _register(self, id: str, credential: Credential) -> None:
        try:
            await self._admin.register(id, credential)
        except GatewayUnavailable:
            raise
        except GatewayError as error:
            raise InvalidSpec(f"spec.agent: {error}") from None

    async def close(self, trial: MultiStepTrial, step: str) -> Mapping[str, Any]:
        """Return the usage and the failure of a step, and block its token; both are absent if the step made no request."""
        key = StepKey(trial.metadata.uid, str(trial.status.attempt or 1), _segment(step), "agent")
        try:
            usage = await self._admin.close(key)
        except StepUnknownToGateway:
            return {}
        document = usage.model_dump(mode="json", by_alias=True, exclude={"models", "refusals", "last_failure"})
        failure = usage.last_failure
        if failure is None or (failure.kind == "Configuration" and not _is_of_trial(trial.spec.agent.model, failure.model)):
            return {"usage": document, "failure": None}
        return {"usage": document, "failure": {"kind": failure.kind, "message": failure.message[:2000]}}

    def remember(self, hosted: HostedAgent) -> Mapping[str, tuple[str, Provider, Credential]]:
        """Return each credential with its variable's name and its provider, by the credential's id.

        Keep the credentials in memory, to register them again if the gateway restarts. Raises InvalidSpec for a key that contains
        characters that no HTTP header may have.
        """
        found = {}
        for name, key in hosted.credentials.items():
            provider = BY_KEY_VARIABLE[name]  # api.agent_spec rejects other names
            try:
                credential = Credential(provider=provider.name, key=SecretStr(key.strip()), base_url=hosted.spec.base_url)
            except ValidationError as error:
                raise InvalidSpec(f"spec.agent.credentials[{name}]: {error.errors()[0]['msg']}") from None
            found[self._id(credential)] = (name, provider, credential)
        self._known |= {id: credential for id, (_, _, credential) in found.items()}
        return found

    async def renew(self) -> None:
        """Register the keys that the gateway lacks because it restarted. Raises GatewayError."""
        for id in await self._admin.wanted():
            if (credential := self._known.get(id)) is not None:
                await self._admin.register(id, credential)

    def _id(self, credential: Credential) -> str:
        """Return the id of a credential: a keyed hash, which does not reveal the key. All trials with the same key have the same
        id, because they share the key's rate limits."""
        text = f"{credential.provider}\0{credential.base_url}\0{credential.key.get_secret_value()}"
        return hmac.new(self._signing.secret, text.encode(), hashlib.sha256).hexdigest()[:32]

    def _claims(self, trial: MultiStepTrial, call: HostCall, credential: str) -> StepClaims:
        metadata, sweep = trial.metadata, trial.metadata.labels.get(SWEEP, "")
        seconds = min(LONGEST_SECONDS, LONGEST_SECONDS if call.timeout is None else call.timeout + GRACE_SECONDS)
        step = _segment(call.model_access)
        return StepClaims(
            sub=str(StepKey(metadata.uid, str(trial.status.attempt or 1), step, "agent")),
            trial=metadata.name,
            attempt=trial.status.attempt or 1,
            step=step,
            sweep=f"{metadata.namespace}/{sweep}" if sweep else "",
            namespace=metadata.namespace,
            agent=trial.spec.agent.label,
            credential=credential,
            exp=int(self._clock() + seconds),
        )


def connect(http: aiohttp.ClientSession, url: str, admin_url: str, secret_dir: Path) -> ModelGateway:
    """Return the gateway's client. secret_dir: mounted Secret with the admin token and signing keys; the last by name is used."""
    keys = sorted(each for each in secret_dir.iterdir() if each.is_file() and each.name != ADMIN_TOKEN)
    signing = SigningKey(keys[-1].name, keys[-1].read_bytes().strip())
    token = (secret_dir / ADMIN_TOKEN).read_text().strip()
    return ModelGateway(GatewayAdmin(http, admin_url, token), url, signing)


def _is_of_trial(model: str | None, requested: str) -> bool:
    """Whether a request was for the trial's model, perhaps with a date or a version after its name.

    A program can ask for a model that does not exist in order not to be scored, so a request for another model is no evidence that
    the trial is configured wrongly.
    """
    name = (model or "").rpartition("/")[2]
    return bool(name) and requested.startswith(name)


def _segment(step: str) -> str:
    """Return a step's name without slashes, because slashes separate the parts of a StepKey."""
    return step.replace("/", "-")
