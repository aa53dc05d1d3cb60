"""Simulate the runners of all simulated pods in one process. Each runner has its own state and speaks the real protocol.

A working agent costs at most a timer: no process, no stream, no load on the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from multistep.errors import ClusterError, NotFound
from multistep.kube.client import Client
from multistep.kube.resources import PODS
from multistep.runner_client.frames import DATA, END, MESSAGE, FrameReader, encode, encode_json
from tests.support.fake_runner import FakeRunner
from tests.support.phase_results import PHASES
from tests.support.played import rewarded

PROBE_SECONDS: Final = 1.0  # period of the simulated kubelet's readiness probes
IDLE_SECONDS: Final = 30.0  # timeout of an exec session without a request
LEAVING_SECONDS: Final = 0.05
LAST_NOTE: Final = "/last/end"
CHUNK_BYTES: Final = 1 << 16

Json = dict[str, Any]


class SimulatedRunner(FakeRunner):
    """The runner of one pod. works: called when a phase starts; changed: called when a phase finishes or is acknowledged."""

    def __init__(self, pod_uid: str, works: Callable[[SimulatedRunner, str], object], changed: Callable[[], object]) -> None:
        super().__init__(pod_uid, finish="manual")
        self._works = works
        self._changed = changed
        self._ended = asyncio.Event()
        self.ended_at: float | None = None  # event-loop time of the agent phase's end; None once the next phase starts

    def answer(self, request: Json) -> Json:
        """Answer like the fake runner, but do not keep the request, to save memory."""
        answered = super().answer(request)
        self.requests.clear()
        if request["op"] == "ack":
            self._changed()
        return answered

    async def wait(self, request: Json) -> Json:
        """Return the phase's record as soon as the phase has finished, or else after the request's timeout."""
        record = self.records.get(request["id"])
        if record is not None and record["state"] == "running":
            with suppress(TimeoutError):
                async with asyncio.timeout(request["timeoutSeconds"]):
                    await self._ended.wait()
        return self.answer(request)

    def end(self, id: str, /, **result: Any) -> None:
        super().end(id, **result)
        if self.records[id]["op"] in PHASES:
            self._ended.set()
            self._changed()

    def receive_upload(self, request: Json, body: bytes) -> Json:
        answered = super().receive_upload(request, body)
        self.uploads.clear()
        return answered

    def _record(self, request: Json) -> Json:
        record = super()._record(request)
        if request["op"] in PHASES:
            self._ended = asyncio.Event()
            self._works(self, request["id"])
        return record


class Simulation:
    """Simulates all runners of a namespace and the kubelets' readiness probes.

    held: suffix of the ids of phases that run until ``release``; other phases finish at once. rewards: written by each verifier.
    """

    def __init__(self, client: Client, namespace: str, socket: Path, *, held: str, rewards: Mapping[str, float]) -> None:
        self._client = client
        self._namespace = namespace
        self._socket = socket
        self._held = held
        self._verdict = rewarded(json.dumps(rewards))
        self._uids: dict[str, str] = {}  # pod uid by pod name
        self._containers: dict[str, list[Json]] = {}  # by pod name: the status of its containers, as KWOK wrote it
        self._runners: dict[str, SimulatedRunner] = {}  # runner by pod uid
        self._working: dict[str, tuple[SimulatedRunner, str]] = {}  # by pod name: the runner whose agent runs, and the phase's id
        self._probed: set[str] = set()  # pods with a readiness probe in progress
        self._ready: dict[str, bool] = {}  # by pod name: the readiness that the pod's status shows
        self._tasks: set[asyncio.Task[None]] = set()
        self.released_and_waiting = 0  # number of agents that finished and whose next phase has not started yet
        self.lags: list[float] = []  # seconds from an agent's end to the start of the next phase

    async def __aenter__(self) -> Simulation:
        self._server = await asyncio.start_unix_server(self._serve, self._socket)
        self._do(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def pods(self) -> list[str]:
        """Return the names of the existing pods."""
        return list(self._uids)

    @property
    def working(self) -> list[str]:
        """Return the names of the pods whose agents are running."""
        return list(self._working)

    def release(self, pod: str) -> None:
        """Finish the agent phase of a pod."""
        runner, id = self._working.pop(pod)
        self.released_and_waiting += 1
        runner.ended_at = asyncio.get_running_loop().time()
        runner.end(id)

    # -- phases

    def _works(self, pod: str, runner: SimulatedRunner, id: str) -> None:
        if runner.ended_at is not None:
            self.lags.append(asyncio.get_running_loop().time() - runner.ended_at)
            runner.ended_at = None
            self.released_and_waiting -= 1
        if id.endswith(self._held):
            self._working[pod] = (runner, id)
        else:
            runner.end(id, **(self._verdict if id.endswith("/verifier") else {}))

    def _changed(self, pod: str, runner: SimulatedRunner) -> None:
        """Start a readiness probe of the pod if its readiness changed and no probe is in progress."""
        if self._ready.get(pod, True) != runner.ready and pod not in self._probed:
            self._probed.add(pod)
            self._do(self._probe(pod, runner))

    async def _probe(self, pod: str, runner: SimulatedRunner) -> None:
        """Run one probe at a time per pod, as a kubelet does, so that the last reported readiness is current."""
        try:
            await self._report_readiness(pod, runner)
        finally:
            self._probed.discard(pod)

    async def _report_readiness(self, pod: str, runner: SimulatedRunner) -> None:
        await asyncio.sleep(random.uniform(0.0, PROBE_SECONDS))
        while pod in self._uids and self._ready.get(pod, True) != (ready := runner.ready):
            self._ready[pod] = ready
            try:
                await self._report(pod, runner, ready)
            except NotFound:
                return
            except ClusterError:
                self._ready[pod] = not ready
                await asyncio.sleep(PROBE_SECONDS)

    async def _report(self, pod: str, runner: SimulatedRunner, ready: bool) -> None:
        while pod in self._uids and pod not in self._containers:  # the watch has not reported yet that the pod runs
            await asyncio.sleep(0.05)
        containers = [{**each, "ready": ready} for each in self._containers.get(pod, [])]
        conditions = [{"type": type_, "status": str(ready)} for type_ in ("Ready", "ContainersReady")]
        status = {"conditions": conditions, "containerStatuses": containers}
        path = PODS.path(self._namespace, pod, "status")
        metadata = {"name": pod, "namespace": self._namespace, "uid": runner.pod_uid}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        await self._client._http.send("apply", PODS, path, {"fieldManager": "kubelet", "force": "true"}, body)

    async def _watch(self) -> None:
        async for event in self._client.watch(PODS, self._namespace):
            metadata = event.object["metadata"]
            if event.type == "DELETED":
                self._forget(metadata["name"])
            else:
                self._uids[metadata["name"]] = metadata["uid"]
                if running := event.object.get("status", {}).get("containerStatuses"):
                    self._containers[metadata["name"]] = running

    def _forget(self, pod: str) -> None:
        self._runners.pop(self._uids.pop(pod, ""), None)
        self._working.pop(pod, None)
        self._ready.pop(pod, None)
        self._containers.pop(pod, None)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- exec sessions

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pod = (await reader.readline()).decode().strip()
            await self._session(await self._runner(pod), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the client disconnected
        finally:
            writer.close()

    async def _runner(self, pod: str) -> SimulatedRunner:
        while pod not in self._uids:  # the watch has not reported the pod yet
            await asyncio.sleep(0.05)
        uid = self._uids[pod]
        if uid not in self._runners:
            made = SimulatedRunner(uid, lambda runner, id: self._works(pod, runner, id), lambda: self._changed(pod, made))
            self._runners[uid] = made
        return self._runners[uid]

    async def _session(self, runner: SimulatedRunner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, upload = FrameReader(), None
        while data := await asyncio.wait_for(reader.read(CHUNK_BYTES), IDLE_SECONDS):
            frames.feed(data)
            for frame in frames:
                if upload is not None:
                    if frame.kind == DATA:
                        upload[1].extend(frame.payload)
                        continue
                    request, body = upload
                    upload = None
                    writer.write(encode_json(MESSAGE, runner.receive_upload(request, bytes(body))))
                    continue
                request = frame.json()
                answer = await runner.wait(request) if request["op"] == "wait" else runner.answer(request)
                writer.write(encode_json(MESSAGE, answer))
                if answer.get("proceed"):
                    upload = (request, bytearray())
                elif request["op"] == "download" and answer["ok"]:
                    _send_body(writer, runner.download(request))
                if _ends_session(request, answer):
                    await writer.drain()
                    await asyncio.sleep(LEAVING_SECONDS)
                    return
            await writer.drain()


def _ends_session(request: Json, answer: Json) -> bool:
    """Return whether the operator closes the session after this answer: the phase still runs, or the last step is finished.

    A real runner then reads the end of its stdin and closes the stream. KWOK does not forward the end of stdin, so without this
    function the stream would stay open until its idle timeout.
    """
    record = answer.get("record") or {}
    waited = request["op"] == "wait" and record.get("state") == "running"
    return waited or (request["op"] == "note" and request["id"].endswith(LAST_NOTE))


def _send_body(writer: asyncio.StreamWriter, body: bytes) -> None:
    for start in range(0, len(body), CHUNK_BYTES):
        writer.write(encode(DATA, body[start : start + CHUNK_BYTES]))
    writer.write(encode_json(END, {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}))
