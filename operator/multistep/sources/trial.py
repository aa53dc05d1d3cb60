"""A trial's task and plan: its bundle read, its variables resolved, everything checked."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..api.trial import EnvVar, KeySelector, MultiStepTrial
from ..engine.plan import TrialEnv, TrialPlan, make_plan
from ..errors import NotFound, SourceError
from .load import load_bundle
from .task import Task, load_task

Get = Callable[[str, str], Awaitable[Mapping[str, Any]]]  # namespace, name -> object; raises NotFound

KEPT = 256  # plans in memory; what is dropped is read again


@dataclass(frozen=True)
class Loaded:
    """A trial's task with its plan. env: the spec's variables, with values."""

    task: Task
    plan: TrialPlan
    env: TrialEnv


class TrialLoader:
    """Reads tasks and variables of trials, and keeps the last few of them."""

    def __init__(self, get_config_map: Get, get_secret: Get, *, policies_enforced: bool = False) -> None:
        self._get_config_map = get_config_map
        self._get_secret = get_secret
        self._policies_enforced = policies_enforced
        self._kept: OrderedDict[str, Loaded] = OrderedDict()

    async def load(self, trial: MultiStepTrial) -> Loaded:
        """The trial's task and plan. Raises InvalidSpec or InvalidTask (final) and SourceError (transient or not)."""
        uid = trial.metadata.uid
        if uid not in self._kept:
            self._kept[uid] = await self._read(trial)
        self._kept.move_to_end(uid)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[uid]

    def forget(self, uid: str) -> None:
        """The trial is over."""
        self._kept.pop(uid, None)

    async def _read(self, trial: MultiStepTrial) -> Loaded:
        namespace, spec = trial.metadata.namespace, trial.spec
        bundle = await load_bundle(spec.task, lambda name: self._get_config_map(namespace, name))
        task = load_task(bundle, verification=not spec.verifier.disable, oracle=spec.agent.name == "oracle")
        env = TrialEnv(
            variables=await self._values(namespace, "spec.variables", spec.variables),
            environment=await self._values(namespace, "spec.environment.env", spec.environment.env),
            agent=await self._values(namespace, "spec.agent.env", spec.agent.env),
            verifier=await self._values(namespace, "spec.verifier.env", spec.verifier.env),
        )
        name = spec.task.name or trial.metadata.name
        plan = make_plan(task.config, task.layout, spec, env, name=name, policies_enforced=self._policies_enforced)
        return Loaded(task, plan, env)

    async def _values(self, namespace: str, field: str, variables: Sequence[EnvVar]) -> dict[str, str]:
        found = {each.name: await self._value(namespace, f"{field}[{each.name}]", each) for each in variables}
        return {name: value for name, value in found.items() if value is not None}

    async def _value(self, namespace: str, field: str, variable: EnvVar) -> str | None:
        source = variable.value_from
        if source is None:
            return variable.value or ""
        if source.secret_key_ref is not None:
            return await self._selected(namespace, field, "Secret", self._get_secret, source.secret_key_ref)
        assert source.config_map_key_ref is not None  # exactly one is there: api.trial
        return await self._selected(namespace, field, "ConfigMap", self._get_config_map, source.config_map_key_ref)

    async def _selected(self, namespace: str, field: str, kind: str, get: Get, selector: KeySelector) -> str | None:
        """The value of a key. A missing one may still come, as with a pod: the error is transient."""
        try:
            data = (await get(namespace, selector.name)).get("data") or {}
        except NotFound:
            data = {}
        if selector.key in data:
            value = data[selector.key]
            return base64.b64decode(value).decode() if kind == "Secret" else str(value)
        if selector.optional:
            return None
        raise SourceError(f"{field}: {kind} {selector.name!r} with key {selector.key!r} is not there yet", transient=True)
