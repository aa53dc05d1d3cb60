"""Registers providers' API keys with the model gateway, issues tokens for steps, and reads the steps' usage.

The operator keeps the keys of reconciled trials in memory, to register them again after a restart of the gateway. A new operator
process reconciles every trial at its start, and so gets all keys again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
from pydantic import SecretStr, ValidationError

from multistep.api.common.problems import shown
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.operations import HostCall
from multistep.engine.plan.hosted_agent import HostedAgent
from multistep.engine.score.usage_totals import MAX_DOWNTIMES, FailureKind, lost_attempts_used_budget, step_segment
from multistep.engine.sweep.trial_manifests import owning_sweep
from multistep.errors import ClusterError, GatewayError, GatewayUnavailable, InvalidSpec, NotFound, StepUnknownToGateway
from multistep.gateway.accounting.step_usage import LastFailure, StepUsage
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import LONGEST_SECONDS, BudgetLimits, Keyring, SigningKey, StepClaims, StepKey, sign_token
from multistep.gateway.model_api.routes import STALLS_PATH
from multistep.gateway.operator_client import GatewayAdmin
from multistep.gateway.pace import ModelLoad
from multistep.providers import BY_KEY_VARIABLE, Provider

ADMIN_TOKEN: Final = "admin-token"  # file with the operator's bearer token, in the same Secret as the signing keys
GRACE_SECONDS: Final = 3600.0  # a token expires this long after the agent's timeout
GetObject = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""Reads a sweep or a Secret from the API server, by namespace and name. Raises NotFound."""
KEPT_SECONDS: Final = 86400.0  # time for which an unused key stays in memory, which is longer than any requeue delay
_log: Final = logging.getLogger(__name__)
_KEY_REJECTED: Final = 401
_FORBIDDEN: Final = 403
_OF_ANY_MODEL: Final = ("Budget", "SweepBudget", "Unbounded", "Path")
_NOT_REPORTED: Final = {"models", "refusals", "last_failure", "failures", "spent", "fault"}
RENEW_SECONDS: Final = 5.0  # interval at which the operator queries which keys the gateway lacks


class ModelAccess(Protocol):
    """The calls to the model gateway that a reconcile makes."""

    @property
    def stalls_url(self) -> str:
        """Return the URL at which the agent host queries for how long the provider has stalled its step."""

    def remember(self, hosted: HostedAgent, namespace: str) -> None:
        """Keep the keys of an active trial of this namespace in memory, to register them again if the gateway restarts."""

    async def variables(self, trial: MultiStepTrial, hosted: HostedAgent, call: HostCall) -> Mapping[str, str]:
        """Return the agent's variables with the gateway's URLs and a token for the step. Raises GatewayUnavailable."""

    async def close(self, trial: MultiStepTrial, step: str) -> Mapping[str, Any]:
        """Block the step's token, and return the gateway's report, which engine.score.usage_totals parses. Raises
        GatewayUnavailable."""


