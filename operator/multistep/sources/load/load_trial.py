"""Loads a trial's task and plan. It reads the task, resolves the spec's variables, and validates both."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from multistep.api.common.base_model import EnvVar, KeySelector, Metadata
from multistep.api.trial.status import ImageStatus
from multistep.api.trial.task_source import TaskSourceStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.api.trial.values import DIGEST
from multistep.engine.plan.image_builds import ImageBuild, needed_builds
from multistep.engine.plan.make_plan import make_plan
from multistep.engine.plan.network_types import Egress
from multistep.engine.plan.plan import TrialEnv, TrialPlan
from multistep.errors import InvalidSpec, NotFound, SourceError
from multistep.sources.load.remote_tasks import RemoteTasks
from multistep.sources.load.task_cache import CachedFile
from multistep.sources.reader.read_task import ReadTask, TaskReader
from multistep.sources.task import stored_bundles

BUILDING: Final = "ImageBuilding"
RETRYING: Final = "ImageBuildRetrying"


class ImageMissing(SourceError):
    """An image of the trial is not built yet, or cannot be built."""

    def __init__(self, message: str, error: SourceError, images: Sequence[ImageStatus]) -> None:
        super().__init__(message, transient=error.transient, reason=error.reason, retry_seconds=error.retry_seconds)
        self.images = list(images)
        """The status of each image that the trial needs."""


class ImageBuilder(Protocol):
    """Builds images of tasks. The implementation is in reconcile.loading.build_images."""

    async def images(self, trial: MultiStepTrial, task: ReadTask, wanted: Sequence[ImageBuild]) -> Sequence[ImageStatus]:
        """Return the built images. Images in the trial's status are returned unchanged, and are the only ones if builds are
        disabled. Raises ImageMissing."""


GetObject = Callable[[str, str], Awaitable[Mapping[str, Any]]]
"""Maps a namespace and a name to the object. Raises NotFound."""

MAX_CACHED = 512  # maximum number of cached plans, and of cached tasks. An evicted one is loaded again at its next use
MAX_CACHED_BYTES = 32 << 20  # maximum memory of cached tasks, and also of cached plans
MAX_CACHED_DISK_BYTES = 512 << 20  # maximum disk space of the cached tasks' tar streams, which are uploaded to pods

TaskKey = tuple[str, ...]


class TaskReads(Protocol):
    """Limits concurrent reads of tasks. The implementation is in ``reconcile.loading.load_tasks``."""

    async def get(
        self, asker: Metadata, task: TaskKey, read: Callable[[], Awaitable[ReadTask]], *, started: bool = False
    ) -> ReadTask:
        """Return the task that ``read`` returned. Raises a transient SourceError while ``read`` runs, or the error that it
        raised."""


@dataclass(frozen=True)
class LoadedTrial:
    """A trial's task with its plan."""

    task: ReadTask
    plan: TrialPlan
    env: TrialEnv
    """The spec's variables with their values."""
    source: TaskSourceStatus | None = None
    """The resolved source of a remote task."""
    images: Sequence[ImageStatus] = ()
    """The images that the cluster built from the task's Dockerfiles."""

    @property
    def memory(self) -> int:
        """Approximate bytes in memory of the task, the plan's copies of instructions, and the variables' values."""
        values = sum(len(value) for variables in vars(self.env).values() for value in variables.values())
        return self.task.memory + values + sum(len(step.instruction or "") for step in self.plan.steps)


