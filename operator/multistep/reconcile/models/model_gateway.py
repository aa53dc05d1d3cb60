"""Registers providers' API keys with the model gateway, issues tokens for steps, and reads the steps' usage.

The operator keeps the keys of reconciled trials in memory, to register them again after a restart of the gateway. A new operator
process reconciles every trial at its start, and so gets all keys again.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import unquote

import aiohttp
from pydantic import SecretStr, ValidationError

from multistep.api.common.base_model import Metadata
from multistep.api.common.problems import shown
from multistep.api.trial.agent_spec import AgentSpec, ModelLimits
from multistep.api.trial.models_spec import JudgeSpec, UserSpec
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.operations import HostCall, Start
from multistep.engine.journal.results_limits import Headroom
from multistep.engine.plan.hosted_agent import HostedAgent
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.plan.role_plans import JudgePlan, UserPlan
from multistep.engine.score.usage_totals import MAX_DOWNTIMES, SETUP_ACCESS, FailureKind, lost_attempts_used_budget, step_segment
from multistep.engine.status.trace_spans import ModelRequest
from multistep.engine.sweep.trial_manifests import owning_sweep
from multistep.errors import ClusterError, GatewayError, GatewayUnavailable, InvalidSpec, NotFound, StepUnknownToGateway
from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.accounting.step_usage import LastFailure, StepUsage
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import BudgetLimits, Keyring, Role, SigningKey, StepClaims, StepKey, expires_at, sign_token
from multistep.gateway.model_api.routes import STALLS_PATH
from multistep.gateway.operator_client import GatewayAdmin
from multistep.gateway.pace import ModelLoad
from multistep.providers import BY_KEY_VARIABLE, Provider, is_name_of, judge_variables, names_of, provider_of
from multistep.reconcile.models.judge_doubt import check_name, confirmed, is_checked, question, unanswered_cause, with_usage_of

ADMIN_TOKEN: Final = "admin-token"  # file with the operator's bearer token, in the same Secret as the signing keys
GetObject = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""Reads a sweep or a Secret from the API server, by namespace and name. Raises NotFound."""
KEPT_SECONDS: Final = 86400.0  # time for which an unused key stays in memory, which is longer than any requeue delay
_log: Final = logging.getLogger(__name__)
_KEY_REJECTED: Final = 401
_FORBIDDEN: Final = 403
_OF_ANY_MODEL: Final = ("Budget", "SweepBudget", "Unbounded", "Path")
_NOT_REPORTED: Final = {"models", "refusals", "last_failure", "failures", "spent", "fault", "unanswered", "capture"}
_FIELDS: Final[Mapping[Role, str]] = {"agent": "spec.agent", "judge": "spec.models.judge", "user": "spec.models.user"}
ModelUser: TypeAlias = HostedAgent | JudgePlan | UserPlan
"""Who of a trial calls a model."""
Write: TypeAlias = Callable[[bytes], Awaitable[None]]
AgentOrUser: TypeAlias = Literal["agent", "user"]
"""The roles whose programs the agent host runs."""
RENEW_SECONDS: Final = 5.0  # interval at which the operator queries which keys the gateway lacks