class ModelGateway:
    """A client of the chart's model gateway."""

    def __init__(
        self,
        admin: GatewayAdmin,
        url: str,
        keyring: Keyring,
        get_sweep: GetObject,
        clock: Callable[[], float] = time.time,
        *,
        get_secret: GetObject | None = None,
    ) -> None:
        """Create the client. ``url`` is the gateway's URL for agents. ``clock`` returns seconds since the epoch."""
        self._admin, self._url, self._keyring, self._get_sweep, self._clock = admin, url.rstrip("/"), keyring, get_sweep, clock
        self._get_secret = get_secret
        self._known: dict[str, tuple[Credential, float]] = {}  # credentials by id, each with its last use by a trial
        self._accepted_keys: Sequence[str] = ()

    @property
    def stalls_url(self) -> str:
        """Return the URL at which the agent host queries for how long the provider has stalled its step."""
        return f"{self._url}{STALLS_PATH}"

    async def variables(self, trial: MultiStepTrial, hosted: HostedAgent, call: HostCall) -> Mapping[str, str]:
        """Register the keys, and return the agent's variables with a token in place of each key."""
        self.remember(hosted, trial.metadata.namespace)
        signing, found = await self._signing_key(), dict[str, str]()
        of_sweep = await self._sweep_limits(trial)
        key, until = _key(trial, call.model_access), self._expiry(call)
        await self._admin.open(key, signing, until)
        for name, provider, credential in _credentials(hosted, trial.metadata.namespace):
            id = _id(credential, signing.secret)
            await self._register(id, credential)
            claims = _claims(trial, key, id, of_sweep, until)
            found[name] = sign_token(claims, signing)
            found |= dict.fromkeys(provider.url_variables, f"{self._url}{provider.path}")
        return found

    async def _sweep_limits(self, trial: MultiStepTrial) -> BudgetLimits:
        """Return the current budget of the trial's sweep, so that a raised budget applies from the next step on.

        Raises GatewayUnavailable if the sweep was deleted, so that the trial starts no further step. Kubernetes deletes the trial
        too.
        """
        if (owner := owning_sweep(trial.metadata.owner_references)) is None:
            return BudgetLimits()
        name, uid = owner
        try:
            sweep = await self._get_sweep(trial.metadata.namespace, name)
        except NotFound:
            sweep = {"metadata": {}}
        if sweep["metadata"].get("uid") != uid:
            raise GatewayUnavailable(f"the sweep {name} of the trial does not exist, so its budget is unknown")
        return BudgetLimits.model_validate(sweep["spec"].get("budget") or {})

    async def _signing_key(self) -> SigningKey:
        """Return the newest signing key that the gateway accepts. Raises GatewayUnavailable.

        While keys are rotated, the operator may get a new key before the gateway, because the kubelets update each pod's copy of
        the Secret separately.
        """
        if not self._accepted_keys:
            self._accepted_keys = await self._admin.accepted_keys()
        for id, secret in reversed(list(self._keyring.secrets().items())):
            if id in self._accepted_keys:
                return SigningKey(id, secret)
        raise GatewayUnavailable("the model gateway accepts none of the operator's signing keys yet")

    async def _register(self, id: str, credential: Credential) -> None:
        try:
            await self._admin.register(id, credential)
        except GatewayUnavailable:
            raise
        except GatewayError as error:
            raise InvalidSpec(f"spec.agent.baseURL {shown(credential.base_url)}: {error}") from None

    async def close(self, trial: MultiStepTrial, step: str) -> Mapping[str, Any]:
        """Block the step's token, and return the gateway's report. It has only downtimes if the step made no request."""
        key = _key(trial, step)
        try:
            usage = await self._admin.close(key)
        except StepUnknownToGateway:
            return {"downtimes": await self._downtimes(key)}
        document = usage.model_dump(mode="json", by_alias=True, exclude=_NOT_REPORTED)
        model = trial.spec.agent.model
        failure = _failure(usage, model)
        fault = usage.fault if usage.fault is not None and _counts(usage, model, usage.fault) else None
        return {
            "usage": document,
            "failure": failure and {"kind": _kind(trial, usage, failure), "message": failure.message[:2000]},
            "fault": fault and {"kind": "Provider", "message": fault.message[:2000], "atTimeout": fault.at_timeout},
            "downtimes": await self._downtimes(key),
        }

    async def _downtimes(self, key: StepKey) -> Sequence[Mapping[str, Any]]:
        """Return the gateway's first downtimes since the step's start.

        Later ones do not matter, because the first downtime in which the agent ran decides.
        """
        found = await self._admin.missed_by(key)
        return [{"began": began, "ended": ended, "why": why} for began, ended, why in found[:MAX_DOWNTIMES]]

    def remember(self, hosted: HostedAgent, namespace: str) -> None:
        """Keep the credentials in memory, to register them again if the gateway restarts.

        Raises InvalidSpec for a key that contains characters that no HTTP header may have.
        """
        for _, _, credential in _credentials(hosted, namespace):
            for secret in self._keyring.secrets().values():  # the ids of running steps may be made with older signing keys
                self._known[_id(credential, secret)] = credential, self._clock()

    async def renew(self) -> None:
        """Bring the gateway and the operator up to date with each other's keys. Raises GatewayError.

        Register the API keys that the gateway lost in a restart. Read again the Secrets of API keys that a provider rejected. Query
        which signing keys the gateway accepts.
        """
        self._accepted_keys = await self._admin.accepted_keys()
        oldest = self._clock() - KEPT_SECONDS
        self._known = {id: (credential, at) for id, (credential, at) in self._known.items() if at >= oldest}
        needed = await self._admin.needed_credentials()
        for id in needed.wanted:
            if (known := self._known.get(id)) is not None:
                await self._admin.register(id, known[0])
        for id, source in needed.rejected.items():
            try:
                key = await self._key_in(source)
            except Exception as error:  # the key may have been rotated, so the requests wait, and the next pass reads it again
                _log.warning("cannot read Secret key %s, which a provider rejected, yet: %s", source, error)
            else:
                await self._admin.renew(id, key)

    async def _key_in(self, source: str) -> str | None:
        """Return the key that a Secret has now, None if it has none or the operator may not read it.

        Raises an error if the API server did not answer. ``source`` is namespace, name and key of the Secret.
        """
        namespace, secret, key = source.split("/", 2)
        if self._get_secret is None:
            return None
        try:
            data = (await self._get_secret(namespace, secret)).get("data") or {}
            return base64.b64decode(data[key]).decode().strip()
        except (ClusterError, KeyError, ValueError) as error:
            if isinstance(error, ClusterError) and not _is_answer(error):
                raise
            _log.warning(
                "cannot read the key %r of Secret %s/%s, which a provider rejected, again: %s", key, namespace, secret, error
            )
            return None

    async def loads(self) -> Mapping[str, ModelLoad]:
        """Return how many requests the providers answered and refused since the gateway's start, by requested model.

        Raises GatewayError.
        """
        return await self._admin.loads()

    def _expiry(self, call: HostCall) -> int:
        """Return when the token of a call expires, in seconds since the epoch."""
        return int(self._clock() + min(LONGEST_SECONDS, LONGEST_SECONDS if call.timeout is None else call.timeout + GRACE_SECONDS))