class TrialLoader:
    """Loads tasks and plans of trials, with LRU caches of both."""

    def __init__(
        self,
        get_config_map: GetObject,
        get_secret: GetObject,
        remote: RemoteTasks,
        reader: TaskReader,
        reading: TaskReads,
        building: ImageBuilder,
        *,
        egress: Egress = "Disabled",
    ) -> None:
        self._remote = remote
        self._reader = reader
        self._reading = reading
        self._building = building
        self._get_config_map = get_config_map
        self._get_secret = get_secret
        self._egress = egress
        self._plans: OrderedDict[str, LoadedTrial] = OrderedDict()
        self._tasks: OrderedDict[TaskKey, ReadTask] = OrderedDict()  # many trials share a task
        self._memory = 0  # memory of _tasks, in bytes
        self._disk = 0  # disk space of _tasks, in bytes
        self._plans_memory = 0

    async def load(self, trial: MultiStepTrial) -> LoadedTrial:
        """Return the trial's task and plan. Raises InvalidSpec and InvalidTask, which are permanent, and SourceError."""
        uid, pinned = trial.metadata.uid, trial.status.task_source
        loaded = self._plans.get(uid)
        if loaded is None or (pinned is not None and loaded.source != pinned):
            loaded = await self._read(trial)
            self.forget(uid)
            self._plans[uid] = loaded
            self._plans_memory += loaded.memory
        self._plans.move_to_end(uid)
        while len(self._plans) > MAX_CACHED or (self._plans_memory > MAX_CACHED_BYTES and len(self._plans) > 1):
            self.forget(next(iter(self._plans)))
        return loaded

    def forget(self, uid: str) -> None:
        """Evict a trial's plan from the cache."""
        loaded = self._plans.pop(uid, None)
        if loaded is not None:
            self._plans_memory -= loaded.memory

    def _cache(self, key: TaskKey, task: ReadTask) -> None:
        self._drop(key)
        self._tasks[key] = task
        self._memory += task.memory
        self._disk += task.disk
        while len(self._tasks) > 1 and self._too_much():
            self._drop(next(iter(self._tasks)))

    def _too_much(self) -> bool:
        return len(self._tasks) > MAX_CACHED or self._memory > MAX_CACHED_BYTES or self._disk > MAX_CACHED_DISK_BYTES

    def _drop(self, key: TaskKey) -> None:
        """Evict a task from the cache, and the plans that refer to it."""
        task = self._tasks.pop(key, None)
        if task is not None:
            self._memory -= task.memory
            self._disk -= task.disk
            for uid in [uid for uid, plan in self._plans.items() if plan.task is task]:
                self.forget(uid)

    async def _read(self, trial: MultiStepTrial) -> LoadedTrial:
        spec, judge, user = trial.spec, trial.spec.models.judge, trial.spec.models.user
        task, source = await self._task(trial)
        env = TrialEnv(
            variables=await self._values(trial, "spec.variables", spec.variables),
            environment=await self._values(trial, "spec.environment.env", spec.environment.env),
            agent=await self._values(trial, "spec.agent.env", spec.agent.env),
            verifier=await self._values(trial, "spec.verifier.env", spec.verifier.env),
            credentials=await self._values(trial, "spec.agent.credentials", spec.agent.credentials),
            judge=await self._values(trial, "spec.models.judge.credentials", judge.credentials if judge else ()),
            user=await self._values(trial, "spec.models.user.credentials", user.credentials if user else ()),
        )
        wanted = needed_builds(task.config, task.layout, spec, env.variables)
        images = await self._building.images(trial, task, wanted) if wanted else ()
        plan = make_plan(
            task.config, task.layout, spec, env,
            name=spec.task.name or trial.metadata.name,
            egress=self._egress,
            images={image.name: image.image for image in images if image.image},
        )  # fmt: skip
        return LoadedTrial(task, plan, env, source, images)

    async def _task(self, trial: MultiStepTrial) -> tuple[ReadTask, TaskSourceStatus | None]:
        """Return the trial's task from the cache, or read it. Trials share a cached task only if each of them may read its
        source."""
        verification, oracle = not trial.spec.verifier.disable, trial.spec.agent.name == "oracle"
        checks = (str(verification), str(oracle))
        file: CachedFile | None = None
        source: TaskSourceStatus | None = None
        if trial.spec.task.remote:
            file, source = await self._remote.load(trial)
            key: TaskKey = ("remote", file.digest, *checks)
        elif (parts := trial.spec.task.bundle) is not None:
            key = (trial.metadata.namespace, parts.digest, *parts.config_maps, *checks)
        else:  # an inline task is identified by its text, so that all trials of a sweep share it
            key = ("inline", hashlib.sha256(trial.spec.task.model_dump_json().encode()).hexdigest(), *checks)
        task = self._tasks.get(key)
        if task is not None:
            self._tasks.move_to_end(key)
            return task, source
        read = partial(self._read_task, trial, file, key, verification=verification, oracle=oracle)
        return await self._reading.get(trial.metadata, key, read, started=trial.status.attempt is not None), source

    async def _read_task(
        self, trial: MultiStepTrial, file: CachedFile | None, key: TaskKey, *, verification: bool, oracle: bool
    ) -> ReadTask:
        namespace, source, reader = trial.metadata.namespace, trial.spec.task, self._reader
        if file is not None:
            task = await self._fetched(file, verification=verification, oracle=oracle)
        elif source.inline is not None:
            task = await reader.inline(source.inline, verification=verification, oracle=oracle)
        elif (parts := source.bundle) is not None:
            with reader.spool() as path:
                await stored_bundles.spool_bundle(partial(self._get_config_map, namespace), parts.config_maps, path)
                task = await reader.file("parts", path, parts.digest, verification=verification, oracle=oracle)
        else:
            raise InvalidSpec("spec.task: neither bundle nor inline")
        self._cache(key, task)
        return task

    async def _fetched(self, file: CachedFile, *, verification: bool, oracle: bool) -> ReadTask:
        try:
            return await self._reader.file("bundle", file.path, file.digest, verification=verification, oracle=oracle)
        except SourceError as error:
            if error.reason != DIGEST:
                raise
            self._remote.forget(file)  # the file is damaged, so the next load must fetch the task again
            raise SourceError(str(error), transient=True, retry_seconds=1.0) from error

    async def _values(self, trial: MultiStepTrial, field: str, variables: Sequence[EnvVar]) -> dict[str, str]:
        values = {variable.name: await self._value(trial, f"{field}[{variable.name}]", variable) for variable in variables}
        return {name: value for name, value in values.items() if value is not None}

    async def _value(self, trial: MultiStepTrial, field: str, variable: EnvVar) -> str | None:
        source = variable.value_from
        if source is None:
            return variable.value or ""
        if source.secret_key_ref is not None:
            return await self._selected(trial, field, "Secret", self._get_secret, source.secret_key_ref)
        assert source.config_map_key_ref is not None  # api.trial.trial validates that exactly one of the two is set
        return await self._selected(trial, field, "ConfigMap", self._get_config_map, source.config_map_key_ref)

    async def _selected(self, trial: MultiStepTrial, field: str, kind: str, get: GetObject, selector: KeySelector) -> str | None:
        """Return a key's value in a Secret or ConfigMap. A missing key is a transient error, because it may still be added. An
        invalid value is transient for a started trial, which had a valid one before."""
        try:
            data = (await get(trial.metadata.namespace, selector.name)).get("data") or {}
        except NotFound:
            data = {}
        if selector.key in data:
            try:
                return _text(kind, data[selector.key])
            except ValueError as error:
                text = f"{field}: the value of key {selector.key!r} of {kind} {selector.name!r} {error}"
                raise SourceError(text, transient=trial.status.attempt is not None) from None
        if selector.optional:
            return None
        raise SourceError(f"{field}: {kind} {selector.name!r} with key {selector.key!r} does not exist yet", transient=True)


def _text(kind: str, value: object) -> str:
    """Return a value as text. Raises ValueError if no environment variable can have it. The error does not contain the value."""
    try:
        text = base64.b64decode(str(value), validate=True).decode() if kind == "Secret" else str(value)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text: an environment variable must be text") from None
    except binascii.Error:
        raise ValueError("is not base64") from None
    if "\0" in text:
        raise ValueError("has a NUL character, which no environment variable can have")
    return text