class ModelAccess(Protocol):
    """The calls to the model gateway that a reconcile makes."""

    @property
    def stalls_url(self) -> str:
        """Return the URL at which the agent host queries for how long the provider has stalled its step."""

    def remember(self, user: ModelUser, namespace: str) -> None:
        """Keep the keys of an active trial of this namespace in memory, to register them again if the gateway restarts."""

    async def variables(self, trial: MultiStepTrial, hosted: HostedAgent, call: HostCall) -> Mapping[str, str]:
        """Return the agent's variables with the gateway's URLs and a token for the step. Raises GatewayUnavailable."""

    async def user_variables(self, trial: MultiStepTrial, user: UserPlan, call: HostCall) -> Mapping[str, str]:
        """Return the simulated user's variables with the gateway's URLs and a token. Raises GatewayUnavailable."""

    async def judge_variables(self, trial: MultiStepTrial, judge: JudgePlan, start: Start) -> Mapping[str, str]:
        """Return the judge's variables with the gateway's URLs and a token for the verifier's phase. Raises GatewayUnavailable."""

    async def close(self, trial: MultiStepTrial, step: str, role: AgentOrUser = "agent") -> Mapping[str, Any]:
        """Block the role's token of the step, and return the gateway's report, which engine.score.usage_totals parses. Raises
        GatewayUnavailable."""

    async def save_tokens(self, trial: MultiStepTrial, step: str, headroom: Headroom, write: Write) -> str:
        """Write the token records of a step with ``write``, if it has any and they fit into the results limits. Return why records
        are missing, or "". Raises GatewayUnavailable."""

    async def delete_tokens(self, trial: MultiStepTrial, step: str) -> None:
        """Delete the token records of a step at the gateway, which otherwise deletes them after 14 days."""

    async def close_judge(
        self, trial: MultiStepTrial, access: str, judge: JudgePlan | None = None, lost: Collection[str] = ()
    ) -> Mapping[str, Any]:
        """Block the judge's token of a run of a verification, and return its usage and the requests that got no answer, for
        parse_judge_report. judge: None if only the usage is needed; lost: as in CloseModelAccess. Raises GatewayUnavailable."""


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
        sweep = owning_sweep(trial.metadata.owner_references)
        name_of_sweep = "" if sweep is None else "/".join((trial.metadata.namespace, *sweep))
        limits = await self._sweep_limits(trial)
        spec, until = trial.spec.agent, expires_at(self._clock(), call.timeout)
        return self._for_class(
            await self._tokens(
                trial, hosted, spec, call.model_access, until, limits=spec.limits, sweep=name_of_sweep, sweep_limits=limits
            )
        )

    async def user_variables(self, trial: MultiStepTrial, user: UserPlan, call: HostCall) -> Mapping[str, str]:
        """Register the keys, and return the simulated user's variables. Its requests use its own budget only."""
        spec, until = user.spec, expires_at(self._clock(), call.timeout)
        return self._for_class(
            await self._tokens(trial, user, spec, call.user_access, until, models=spec.allowed_models, limits=spec.limits)
        )

    def _for_class(self, tokens: Sequence[tuple[str, Provider, str]]) -> Mapping[str, str]:
        """Return the variables from which a class of Harbor reads key and URL."""
        found = {name: token for name, _, token in tokens}
        for _, provider, _ in tokens:
            found |= dict.fromkeys(provider.url_variables, f"{self._url}{provider.path}")
        return found

    async def judge_variables(self, trial: MultiStepTrial, judge: JudgePlan, start: Start) -> Mapping[str, str]:
        """Register the keys, and return the variables of judge.spec.sources. Their requests use the judge's budget only."""
        found, spec = dict[str, str](), judge.spec
        for name, provider, token in await self._tokens(
            trial,
            judge,
            spec,
            start.model_access,
            expires_at(self._clock(), start.timeout),
            models=spec.allowed_models,
            limits=spec.limits,
        ):
            url = f"{self._url}{provider.path}"
            found |= {variable: token if is_key else url for variable, is_key in judge_variables(name).items()}
        return found

    async def _tokens(
        self,
        trial: MultiStepTrial,
        user: ModelUser,
        spec: AgentSpec | JudgeSpec | UserSpec,
        access: str,
        until: int,
        *,
        models: Sequence[str] = (),
        limits: ModelLimits | None = None,
        sweep: str = "",
        sweep_limits: BudgetLimits = BudgetLimits(),  # noqa: B008 - it is frozen
    ) -> list[tuple[str, Provider, str]]:
        """Register the keys, and return the variable of each key with its provider and a token in its place.

        spec: the user's. For an agent it is that of the trial, as a plan may have an older one. access: name of the access; until:
        when the tokens expire, in seconds since the epoch; models: the only ones that they may name, () for any; limits: the
        budget. sweep, sweep_limits: the sweep whose budget the requests use, as NAMESPACE/NAME/UID, and its budget; "" for none.
        """
        self.remember(user, trial.metadata.namespace)
        signing, role = await self._signing_key(), _role(user)
        key = _key(trial, access, role)
        await self._admin.open(key, signing, until)
        found = []
        for name, provider, credential in _credentials(user, trial.metadata.namespace):
            id = _id(credential, signing.secret)
            await self._register(id, credential, _FIELDS[role])
            claims = StepClaims(
                sub=str(key),
                sweep=sweep,
                agent=spec.label if isinstance(spec, AgentSpec) else role,
                models=tuple(models),
                limits=_limits(limits),
                sweep_limits=sweep_limits,
                refuses_tools=spec.provider_tools == "Refuse",
                captures=isinstance(spec, AgentSpec) and spec.captures and access != SETUP_ACCESS,
                trained_models=names_of(spec.model) if spec.model is not None else (),
                credential=id,
                exp=until,
            )
            found.append((name, provider, sign_token(claims, signing)))
        return found

    async def set_weights(self, sweep: Metadata, version: str, *, paused: bool) -> int:
        """Set the version of the weights that answer a sweep's agents, and hold or send their requests. Return the number of
        requests in flight. The call is idempotent. Raises GatewayUnavailable."""
        return await self._admin.set_weights(f"{sweep.namespace}/{sweep.name}/{sweep.uid}", version, paused=paused)

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

    async def _register(self, id: str, credential: Credential, field: str) -> None:
        try:
            await self._admin.register(id, credential)
        except GatewayUnavailable:
            raise
        except GatewayError as error:
            raise InvalidSpec(f"{field}.baseURL {shown(credential.base_url)}: {error}") from None

    async def close(self, trial: MultiStepTrial, step: str, role: AgentOrUser = "agent") -> Mapping[str, Any]:
        """Block the role's token of the step, and return the gateway's report. It has only downtimes if there was no request."""
        key = _key(trial, step, role)
        try:
            usage = await self._admin.close(key)
        except StepUnknownToGateway:
            return {"downtimes": await self._downtimes(key)}
        document = _document(usage)
        spec = _spec(trial, role)
        model = spec.model
        failure = _failure(usage, model)
        fault = usage.fault if usage.fault is not None and _counts(usage, model, usage.fault) else None
        return {
            "usage": document,
            "failure": failure and {"kind": _kind(trial, spec, usage, failure), "message": failure.message[:2000]},
            "fault": fault and {"kind": "Provider", "message": fault.message[:2000], "atTimeout": fault.at_timeout},
            "downtimes": await self._downtimes(key),
        }

    async def save_tokens(self, trial: MultiStepTrial, step: str, headroom: Headroom, write: Write) -> str:
        """Write the step's token records, as the gateway's report describes them, and return why records are missing, or ""."""
        key = _key(trial, step, "agent")
        try:
            facts = (await self._admin.close(key)).capture
        except StepUnknownToGateway:
            return ""
        if facts is None:
            return ""
        if facts.bytes > headroom.bytes:
            limit = f"settings.results{headroom.bytes_of.capitalize()}Bytes"
            return f"its {facts.bytes} bytes exceed the {headroom.bytes} left of {limit}: raise it"
        digest = hashlib.sha256()
        async for piece in self._admin.read_capture(key):
            digest.update(piece)
            await write(piece)
        if digest.hexdigest() != facts.sha256:
            raise GatewayUnavailable(f"step {key}: the token records that the model gateway sent differ from its report")
        return facts.why

    async def delete_tokens(self, trial: MultiStepTrial, step: str) -> None:
        """Delete the step's token records at the gateway."""
        key = _key(trial, step, "agent")
        try:
            await self._admin.delete_capture(key)
        except GatewayError as error:
            _log.warning("step %s: cannot delete its token records at the model gateway: %s", key, error)

    async def close_judge(
        self, trial: MultiStepTrial, access: str, judge: JudgePlan | None = None, lost: Collection[str] = ()
    ) -> Mapping[str, Any]:
        """Return the usage of a run of a verification and why requests of its judge got no answer, and block its token."""
        key = _key(trial, access, "judge")
        try:
            usage = await self._admin.close(key)
        except StepUnknownToGateway:
            return {"downtimes": await self._downtimes(key), "at": self._clock()}
        found = unanswered_cause(trial, usage, lost)
        if judge is not None and found is not None and is_checked(found[0], usage):
            check = await self._check(trial, judge, access)
            usage, found = with_usage_of(usage, check), (confirmed(found[0], check), found[1])
        return {
            "usage": _document(usage),
            "unanswered": found and {"cause": found[0], "message": found[1][:2000]},
            "downtimes": await self._downtimes(key),
            "at": self._clock(),
        }

    async def _check(self, trial: MultiStepTrial, judge: JudgePlan, access: str) -> StepUsage:
        """Ask the judge's model for a word, and return the usage of this request, which shows whether its provider answers.

        A process of the trial can send requests that fail, but has no influence on this one. The request counts for the judge's
        budget, but is sent also if the budget is used up.
        """
        check = check_name(access)
        until = expires_at(self._clock(), 0.0)
        tokens = {provider: token for _, provider, token in await self._tokens(trial, judge, judge.spec, check, until)}
        asked = provider_of(judge.spec.model)
        provider = asked if asked in tokens else next(iter(tokens))
        questions = [question(provider, name) for name in names_of(judge.spec.model)]
        await asyncio.gather(*(self._admin.ask(tokens[provider], path, body) for path, body in questions))
        return await self._admin.close(_key(trial, check, "judge"))

    async def _downtimes(self, key: StepKey) -> Sequence[Mapping[str, Any]]:
        """Return the gateway's first downtimes since the step's start.

        Later ones do not matter, because the first downtime in which the agent ran decides.
        """
        found = await self._admin.missed_by(key)
        return [{"began": began, "ended": ended, "why": why} for began, ended, why in found[:MAX_DOWNTIMES]]

    def remember(self, user: ModelUser, namespace: str) -> None:
        """Keep the credentials in memory, to register them again if the gateway restarts.

        Raises InvalidSpec for a key that contains characters that no HTTP header may have.
        """
        for _, _, credential in _credentials(user, namespace):
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

    async def requests_of(self, trial: MultiStepTrial) -> Sequence[ModelRequest]:
        """Return the trial's finished model requests, for its trace. Raises GatewayError."""
        return [_model_request(row) for row in await self._admin.requests_of(trial.metadata.uid)]

    async def loads(self) -> Mapping[str, ModelLoad]:
        """Return how many requests the providers answered and refused since the gateway's start, by requested model.

        Raises GatewayError.
        """
        return await self._admin.loads()


