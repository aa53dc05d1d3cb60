"""Sessions with the runner in services' containers, where it is not PID 1: each session has a runner of its own (`runner once`)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from multistep.api.trial.runner_records import Record
from multistep.engine.journal.operations import TAIL_BYTES, ServiceHook, Source
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.plan.plan_services import CONTAINER_PREFIX
from multistep.errors import ClusterError, MultistepError, StreamLost
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.resources import PODS
from multistep.pods import service_containers, service_statuses
from multistep.pods.runner_mount import RUNNER
from multistep.runner_client.session import Session
from multistep.runner_client.transfer_bodies import DownloadResult
from multistep.settings import Settings
from multistep.telemetry.metrics import Metrics

_NOWHERE = Source("/proc/multistep-none")  # a path that no container has
_END_BYTES = 1024  # number of zero bytes at the end of the runner's tar streams

Write = Callable[[bytes], Awaitable[None]]


class _ServiceDown(MultistepError):
    """A service that may end has ended, and the kubelet does not start it again soon."""


class ServiceSessions:
    """Runs hooks and reads files in the containers of a pod's services."""

    def __init__(self, cluster: Cluster, settings: Settings, metrics: Metrics) -> None:
        self._cluster = cluster
        self._settings = settings
        self._metrics = metrics

    async def hook(self, namespace: str, pod: PodFacts, hook: ServiceHook, main: Session) -> Record:
        """Run a hook, at most once, and add its result to the records of the runner in container main. A hook of a service that is
        down fails: a trial must not wait for a service that never runs again."""
        spec = {
            "id": hook.id, "argv": list(hook.argv), "user": hook.user, "cwd": "", "env": {}, "timeoutSeconds": hook.timeout,
            "tailBytes": TAIL_BYTES, "remove": [], "captures": [], "killAtEnd": False,
        }  # fmt: skip
        try:
            async with self._session(namespace, pod, hook.container, hook.id) as session:
                record = await session.start(spec, hook.timeout)
                while not record.done:
                    record = await session.wait(hook.id, self._settings.linger_seconds)
        except _ServiceDown as down:
            return await main.note(hook.id, {"error": {"code": "ServiceDown", "message": str(down)}})
        return await main.note(hook.id, dict(record.result or {}))

    async def collect(
        self, namespace: str, pod: PodFacts, sources: Sequence[Source], found: DownloadResult, joined: Joined
    ) -> DownloadResult:
        """Download the sources in services' containers, after the download from container main. found: the result of main's
        download; joined: the stream to which main's download was written."""
        for container in sorted({each.container for each in sources if each.container}):
            if found.cut:
                break
            wanted = [replace(each, container="") if each.container == container else _NOWHERE for each in sources]
            try:
                async with self._session(namespace, pod, container, "") as session:
                    await joined.next()
                    limit = self._settings.results_collect_seconds
                    more = await session.download(wanted, joined.write, timeout_seconds=limit)
            except _ServiceDown:
                continue
            types = [
                new if source.container == container else old
                for source, old, new in zip(sources, found.types, more.types, strict=True)
            ]
            found = DownloadResult(
                tuple(types), found.size + more.size, "", (*found.changed, *more.changed), (*found.unreadable, *more.unreadable),
                more.cut,
            )  # fmt: skip
        if not found.cut:
            await joined.end()  # after a cut download, the sink would reject the end marker
        return found

    @asynccontextmanager
    async def _session(self, namespace: str, pod: PodFacts, container: str, id: str) -> AsyncIterator[Session]:
        """Open a session. Raises _ServiceDown if the service is down."""
        self._metrics.exec_sessions.inc()
        command = (RUNNER, "once", "--state", service_containers.STATE, *(("--id", id) if id else ()))
        limit = self._settings.answer_timeout_seconds
        async with AsyncExitStack() as stack:
            try:
                stream = await self._cluster.open_exec(namespace, pod.name, container, command)
                session = Session(stream, pod_uid=pod.uid, answer_timeout_seconds=limit, moved=self._metrics.moved)
                await (await stack.enter_async_context(session)).hello()
            except (ClusterError, StreamLost) as error:
                found = await self._cluster.get(PODS, namespace, pod.name)
                if (how := service_statuses.down(found, container, time.time())) is not None:
                    raise _ServiceDown(f"service {container.removeprefix(CONTAINER_PREFIX)} {how}, and does not run") from error
                raise
            yield session


def of_main(sources: Sequence[Source]) -> list[Source]:
    """Return the sources for a download from container main: a path that does not exist replaces each source of a service."""
    return [_NOWHERE if each.container else each for each in sources]


class Joined:
    """Joins the tar streams of several downloads into one: it omits the end marker of each stream except the last."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._held = b""

    async def write(self, data: bytes) -> None:
        """Add data of the current stream."""
        whole = self._held + data
        self._held = whole[-_END_BYTES:]
        if len(whole) > _END_BYTES:
            await self._write(whole[:-_END_BYTES])

    async def next(self) -> None:
        """Start the next stream. Raises StreamLost if the current stream is incomplete."""
        if self._held.strip(b"\0"):
            raise StreamLost("a download does not end as a tar stream does")
        self._held = b""

    async def end(self) -> None:
        """Write the end marker of the last stream."""
        await self._write(self._held)
        self._held = b""