def connect(
    http: aiohttp.ClientSession,
    url: str,
    admin_url: str,
    secret_dir: Path,
    get_sweep: GetObject,
    get_secret: GetObject | None = None,
) -> ModelGateway:
    """Return a client of the gateway. ``secret_dir`` is the mounted Secret with the admin token and the signing keys.

    Raises ValueError for a signing key that is too short, and OSError for a missing file.
    """
    token = (secret_dir / ADMIN_TOKEN).read_text().strip()
    return ModelGateway(GatewayAdmin(http, admin_url, token), url, Keyring(secret_dir), get_sweep, get_secret=get_secret)


def with_model_access(call: HostCall, hosted: HostedAgent, variables: Mapping[str, str], stalls_url: str) -> HostCall:
    """Return the call of the agent host with the variables added.

    If stalls of the provider extend the call's timeout, also add the URL and the token with which the agent host queries these
    stalls.
    """
    request = {**call.request, "env": {**variables, **call.request.get("env", {})}}
    if call.max_stalled:
        token = next(variables[name] for name in hosted.credentials)  # the gateway accepts any of the step's tokens
        request["stalls"] = {"url": stalls_url, "token": token, "maxSeconds": call.max_stalled}
    return replace(call, request=request)


def _credentials(hosted: HostedAgent, namespace: str) -> list[tuple[str, Provider, Credential]]:
    """Return variable name, provider and credential for each of the agent's keys. Raises InvalidSpec for an invalid key."""
    refs = {each.name: each.value_from.secret_key_ref for each in hosted.spec.credentials if each.value_from}
    found = []
    for name, key in hosted.credentials.items():
        provider = BY_KEY_VARIABLE[name]  # api.trial.agent_spec rejects other names
        try:
            source = f"{namespace}/{ref.name}/{ref.key}" if (ref := refs.get(name)) is not None else ""
            credential = Credential(
                provider=provider.name, key=SecretStr(key.strip()), base_url=hosted.spec.base_url, source=source
            )
        except ValidationError as error:
            raise InvalidSpec(f"spec.agent.credentials[{name}]: {error.errors()[0]['msg']}") from None
        found.append((name, provider, credential))
    return found


def _key(trial: MultiStepTrial, step: str) -> StepKey:
    return StepKey(trial.metadata.uid, str(trial.status.attempt or 1), step_segment(step), "agent")


