"""A runner in memory that speaks docs/internals/runner-protocol.md. Results are scripted, no id runs twice, streams can break."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from multistep.errors import StreamLost
from multistep.kube.cluster_protocols import ExitStatus
from multistep.runner_client.frame_stream import DATA, END, MESSAGE, Frame, FrameReader, encode, encode_json
from tests.support.fake_sidecar import FakeSidecar
from tests.support.faults import Faults
from tests.support.phase_results import DEFAULTS, PHASES
from tests.support.sealed_host import SealedHost

Json = dict[str, Any]
Tree = bytes | Mapping[str, bytes]  # a file, or the files of a directory


class FakeRunner:
    """PID 1 of a fake pod.

    results: by phase id, the result's fields that differ from a success, or a function from the request to those fields.
    finish: when phases finish: as soon as they start, when a client waits for them, or when the test calls ``end``.
    files: the files and directories that clients can download, by path. unrestorable: error code with which restores are
    rejected.
    """

    unrestorable = ""

    root_programs: tuple[str, ...] = ()  # setuid programs of the image

    def __init__(
        self,
        pod_uid: str = "pod-uid",
        *,
        results: Mapping[str, Json | Callable[[Json], Json]] | None = None,
        finish: Literal["at_once", "on_wait", "manual"] = "on_wait",
        files: Mapping[str, Tree] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.pod_uid, self.instance, self.finish, self.clock, self.sidecar = pod_uid, "instance-1", finish, clock, FakeSidecar()
        self.results = dict(results or {})
        self.files: dict[str, Tree] = dict(files or {})
        self.faults = Faults()
        self.host = SealedHost()  # the agent host's runner, which shares this runner's records
        self.protocols = {1, 2, 3, 4, 5}  # supported protocol versions
        self.user: Json = {"uid": 0, "gid": 0, "name": "root", "home": "/root"}
        self.starts: Counter[str] = Counter()  # number of executions by id
        self.requests: list[Json] = []
        self.records: dict[str, Json] = {}
        self.printed: dict[str, bytes] = {}  # output by phase id
        self.uploads: dict[str, bytes] = {}  # tar streams by upload id
        self.streams: list[FakeStream] = []
        self.changes: list[str] = []  # ids of the phases since the last commit; they stand for changed files
        self.restored: list[str] = []  # ids of the phases whose changes were restored
        # digest of the last committed checkpoint, and all changes to the image that this checkpoint and earlier ones contain
        self.base, self.committed = "", list[str]()
        self.forgetful = False  # whether each commit fails with NotFound, as if the checkpoint were unknown
        self.packed = ""  # digest of the last checkpoint that was packed
        self.survivors = 0  # number of processes that the steps left running
        self.unpackable = ""  # error code with which requests for checkpoints fail
        self.packed_bytes = 0  # size of each checkpoint, to compare with the request's maxPackedBytes
        self.killed = 0  # number of upcoming exec sessions that are killed at their first response

    @property
    def ready(self) -> bool:
        """Return the answer to GET /ready: False while a finished phase is not acknowledged."""
        return not any(each["state"] == "done" and not each["acknowledged"] for each in self.records.values())

    def stream(self, **breaks: Any) -> FakeStream:
        """Open a new exec session with this runner. breaks: arguments of FakeStream."""
        self.streams.append(FakeStream(self, **breaks))
        return self.streams[-1]

    def end(self, id: str, /, **result: Any) -> None:
        """Finish a running phase. result: fields that override the scripted result."""
        record = self.records[id]
        if record["state"] == "running":
            scripted = self.results.get(id, {})
            reported = scripted(self._request_of(id)) if callable(scripted) else scripted
            record |= {"state": "done", "endedAt": self.clock()}
            record["result"] = {**DEFAULTS.get(record["op"], {}), **reported, **result}

    def restart(self) -> None:
        """Replace PID 1: the new process has no records."""
        self.records.clear()
        self.instance += "'"

    def answer(self, request: Json) -> Json:
        """Return the response to one request, as JSON."""
        self.requests.append(request)
        op, id = request["op"], request.get("id", "")
        if op == "host":
            return self.host.answer(request["message"]["sealed"], self.answer)
        if op == "hello":
            return self._hello(request["protocols"])
        if op in ("wait", "ack"):
            return self._known(op, id)
        if op == "output":
            return self._output(id, request)
        if relative := [each for each in _paths(request) if not each.startswith("/")]:
            return _refusal("Protocol", f"the source {relative[0]} is not an absolute path")
        if op == "survey":
            return {"ok": True, "files": [{"source": index, **each} for index, each in self._large(request)]}
        if op == "download":
            return {"ok": True, "sources": [{"type": self._type(each["path"])} for each in request["sources"]]}
        if op == "restore" and self.unrestorable:
            return _refusal(self.unrestorable, "not possible")
        if op == "checkpoint":
            code = self.unpackable or ("TooLarge" if self.packed_bytes > request["maxPackedBytes"] else "")
            return _refusal(code, "not possible") if code else {"ok": True}
        return self._once(op, id, request)

    def pack(self, *, full: bool) -> tuple[bytes, bytes, Json]:
        """Return the layer and the manifest of a checkpoint, and the response that follows them."""
        base, changes = ("", [*self.committed, *self.changes]) if full else (self.base, self.changes)
        layer = json.dumps(changes).encode()
        manifest = json.dumps([base, hashlib.sha256(layer).hexdigest()]).encode()
        self.packed = hashlib.sha256(manifest).hexdigest()
        about = {"manifest": self.packed, "previous": base, "entries": len(changes)}
        about |= {"processCount": self.survivors, "sharedMemory": False}
        return layer, manifest, {"ok": True, "checkpoint": about}

    def receive_restore(self, request: Json, bodies: Sequence[bytes]) -> Json:
        """Restore checkpoints. bodies: each checkpoint's manifest and layer. Reject a layer that does not match its manifest."""
        if (record := self.records.get(request["id"])) is not None:
            return {"ok": True, "record": record}
        restored, base = list[str](), ""
        for increment, manifest, layer in zip(request["increments"], bodies[::2], bodies[1::2], strict=True):
            digest = hashlib.sha256(manifest).hexdigest()
            if increment["manifest"] != digest or json.loads(manifest) != [base, hashlib.sha256(layer).hexdigest()]:
                return _refusal("Damaged", "the files are not those of the manifest")
            restored, base = [*restored, *json.loads(layer)], digest
        self.restored, self.base, self.committed, self.changes = restored, base, restored, []
        return {"ok": True, "record": self._record(request)}

    def receive_upload(self, request: Json, body: bytes) -> Json:
        if (record := self.records.get(request["id"])) is not None:  # an upload with this id has finished in another session
            return {"ok": True, "record": record}
        self.uploads[request["id"]] = body
        return {"ok": True, "record": self._record(request)}

    def download(self, request: Json) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for index, source in enumerate(request["sources"]):
                for name, whole in self._members(index, self.files.get(source["path"])):
                    data = b"" if name.partition("/")[2] in source.get("sent", ()) else whole
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        return out.getvalue()

    def _hello(self, offered: Sequence[int]) -> Json:
        if not (common := self.protocols.intersection(offered)):
            return _refusal("Refused", f"this runner speaks protocols {sorted(self.protocols)}")
        about = {"protocol": max(common), "version": "fake", "instance": self.instance, "podUID": self.pod_uid}
        places = {"workdir": "/app", "runtimeDir": "/run/multistep", "startedAt": 1.0}
        places["rootPrograms"] = [*self.root_programs]
        return {"ok": True, **about, "user": self.user, **places, "records": list(self.records.values())}

    def _output(self, id: str, request: Json) -> Json:
        if id not in self.records:
            return _refusal("NotFound", f"no record {id}")
        text = self.printed.get(id, b"")
        part = text[request["offset"] :][: request["maxBytes"]]
        about = {"state": self.records[id]["state"], "size": len(text), "from": request["offset"]}
        return {"ok": True, **about, "base64": base64.b64encode(part).decode()}

    def _large(self, request: Json) -> list[tuple[int, Json]]:
        """Return the files of at least `minBytes` bytes in the request's sources, each with the index of its source."""
        found = [
            (index, {"path": name, "size": len(data), "binary": b"\0" in data})
            for index, source in enumerate(request["sources"])
            for name, data in self._files(source["path"])
        ]
        return [(index, each) for index, each in found if each["size"] >= request["minBytes"]]

    def _files(self, path: str) -> list[tuple[str, bytes]]:
        tree = self.files.get(path)
        return [] if tree is None else [("", tree)] if isinstance(tree, bytes) else list(tree.items())

    def _known(self, op: str, id: str) -> Json:
        if id not in self.records:
            return _refusal("NotFound", f"no record {id}")
        if op == "ack":
            self.records[id]["acknowledged"] = True
        elif self.finish == "on_wait":
            self.end(id)
        return {"ok": True, "record": self.records[id]}

    def _once(self, op: str, id: str, request: Json) -> Json:
        if (record := self.records.get(id)) is not None:
            same = record["op"] == op
            return {"ok": True, "record": record} if same else _refusal("Conflict", f"{id} is a {record['op']}")
        if op in ("upload", "restore"):
            return {"ok": True, "proceed": True}
        if op == "commit" and (self.forgetful or request["manifest"] != self.packed):
            return _refusal("NotFound", "not the last checkpoint")
        if op == "commit":
            self.base, self.committed, self.changes = request["manifest"], [*self.committed, *self.changes], []
        return {"ok": True, "record": self._record(request)}

    def _record(self, request: Json) -> Json:
        op, id = request["op"], request["id"]
        self.starts[id] += 1
        if op in PHASES:
            self.changes.append(id)
        record: Json = {"id": id, "op": op, "state": "running", "startedAt": self.clock(), "endedAt": None}
        self.records[id] = {**record, "acknowledged": op not in PHASES, "result": None}
        if op == "note":
            self.end(id, **request["data"])
        elif op not in PHASES or self.finish == "at_once":
            self.end(id)
        return self.records[id]

    def _request_of(self, id: str) -> Json:
        return next(each for each in self.requests if each.get("id") == id)

    def _type(self, path: str) -> str:
        tree = self.files.get(path)
        return "missing" if tree is None else "file" if isinstance(tree, bytes) else "directory"

    def _members(self, index: int, tree: Tree | None) -> list[tuple[str, bytes]]:
        if tree is None:
            return []
        if isinstance(tree, bytes):
            return [(str(index), tree)]
        return [(f"{index}/{name}", data) for name, data in tree.items()]


