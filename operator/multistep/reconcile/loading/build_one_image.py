"""Runs one build of an image: observes the registry and the builder's pod and does what next_build_action decides, until it is
built.

A job may be cancelled at any point, and several jobs may run for one build at once, because all state is in the registry and the
pod.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from multistep.api.trial.runner_records import Record
from multistep.engine.builds import next_build_action
from multistep.engine.builds.next_build_action import (
    BuildBroken,
    BuilderLost,
    BuilderRetries,
    BuildPause,
    BuildState,
    Decision,
    ImageBuilt,
    build_operations,
    push_operation,
    registries_conf,
)
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.plan.image_builds import ImageBuild
from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound, PodError, SourceError
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.resources import PODS
from multistep.pods import builder_pod as pods
from multistep.pods.pod_facts import pod_facts
from multistep.pods.pod_identity import CONTAINER
from multistep.runner_client.perform_operations import perform, start_request
from multistep.runner_client.session import Session
from multistep.settings import Settings
from multistep.sources.load.image_registry import BuiltImages
from multistep.sources.reader.read_task import ReadTask

logger = logging.getLogger(__name__)

ERROR_SECONDS = 5.0
_LOG_BYTES = 1 << 18
_STEP = re.compile(r"^(?:\[\d+/\d+\] )?STEP \d+/\d+: .*", re.MULTILINE)
_STEP_CHARACTERS = 120


class Logs(Protocol):
    """Stores the logs of builds. store.volume.build_logs implements it."""

    async def write(self, build: str, offset: int, data: bytes) -> None:
        """Write a part of a log, and truncate the log after this part."""


@dataclass(frozen=True)
class Tools:
    """The objects that all builds share."""

    cluster: Cluster
    registry: BuiltImages
    logs: Logs
    settings: Settings
    clock: Callable[[], float]
    """Returns seconds since the epoch."""


class BuildJob:
    """The build of one image."""

    def __init__(
        self, tools: Tools, build: ImageBuild, id: str, task: ReadTask, about: str, report: Callable[[BuildPause], None]
    ) -> None:
        """Create the build.

        ``id`` is the digest of the build's inputs, and ``about`` is the first trial that requested the build. ``report`` is called
        with the build's progress or transient error.
        """
        self._t = tools
        self._build = build
        self._id = id
        self._task = task
        self._about = about
        self._report = report
        self._namespace = pods.builds_namespace(tools.settings)
        self._limits = pods.build_limits(tools.settings)
        self._retries = BuilderRetries(tools.settings.builds.retries)
        self._logged = "", 0  # UID of the pod whose log was copied last, and the number of bytes copied so far
        self._step = ""

    async def run(self) -> str:
        """Return the image with its digest. Raises SourceError if it cannot be built."""
        while True:
            try:
                decision = await self._next()
            except (ClusterError, PodError) as error:
                decision = BuildPause(f"retrying: {error}", seconds=ERROR_SECONDS, failing=True)
            match decision:
                case ImageBuilt(digest):
                    return self._t.registry.pinned(digest)
                case BuildBroken(reason, message):
                    raise SourceError(message, reason=reason)
                case BuildPause():
                    self._report(decision)
                    await asyncio.sleep(decision.seconds)

    async def _next(self) -> ImageBuilt | BuildBroken | BuildPause:
        """Take one decision and act on it. Return the build's result, or how long to wait before the next decision."""
        seen = await self._observe()
        decision = next_build_action.next_build_action(seen, self._limits)
        match decision:
            case ImageBuilt() | BuildBroken() | BuilderLost():
                await self._delete(seen.pod)
                return self._retries.lost(decision) if isinstance(decision, BuilderLost) else decision
            case next_build_action.CreateBuilder():
                await self._create()
                return BuildPause("is being built")
            case next_build_action.StartBuild() | next_build_action.StartPush():
                await self._start(seen, decision)
                return BuildPause("is being built", seconds=0.0)
            case BuildPause():
                return replace(decision, message=f"{decision.message}{self._step}")

    async def _observe(self) -> BuildState:
        pod, push_ended = await self._pod()
        records = await self._records(pod) if pod is not None and pod.running and not pod.deleting and not push_ended else None
        seen = BuildState(self._t.clock(), pod=pod, push_ended=push_ended, records=records)
        if pod is not None and not next_build_action.has_pushed(records or {}):
            return seen  # the registry cannot have the image yet, because only this pod pushes it
        try:
            return replace(seen, image=await self._t.registry.digest(self._id))
        except SourceError as error:
            return replace(seen, unreachable=str(error))

    async def _pod(self) -> tuple[PodFacts | None, str]:
        try:
            found = await self._t.cluster.get(PODS, self._namespace, pods.pod_name(self._id))
        except NotFound:
            return None, ""
        return pod_facts(found), pods.push_ended(found)

    async def _records(self, pod: PodFacts) -> dict[str, Record]:
        """Return the records of the runners in both containers of the builder's pod.

        The operator connects to the runner in the container ``push`` only after the build has finished.
        """
        async with self._session(pod, CONTAINER) as session:
            records = {each.id: each for each in (await session.hello()).records}
            if (build := records.get(next_build_action.BUILD)) is not None:
                await self._copy_log(session, pod)
        self._step = self._step if build is not None and not build.done else ""
        if build is not None and build.done:
            async with self._session(pod, pods.PUSH) as session:
                records |= {each.id: each for each in (await session.hello()).records}
        return records

    async def _copy_log(self, session: Session, pod: PodFacts) -> None:
        """Append the build's new output to its log on the results volume."""
        offset = self._logged[1] if self._logged[0] == pod.uid else 0
        while True:
            printed = await session.output(next_build_action.BUILD, offset, _LOG_BYTES)
            if printed.data or not offset:
                await self._t.logs.write(self._id, offset, printed.data)
            offset += len(printed.data)
            self._logged = pod.uid, offset
            if steps := _STEP.findall(printed.data.decode(errors="replace")):
                self._step = f": {steps[-1][:_STEP_CHARACTERS]}"
            if not printed.data or offset >= printed.size:
                return

    async def _create(self) -> None:
        with suppress(AlreadyExists):  # another operator created the pod, or this operator before a crash
            await self._t.cluster.create(pods.builder_manifest(self._id, self._about, self._t.settings))
            logger.info("creating pod %s to build %s of %s", pods.pod_name(self._id), self._build.path, self._about)

    async def _delete(self, pod: PodFacts | None) -> None:
        if pod is not None:
            with suppress(NotFound, Conflict):
                await self._t.cluster.delete(PODS, self._namespace, pod.name, uid=pod.uid)

    async def _start(self, seen: BuildState, decision: Decision) -> None:
        assert seen.pod is not None
        if isinstance(decision, next_build_action.StartPush):
            return await self._push(seen.pod, decision.id)
        builds, registry = self._t.settings.builds, self._t.registry
        conf = registries_conf(builds.base_mirrors, registry.host, registry.insecure)
        async with self._session(seen.pod, CONTAINER) as session:
            await session.hello(records=False)
            for operation in build_operations(self._build, conf, builds.timeout_seconds):
                record = await perform(session, operation, self._task.content, 0.0)
                if (record.result or {}).get("error"):
                    return None  # the next decision reads the error from the record
        return None

    async def _push(self, pod: PodFacts, id: str) -> None:
        """Start the push, with the registry's credentials on its stdin.

        The credentials are sent to the pod only now, because all processes of the build have ended.
        """
        registry, seconds = self._t.registry, self._t.settings.builds.push_timeout_seconds
        operation = push_operation(id, registry.tagged(self._id), seconds, insecure=registry.insecure(registry.host))
        async with self._session(pod, pods.PUSH) as session:
            await session.hello(records=False)
            await session.start({**start_request(operation), "stdin": registry.credentials()}, 0.0)

    @asynccontextmanager
    async def _session(self, pod: PodFacts, container: str) -> AsyncIterator[Session]:
        stream = await self._t.cluster.open_exec(self._namespace, pod.name, container, pods.CALLS[container])
        limit = self._t.settings.answer_timeout_seconds
        async with Session(stream, pod_uid=pod.uid, answer_timeout_seconds=limit) as session:
            yield session