def _claims(trial: MultiStepTrial, key: StepKey, credential: str, of_sweep: BudgetLimits, until: int) -> StepClaims:
    sweep = owning_sweep(trial.metadata.owner_references)
    return StepClaims(
        sub=str(key),
        sweep="" if sweep is None else "/".join((trial.metadata.namespace, *sweep)),
        agent=trial.spec.agent.label,
        limits=BudgetLimits() if (limits := trial.spec.agent.limits) is None else BudgetLimits(**limits.model_dump()),
        sweep_limits=of_sweep,
        refuses_tools=trial.spec.agent.provider_tools == "Refuse",
        credential=credential,
        exp=until,
    )


def _is_answer(error: ClusterError) -> bool:
    """Return whether the API server answered that a Secret does not exist or that the operator may not read it.

    A 404 of a proxy, a 401 because of the operator's own credentials, and a missing answer show nothing about the Secret.
    """
    return error.reason == "NotFound" if isinstance(error, NotFound) else error.status == _FORBIDDEN


def _id(credential: Credential, secret: bytes) -> str:
    """Return the id of a credential, which is an HMAC that does not reveal the API key.

    Trials with the same credential have the same id. The id depends on the Secret's name, because of two Secrets with the same API
    key one may be rotated before the other. ``secret`` is the signing key's secret, which no agent has.
    """
    text = "\0".join((credential.provider, str(credential.base_url), credential.key.get_secret_value(), credential.source))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:32]


def _failure(usage: StepUsage, model: str | None) -> LastFailure | None:
    """Return the failed request that counts as the step's failure, None if none counts.

    It is the last request for the trial's model if the provider rejected it, else the step's last request. These may differ,
    because some agents also send requests for other models.

    An agent could request a model that does not exist, so that its trial is excluded instead of scored. So only a failed request
    for the trial's own model shows that the trial is configured wrongly. In a trial without a model, only a rejected key shows it.
    An agent could also request a model that the provider always refuses, to get another attempt. So a failure of a model that the
    provider never answered does not count if the last request for the trial's own model succeeded.
    """
    keys_work = bool(usage.models.keys() - usage.failures.keys())
    rejected = [each for each in usage.failures.values() if each.kind == "Configuration" and _shows(model, each, keys_work)]
    last = usage.last_failure
    if rejected or last is None:
        return rejected[0] if rejected else None
    if last.kind != "Provider":
        return last if _is_of_trial(model, last.model) or last.kind in _OF_ANY_MODEL else None
    return last if _counts(usage, model, last) else None


def _counts(usage: StepUsage, model: str | None, failure: LastFailure) -> bool:
    """Return whether a failure of the provider counts.

    It does not if the provider never answered the requested model, which is not the trial's, while the trial's own model works.
    """
    worked = any(_is_of_trial(model, name) and name not in usage.failures for name in usage.models)
    return _is_of_trial(model, failure.model) or failure.answered or not worked


def _kind(trial: MultiStepTrial, usage: StepUsage, failure: LastFailure) -> FailureKind:
    """Return the kind of a failure for the engine.

    A request for another model than the trial's does not count as spending the sweep's budget, because an agent may choose the most
    expensive model.
    """
    own = _is_of_trial(trial.spec.agent.model, failure.model) or trial.spec.agent.model is None
    match failure.kind:
        case "Path":
            return "Configuration"
        case "SweepBudget" | "Unbounded" if not own:
            return "Budget"
        case "Unbounded":
            return "Configuration"
        case "Budget" if lost_attempts_used_budget(trial, usage.spent, failure.most):
            return "LostBudget"
    return failure.kind


def _shows(model: str | None, failure: LastFailure, keys_work: bool) -> bool:
    """Return whether a failure of kind Configuration shows that the trial is configured wrongly.

    ``model`` is the trial's model. ``keys_work`` is whether the provider accepted requests for another model.
    """
    if model is None:
        return failure.status == _KEY_REJECTED and not keys_work
    return _is_of_trial(model, failure.model)


def _is_of_trial(model: str | None, requested: str) -> bool:
    """Return whether a request was for the trial's model, whose name may have the provider as a prefix.

    claude-code removes the suffix with which it selects a large context window.
    """
    name = (model or "").removesuffix("[1m]")
    return bool(requested) and requested in (name, name.partition("/")[2], name.rpartition("/")[2])
