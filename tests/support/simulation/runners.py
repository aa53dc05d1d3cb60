"""Simulate the runners of all simulated pods in one process. Each runner has its own state and speaks the real protocol.

A working agent costs at most a timer: no process, no stream, no load on the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from multistep.errors import ClusterError, NotFound
from multistep.runner_client.frame_stream import DATA, END, MESSAGE, FrameReader, encode, encode_json
from tests.support.fake_runner import FakeRunner, Tree
from tests.support.phase_results import PHASES
from tests.support.simulation.kubelet import Kubelet
from tests.support.simulation.spdy import ExecStreams

CHUNK_BYTES: Final = 1 << 16

Json = dict[str, Any]


class Files(dict[str, Tree]):
    """The files of a pod by path. A path that has none itself, but files below it, is a directory."""

    def get(self, path: str, default: Any = None) -> Any:
        if path in self:
            return self[path]
        below = {name[len(path) + 1 :]: data for name, data in self.items() if name.startswith(f"{path}/")}
        return below or ({} if path.startswith("/logs/") else default)

    def delete(self, path: str) -> None:
        for name in [name for name in self if name == path or name.startswith(f"{path}/")]:
            del self[name]


class SimulatedRunner(FakeRunner):
    """The runner of one pod.

    works: called with the request when a phase starts; changed: called when a phase finishes or is acknowledged; stores: whether to
    store uploaded files, which uses memory.
    """

    def __init__(
        self, pod: Json, works: Callable[[SimulatedRunner, Json], object], changed: Callable[[], object], *, stores: bool
    ) -> None:
        super().__init__(pod["metadata"]["uid"], finish="manual")
        self.pod = pod
        self.files: Files = Files()
        self._works = works
        self._changed = changed
        self._stores = stores
        self._ended = asyncio.Event()

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return str(self.pod["metadata"]["name"])

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

    def write(self, path: str, data: bytes) -> None:
        """Write a file, which a checkpoint contains unless it is below /logs."""
        self.files[path] = data
        if not path.startswith("/logs/"):
            self.changes.append(json.dumps([path, data.decode()]))

    def receive_restore(self, request: Json, bodies: Sequence[bytes]) -> Json:
        answered = super().receive_restore(request, bodies)
        for change in self.restored:
            if change.startswith("["):  # the others are the ids of phases
                path, text = json.loads(change)
                self.files[path] = text.encode()
        return answered

    def receive_upload(self, request: Json, body: bytes) -> Json:
        answered = super().receive_upload(request, body)
        self.uploads.clear()
        if self._stores:
            with tarfile.open(fileobj=io.BytesIO(body)) as tar:
                for member in tar:
                    if (file := tar.extractfile(member)) is not None:
                        self.files[f"{request['target'].rstrip('/')}/{member.name}"] = file.read()
        return answered

    def _record(self, request: Json) -> Json:
        record = super()._record(request)
        if request["op"] == "reset":
            for directory in request["directories"]:
                if not directory.get("keep"):
                    self.files.delete(directory["path"])
        if request["op"] in PHASES:
            self._ended = asyncio.Event()
            self._works(self, request)
        return record


class Runners:
    """The runners of a simulated node's pods, and its readiness probes.

    works: called with runner and request when a phase starts; probe_seconds: maximum delay of a readiness probe.
    """

    def __init__(
        self, works: Callable[[SimulatedRunner, Json], object], *, probe_seconds: float = 0.0, stores: bool = True
    ) -> None:
        self._works, self._probe_seconds, self._stores = works, probe_seconds, stores
        self.kubelet: Kubelet
        self._runners: dict[str, SimulatedRunner] = {}  # by UID of the pod
        self._probed: set[str] = set()  # UIDs of pods with a readiness probe in progress
        self._ready: dict[str, bool] = {}  # by UID of the pod: the readiness that its status shows

    @property
    def pods(self) -> list[str]:
        """Return the names of the existing pods."""
        return [each.name for each in self._runners.values()]

    def created(self, pod: Json) -> None:
        """Start the runner of a new pod."""
        made = SimulatedRunner(pod, self._works, lambda: self._changed(made), stores=self._stores)
        self._runners[made.pod_uid] = made

    def deleted(self, pod: Json) -> None:
        """Forget the runner of a pod that is gone."""
        self._runners.pop(pod["metadata"]["uid"], None)
        self._ready.pop(pod["metadata"]["uid"], None)

    async def session(self, pod: Json, streams: ExecStreams) -> None:
        """Answer the requests of one exec session until its stdin ends."""
        runner = self._runners[pod["metadata"]["uid"]]
        frames, upload, bodies = FrameReader(), None, list[bytes]()
        while data := await streams.stdin.read(CHUNK_BYTES):
            frames.feed(data)
            for frame in frames:
                if upload is None:
                    upload = await _respond(runner, frame.json(), streams)
                    bodies = []
                elif frame.kind == DATA:
                    upload[1].extend(frame.payload)
                else:
                    request, body = upload
                    bodies.append(bytes(body))
                    upload = None
                    if request["op"] == "restore" and len(bodies) < 2 * len(request["increments"]):
                        upload = (request, bytearray())
                        continue
                    answer = (
                        runner.receive_restore(request, bodies)
                        if request["op"] == "restore"
                        else runner.receive_upload(request, bodies[0])
                    )
                    streams.write(encode_json(MESSAGE, answer))
            await streams.drain()

    # -- readiness

    def _changed(self, runner: SimulatedRunner) -> None:
        """Start a readiness probe of the pod if its readiness changed and no probe is in progress: one at a time, as a kubelet
        does, so that the last reported readiness is current."""
        if self._ready.get(runner.pod_uid, True) != runner.ready and runner.pod_uid not in self._probed:
            self._probed.add(runner.pod_uid)
            self.kubelet.do(self._probe(runner))

    async def _probe(self, runner: SimulatedRunner) -> None:
        uid = runner.pod_uid
        try:
            await asyncio.sleep(random.uniform(0.0, self._probe_seconds))
            while uid in self._runners and self._ready.get(uid, True) != (ready := runner.ready):
                self._ready[uid] = ready
                try:
                    await self.kubelet.report_ready(runner.pod, ready)
                except NotFound:
                    return
                except ClusterError:
                    self._ready[uid] = not ready
                    await asyncio.sleep(1.0)
        finally:
            self._probed.discard(uid)


async def _respond(runner: SimulatedRunner, request: Json, streams: ExecStreams) -> tuple[Json, bytearray] | None:
    """Answer a request. Return it with an empty body if its body follows."""
    answer = await runner.wait(request) if request["op"] == "wait" else runner.answer(request)
    streams.write(encode_json(MESSAGE, answer))
    if answer.get("proceed"):
        return request, bytearray()
    if request["op"] == "download" and answer["ok"]:
        _send_body(streams, runner.download(request))
    if request["op"] == "checkpoint" and answer["ok"]:
        layer, manifest, result = runner.pack(full=request["full"])
        _send_body(streams, layer)
        _send_body(streams, manifest)
        streams.write(encode_json(MESSAGE, result))
    return None


def _send_body(streams: ExecStreams, body: bytes) -> None:
    for start in range(0, len(body), CHUNK_BYTES):
        streams.write(encode(DATA, body[start : start + CHUNK_BYTES]))
    streams.write(encode_json(END, {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}))