def _model_request(row: RequestRow) -> ModelRequest:
    _, attempt, access, role = row.step.split("/")
    return ModelRequest(
        id=row.id,
        attempt=int(attempt),
        access=unquote(access),
        role=role,
        provider=row.provider,
        model=row.model,
        start=row.began,
        end=row.began if row.ended is None else row.ended,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        held_seconds=row.held_seconds,
        error="" if row.state == "done" else str(row.status) if row.status >= 400 else row.state,
    )


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
    env = {**variables, **call.request.get("env", {})}
    return replace(call, request={**call.request, "env": env, **_stalls(call, hosted, variables, stalls_url)})


def with_user_access(call: HostCall, user: UserPlan, variables: Mapping[str, str], stalls_url: str) -> HostCall:
    """Return the call of the agent host with the variables of the simulated user, and its access to stalls as of an agent."""
    of_user = {**call.request.get("user", {}), "env": dict(variables), **_stalls(call, user, variables, stalls_url)}
    return replace(call, request={**call.request, "user": of_user})


def _stalls(call: HostCall, user: ModelUser, variables: Mapping[str, str], url: str) -> Mapping[str, Any]:
    if not call.max_stalled:
        return {}
    token = next(variables[name] for name in user.credentials)  # the gateway accepts any of the step's tokens
    return {"stalls": {"url": url, "token": token, "maxSeconds": call.max_stalled}}