class FakeStream:
    """One exec session with the fake runner.

    break_after_sent: number of frames that reach the runner before the stream breaks. break_after_received: number of responses
    that reach the client before the stream breaks. chunk_bytes: maximum size of a received chunk.
    """

    def __init__(
        self,
        runner: FakeRunner,
        *,
        break_after_sent: int | None = None,
        break_after_received: int | None = None,
        delay_seconds: float = 0.0,
        chunk_bytes: int = 1 << 16,
    ) -> None:
        self._runner = runner
        self._sent_left, self._received_left = break_after_sent, break_after_received
        self._delay, self._chunk_bytes = delay_seconds, chunk_bytes
        self._reader, self._answers = FrameReader(), asyncio.Queue[bytes]()
        self._upload: tuple[Json, bytearray] | None = None
        self._bodies: list[bytes] = []  # bodies of a restore that have arrived so far
        self._rest = b""
        self.broken = self.eof = self.closed = False
        self.status: ExitStatus | None = None
        self.exit_details = ""

    async def send(self, data: bytes) -> None:
        self._check()
        self._reader.feed(data)
        for frame in self._reader:
            self._sent_left = self._count(self._sent_left)
            self._at(f"send {_name(frame)}")
            self._take(frame)

    async def send_eof(self) -> None:
        self._check()
        if not self.eof:
            self.eof = True
            self._answers.put_nowait(b"")

    async def receive(self) -> bytes:
        self._check()
        if self._runner.killed and not self._rest:
            self._runner.killed -= 1
            self.status = ExitStatus(137, "command terminated with non-zero exit code")
            return b""
        if not self._rest:
            self._rest = await self._answers.get()
            self._received_left = self._count(self._received_left)
            self._at("receive")
            await asyncio.sleep(self._delay)
        if not self._rest:
            self.status = ExitStatus(0)
        data, self._rest = self._rest[: self._chunk_bytes], self._rest[self._chunk_bytes :]
        return data

    async def close(self) -> None:
        self.closed = True

    def break_now(self) -> None:
        """Break the stream, so that no further frame or response passes through it."""
        self._sent_left = self._received_left = 0

    def _take(self, frame: Frame) -> None:
        if self._upload is None:
            self._respond(frame.json())
        elif frame.kind == DATA:
            self._upload[1].extend(frame.payload)
        else:
            self._finish_upload(frame.json())

    def _respond(self, request: Json) -> None:
        answer = self._runner.answer(request)
        self._put(MESSAGE, answer)
        if answer.get("proceed"):
            self._upload = (request, bytearray())
        elif request["op"] == "download" and answer["ok"]:
            self._send_body(self._runner.download(request))
        elif request["op"] == "checkpoint" and answer["ok"]:
            layer, manifest, result = self._runner.pack(full=request["full"])
            self._send_body(layer)
            self._send_body(manifest)
            self._put(MESSAGE, result)

    def _finish_upload(self, end: Json) -> None:
        assert self._upload is not None
        (request, body), self._upload = self._upload, None
        whole = (len(body), hashlib.sha256(body).hexdigest()) == (end["size"], end["sha256"])
        if end.get("error") or not whole:
            self._put(MESSAGE, _refusal("Body", end.get("error") or "bad digest"))
        elif request["op"] == "restore":
            self._receive_part_of_restore(request, bytes(body))
        else:
            self._put(MESSAGE, self._runner.receive_upload(request, bytes(body)))

    def _receive_part_of_restore(self, request: Json, body: bytes) -> None:
        self._bodies.append(body)
        if len(self._bodies) < 2 * len(request["increments"]):
            self._upload = (request, bytearray())
            return
        bodies, self._bodies = self._bodies, []
        self._put(MESSAGE, self._runner.receive_restore(request, bodies))

    def _send_body(self, body: bytes) -> None:
        for start in range(0, len(body), self._chunk_bytes):
            self._answers.put_nowait(encode(DATA, body[start : start + self._chunk_bytes]))
        self._put(END, {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()})

    def _put(self, kind: bytes, value: Json) -> None:
        self._answers.put_nowait(encode_json(kind, value))

    def _check(self) -> None:
        if self.broken or self.closed:
            raise StreamLost("the stream is broken" if self.broken else "the stream is closed")

    def _count(self, left: int | None) -> int | None:
        if left == 0:
            self.broken = True
            raise StreamLost("the stream was cut here")
        return None if left is None else left - 1

    def _at(self, name: str) -> None:
        try:
            self._runner.faults.point(name)
        except BaseException:
            self.broken = True
            raise


def _name(frame: Frame) -> str:
    if frame.kind != MESSAGE:
        return frame.kind.decode()
    request = frame.json()
    return f"{request['op']} {request.get('id', '')}".strip()


def _paths(request: Json) -> list[str]:
    """Return the paths of a request that must be absolute."""
    fields = {"download": "sources", "survey": "sources", "reset": "directories"}
    return [each["path"] for each in request[fields[request["op"]]]] if request["op"] in fields else []


def _refusal(code: str, message: str) -> Json:
    return {"ok": False, "error": {"code": code, "message": message}}
