"""Exec sessions with sidecars: with the runners in services' containers, and with the egress sidecar, which switches networks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from multistep.api.trial.runner_records import Record
from multistep.engine.journal.operations import TAIL_BYTES, ServiceHook, Source, SwitchNetwork, place_of
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.plan.plan_services import CONTAINER_PREFIX
from multistep.engine.script import network_switch as rules
from multistep.errors import ClusterError, EgressError, EgressRefused, MultistepError, RunnerError, StreamLost
from multistep.kube.cluster_protocols import Cluster, ExecStream
from multistep.kube.resources import PODS
from multistep.pods import container_statuses as service_statuses
from multistep.pods import egress_sidecar, service_containers
from multistep.pods.runner_mount import RUNNER
from multistep.reconcile.trial.session_state import DriveState
from multistep.runner_client.session import Session
from multistep.runner_client.transfer_bodies import DownloadResult
from multistep.settings import Settings
from multistep.telemetry.metrics import Metrics

_NOWHERE = Source("/proc/multistep-none")  # a path that no container has
_END_BYTES = 1024  # number of zero bytes at the end of the runner's tar streams

Write = Callable[[bytes], Awaitable[None]]


class _ServiceDown(MultistepError):
    """A service that is allowed to end has ended, and the kubelet does not start it again soon."""


class ServiceSessions:
    """Runs hooks and reads files in the containers of a pod's services."""

    def __init__(self, cluster: Cluster, settings: Settings, metrics: Metrics) -> None:
        self._cluster = cluster
        self._settings = settings
        self._metrics = metrics

    async def hook(self, namespace: str, pod: PodFacts, hook: ServiceHook, main: Session) -> Record:
        """Run a hook at most once, and add its result to the records of the runner in the container main.

        The hook of a service that is down fails, because a trial must not wait for a service that may never run again.
        """
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
        """Download the sources in services' containers, after the download from the container main. Return the result of both.

        ``found`` is the result of main's download, and ``joined`` the stream to which it was written.
        """
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
            await joined.end()  # if the download was cut, the sink would reject the end marker
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
                if (how := service_statuses.stopped_service(found, container, time.time())) is not None:
                    raise _ServiceDown(f"service {container.removeprefix(CONTAINER_PREFIX)} {how}, and does not run") from error
                raise
            yield session


def of_main(sources: Sequence[Source]) -> list[Source]:
    """Return the sources for a download from the container main. A path that does not exist replaces each source of a service."""
    return [_NOWHERE if each.container else each for each in sources]


class Joined:
    """Joins the tar streams of several downloads into one, by omitting the end marker of each stream except the last one."""

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


_MAX_ANSWER_BYTES = 1 << 20


class NetworkSwitch:
    """Switches the networks of pods."""

    def __init__(self, cluster: Cluster, timeout_seconds: float) -> None:
        """Create the switch. ``timeout_seconds`` is the timeout of one switch."""
        self._cluster = cluster
        self._timeout = timeout_seconds

    async def perform(self, drive: DriveState, session: Session, operation: SwitchNetwork) -> Record:
        """Switch the network, and add the answer to the runner's records.

        Idempotent, because the sidecar gives the same answer to a repeated request. Raises EgressRefused if the sidecar refuses the
        switch. Raises EgressError if the sidecar has restarted since an earlier switch. The pod's processes then had no network for
        some time, because a restarted sidecar blocks it. When the kubelet reports how the sidecar ended,
        engine.lifecycle.next_decision decides.
        """
        pod = drive.pod(operation.where)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await ask(pod.name, await self._stream(drive, pod), _request(operation))
        except TimeoutError:
            raise StreamLost(f"the egress sidecar of pod {pod.name} did not answer within {self._timeout:g} s") from None
        if (error := answer.get("error")) is not None:
            message = f"the egress sidecar of pod {pod.name} refuses {operation.network.mode}: {str(error)[:500]}"
            raise EgressRefused(message, invalid_hosts=answer.get("invalidHosts") is True)
        former = {rules.boot_id(each.result) for each in drive.records.values() if _is_switch(each, operation)}
        if former - {_boot(pod.name, answer)}:
            raise EgressError(f"the egress sidecar of pod {pod.name} has restarted")
        return await session.note(operation.id, {name: answer[name] for name in ("boot", "refused", "others") if name in answer})

    async def _stream(self, drive: DriveState, pod: PodFacts) -> ExecStream:
        """Return the drive's exec session with a pod's sidecar. All switches share it, because opening one takes longer than a
        switch."""
        if (stream := drive.sidecars.get(pod.uid)) is None:
            stream = await self._cluster.open_exec(
                drive.trial.metadata.namespace, pod.name, egress_sidecar.CONTAINER, egress_sidecar.CALL
            )
            drive.stack.push_async_callback(stream.close)
            drive.sidecars[pod.uid] = stream
        return stream


async def ask(pod: str, stream: ExecStream, request: bytes) -> Mapping[str, Any]:
    """Send a line of JSON to the egress sidecar, and return its answer. ``stream`` is an exec session that runs
    egress_sidecar.CALL."""
    await stream.send(request)
    return _answer(pod, await _line(pod, stream))


def _request(operation: SwitchNetwork) -> bytes:
    network = operation.network
    wanted = {"id": operation.id, "mode": network.mode, "hosts": list(network.hosts), "gateway": network.gateway}
    return json.dumps(wanted).encode() + b"\n"


async def _line(pod: str, stream: ExecStream) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        chunk = await stream.receive()
        if not chunk or len(received) > _MAX_ANSWER_BYTES:
            raise StreamLost(f"the egress sidecar of pod {pod} gave no answer: {stream.exit_details[:500]}")
        received += chunk
    return received


def _answer(pod: str, line: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise EgressRefused(f"the egress sidecar of pod {pod} gave an invalid answer: {line[:200]!r}")
    return answer


def _boot(pod: str, answer: Mapping[str, Any]) -> str:
    """Return the boot id of a confirmation. Raises EgressRefused if the confirmation is invalid."""
    try:
        rules.refused_connections(answer)
        return rules.boot_id(answer)
    except RunnerError as error:
        raise EgressRefused(f"the egress sidecar of pod {pod} gave an invalid answer: {error}") from None


def _is_switch(record: Record, operation: SwitchNetwork) -> bool:
    """Return whether the record belongs to an earlier switch in the same pod."""
    attempt, step, *_ = operation.id.split("/")
    *scope, name = record.id.split("/")
    same_pod = scope[0] == attempt and (operation.where == "agent" or scope[1] == step)
    return (
        same_pod and place_of(record.id) == operation.where and (name == "network" or name.startswith("network-")) and record.done
    )