def model_users(plan: TrialPlan) -> Iterator[ModelUser]:
    """Yield the trial's agent, judge and simulated user, as far as they call the model gateway."""
    if plan.hosted is not None and plan.hosted.spec.uses_gateway:
        yield plan.hosted
    yield from (each for each in (plan.judge, plan.user) if each is not None)


def _role(user: ModelUser) -> Role:
    return "judge" if isinstance(user, JudgePlan) else "user" if isinstance(user, UserPlan) else "agent"


def _spec(trial: MultiStepTrial, role: AgentOrUser) -> AgentSpec | UserSpec:
    if role == "agent":
        return trial.spec.agent
    assert trial.spec.models.user is not None  # a trial without one never closes its access
    return trial.spec.models.user


def _credentials(user: ModelUser, namespace: str) -> list[tuple[str, Provider, Credential]]:
    """Return name of the variable, provider and credential of each of the user's keys. Raises InvalidSpec for an invalid key."""
    refs = {each.name: each.value_from.secret_key_ref for each in user.spec.credentials if each.value_from}
    found = []
    for name, key in user.credentials.items():
        provider = BY_KEY_VARIABLE[name]  # api.trial.agent_spec rejects other names
        try:
            source = f"{namespace}/{ref.name}/{ref.key}" if (ref := refs.get(name)) is not None else ""
            credential = Credential(provider=provider.name, key=SecretStr(key.strip()), base_url=user.spec.base_url, source=source)
        except ValidationError as error:
            field = _FIELDS[_role(user)]
            raise InvalidSpec(f"{field}.credentials[{name}]: {error.errors()[0]['msg']}") from None
        found.append((name, provider, credential))
    return found


