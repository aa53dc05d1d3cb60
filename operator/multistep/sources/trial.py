"""A trial's task and plan: its bundle read, its variables resolved, everything checked."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..api.model import EnvVar, KeySelector
from ..api.trial import MultiStepTrial
from ..api.trial_status import TaskSourceStatus
from ..engine.plan import TrialEnv, TrialPlan, make_plan
from ..errors import NotFound, SourceError
from .load import load_bundle
from .remote import Remote
from .task import Task, load_task

Get = Callable[[str, str], Awaitable[Mapping[str, Any]]]  # namespace, name -> object; raises NotFound

KEPT = 256  # plans in memory, and tasks; what is dropped is made, or read, again
KEPT_BYTES = 128 << 20  # of the tasks' files

TaskKey = tuple[str, ...]


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
        self._tasks: OrderedDict[TaskKey, Task] = OrderedDict()  # many trials have the same one
        self._bytes = 0  # of their bundles

    async def load(self, trial: MultiStepTrial) -> Loaded:
        """The trial's task and plan. Raises InvalidSpec or InvalidTask (final) and SourceError (transient or not)."""
        uid, pinned = trial.metadata.uid, trial.status.task_source
        kept = self._kept.get(uid)
        if kept is None or (pinned is not None and kept.source != pinned):
            kept = self._kept[uid] = await self._read(trial)
        self._kept.move_to_end(uid)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return kept

    def forget(self, uid: str) -> None:
        """The trial is over."""
        self._kept.pop(uid, None)
        self._drop((uid,))

    def _keep(self, key: TaskKey, task: Task) -> None:
        self._drop(key)
        self._tasks[key] = task
        self._bytes += task.bundle.size
        while len(self._tasks) > KEPT or (self._bytes > KEPT_BYTES and len(self._tasks) > 1):
            self._drop(next(iter(self._tasks)))

    def _drop(self, key: TaskKey) -> None:
        """Forget a task, and the plans that would keep it in memory."""
        if (task := self._tasks.pop(key, None)) is not None:
            self._bytes -= task.bundle.size
            for uid in [uid for uid, each in self._kept.items() if each.task is task]:
                del self._kept[uid]

    async def _read(self, trial: MultiStepTrial) -> Loaded:
        namespace, spec = trial.metadata.namespace, trial.spec
        task, source = await self._task(trial)
        env = TrialEnv(
            variables=await self._values(namespace, "spec.variables", spec.variables),
            environment=await self._values(namespace, "spec.environment.env", spec.environment.env),
            agent=await self._values(namespace, "spec.agent.env", spec.agent.env),
            verifier=await self._values(namespace, "spec.verifier.env", spec.verifier.env),
        )
        name = spec.task.name or trial.metadata.name
        plan = make_plan(task.config, task.layout, spec, env, name=name, policies_enforced=self._policies_enforced)
        return Loaded(task, plan, env, source)

    async def _task(self, trial: MultiStepTrial) -> tuple[Task, TaskSourceStatus | None]:
        """Read, or the one that is kept: for trials that have it from the same place, who may all read that."""
        verification, oracle = not trial.spec.verifier.disable, trial.spec.agent.name == "oracle"
        checks = (str(verification), str(oracle))
        bundle, source = None, None
        if trial.spec.task.remote:
            bundle, source = await self._remote.load(trial)
            key: TaskKey = ("remote", bundle.digest, *checks)
        elif (parts := trial.spec.task.bundle) is not None:
            key = (trial.metadata.namespace, parts.digest, *parts.config_maps, *checks)
        else:
            key = (trial.metadata.uid,)
        if (task := self._tasks.get(key)) is not None:
            self._tasks.move_to_end(key)
            return task, source
        if bundle is None:
            bundle = await load_bundle(trial.spec.task, lambda name: self._get_config_map(trial.metadata.namespace, name))
        task = load_task(bundle, verification=verification, oracle=oracle)
        self._keep(key, task)
        return task, source

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
