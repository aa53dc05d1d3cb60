"""A trial's task and plan: its bundle read, its variables resolved, everything checked."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..api.trial import EnvVar, KeySelector, MultiStepTrial, TaskSourceStatus
from ..engine.plan import TrialEnv, TrialPlan, make_plan
from ..errors import NotFound, SourceError
from .bundle import Bundle
from .load import load_bundle
from .remote import Remote
from .task import Task, load_task

Get = Callable[[str, str], Awaitable[Mapping[str, Any]]]  # namespace, name -> object; raises NotFound

KEPT = 256  # plans in memory; what is dropped is read again
KEPT_BYTES = 128 << 20  # of their bundles' files, each counted once


@dataclass(frozen=True)
class Loaded:
    """A trial's task with its plan. env: the spec's variables, with values; source: what spec.task was resolved to."""

    task: Task
    plan: TrialPlan
    env: TrialEnv
    source: TaskSourceStatus | None = None


class TrialLoader:
    """Reads tasks and variables of trials, and keeps the last few of them. remote: for tasks from outside of the cluster."""

    def __init__(self, get_config_map: Get, get_secret: Get, remote: Remote, *, policies_enforced: bool = False) -> None:
        self._remote = remote
        self._get_config_map = get_config_map
        self._get_secret = get_secret
        self._policies_enforced = policies_enforced
        self._kept: OrderedDict[str, Loaded] = OrderedDict()

    async def load(self, trial: MultiStepTrial) -> Loaded:
        """The trial's task and plan. Raises InvalidSpec or InvalidTask (final) and SourceError (transient or not)."""
        uid, pinned = trial.metadata.uid, trial.status.task_source
        kept = self._kept.get(uid)
        if kept is None or (pinned is not None and kept.source != pinned):
            kept = self._kept[uid] = await self._read(trial)
            self._kept.move_to_end(uid)
            self._make_room()
        self._kept.move_to_end(uid)
        return kept

    def _make_room(self) -> None:
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        while len(self._kept) > 1 and sum(each.size for each in self._bundles()) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def _bundles(self) -> list[Bundle]:
        return list({id(each.task.bundle): each.task.bundle for each in self._kept.values()}.values())

    def forget(self, uid: str) -> None:
        """The trial is over."""
        self._kept.pop(uid, None)

    async def _read(self, trial: MultiStepTrial) -> Loaded:
        namespace, spec = trial.metadata.namespace, trial.spec
        bundle, source = await self._bundle(trial)
        task = load_task(bundle, verification=not spec.verifier.disable, oracle=spec.agent.name == "oracle")
        env = TrialEnv(
            variables=await self._values(namespace, "spec.variables", spec.variables),
            environment=await self._values(namespace, "spec.environment.env", spec.environment.env),
            agent=await self._values(namespace, "spec.agent.env", spec.agent.env),
            verifier=await self._values(namespace, "spec.verifier.env", spec.verifier.env),
        )
        name = spec.task.name or trial.metadata.name
        plan = make_plan(task.config, task.layout, spec, env, name=name, policies_enforced=self._policies_enforced)
        return Loaded(task, plan, env, source)

    async def _bundle(self, trial: MultiStepTrial) -> tuple[Bundle, TaskSourceStatus | None]:
        if trial.spec.task.remote:
            return await self._remote.load(trial)
        namespace = trial.metadata.namespace
        return await load_bundle(trial.spec.task, lambda name: self._get_config_map(namespace, name)), None

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