def _key(trial: MultiStepTrial, step: str, role: Role) -> StepKey:
    return StepKey(trial.metadata.uid, str(trial.status.attempt or 1), step_segment(step), role)


def _limits(limits: ModelLimits | None) -> BudgetLimits:
    return BudgetLimits() if limits is None else BudgetLimits(**limits.model_dump())


def _document(usage: StepUsage) -> dict[str, Any]:
    return usage.model_dump(mode="json", by_alias=True, exclude=_NOT_REPORTED)


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
        return last if is_name_of(model, last.model) or last.kind in _OF_ANY_MODEL else None
    return last if _counts(usage, model, last) else None


def _counts(usage: StepUsage, model: str | None, failure: LastFailure) -> bool:
    """Return whether a failure of the provider counts.

    It does not if the provider never answered the requested model, which is not the trial's, while the trial's own model works.
    """
    worked = any(is_name_of(model, name) and name not in usage.failures for name in usage.models)
    return is_name_of(model, failure.model) or failure.answered or not worked


def _kind(trial: MultiStepTrial, spec: AgentSpec | UserSpec, usage: StepUsage, failure: LastFailure) -> FailureKind:
    """Return the kind of a failure for the engine. spec: has model and limits of the role.

    A request for another model than the trial's does not count as spending the sweep's budget, because an agent may choose the most
    expensive model.
    """
    own = is_name_of(spec.model, failure.model) or spec.model is None
    match failure.kind:
        case "Path":
            return "Configuration"
        case "SweepBudget" | "Unbounded" if not own:
            return "Budget"
        case "Unbounded":
            return "Configuration"
        case "Budget" if lost_attempts_used_budget(trial.status, spec.limits, usage.spent, failure.most):
            return "LostBudget"
    return failure.kind


def _shows(model: str | None, failure: LastFailure, keys_work: bool) -> bool:
    """Return whether a failure of kind Configuration shows that the trial is configured wrongly.

    ``model`` is the trial's model. ``keys_work`` is whether the provider accepted requests for another model.
    """
    if model is None:
        return failure.status == _KEY_REJECTED and not keys_work
    return is_name_of(model, failure.model)
