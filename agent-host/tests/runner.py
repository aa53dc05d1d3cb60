"""A fake of the environment's runner: it serves guest sessions (runner protocol 3) and runs their commands without a container.

test_real_runner.py uses the real runner; the fake is for tests that need no container.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import secrets
import signal
import struct
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multistep_host.frames import DATA, END, JSON, Connection
from multistep_host.guest import Admission, proof

TOKEN = bytes(range(32))


@dataclass
class Runner:
    """The fake runner. requests: the requests that it received; refusal: error with which it answers every request, if set.

    impostor: whether it uses a wrong token, as a process that impersonates the runner does; damaged: whether it sends downloads
    with a wrong size.
    """

    socket: str = field(default_factory=lambda: f"multistep-test/{secrets.token_hex(8)}")
    requests: list[dict[str, Any]] = field(default_factory=list)
    refusal: dict[str, str] | None = None
    impostor: bool = False
    damaged: bool = False

    @property
    def admission(self) -> Admission:
        return Admission("1/agent/admit", TOKEN, self.socket)

    @contextlib.asynccontextmanager
    async def serving(self) -> Any:
        server = await asyncio.start_unix_server(self._serve, "\0" + self.socket)
        try:
            yield self
        finally:
            server.close()  # without wait_closed(), which would wait for connections that a test left open

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        try:
            if await self._shake_hands(connection):
                await self._answer(connection, json.loads((await connection.frame())[1]))
        except RuntimeError:
            pass  # the client disconnected
        except asyncio.CancelledError:
            pass  # the test has ended; asyncio would log the exception as an error
        finally:
            writer.close()

    async def _shake_hands(self, connection: Connection) -> bool:
        hello = json.loads((await connection.frame())[1])
        nonce = secrets.token_hex(16)
        token = bytes(32) if self.impostor else TOKEN
        await connection.request({"ok": True, "nonce": nonce, "proof": proof(token, "runner", hello["nonce"], nonce)})
        theirs = json.loads((await connection.frame())[1])["proof"]
        if hello["admission"] != self.admission.id or theirs != proof(TOKEN, "guest", nonce, hello["nonce"]):
            await connection.request(_refusal("Refused", "nobody of that name is admitted"))
            return False
        await connection.request({"ok": True})
        return True

    async def _answer(self, connection: Connection, request: dict[str, Any]) -> None:
        self.requests.append(request)
        if self.refusal:
            await connection.request({"ok": False, "error": self.refusal})
        elif request["op"] == "exec":
            await _execute(connection, request)
        elif request["op"] == "upload":
            await _upload(connection, request)
        else:
            await self._download(connection, Path(request["sources"][0]["path"]))

    async def _download(self, connection: Connection, path: Path) -> None:
        kind = "directory" if path.is_dir() else "file" if path.is_file() else "missing"
        await connection.request({"ok": True, "sources": [{"type": kind}]})
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            if kind != "missing":
                tar.add(path, arcname="0")
        archive.seek(0)
        if self.damaged:
            await connection.send(DATA, b"x")
            await connection.send(END, json.dumps({"size": 2, "sha256": hashlib.sha256(b"x").hexdigest()}).encode())
        else:
            await connection.send_body(archive)


def _refusal(code: str, message: str) -> dict[str, Any]:
    return {"ok": False, "error": {"code": code, "message": message}}


async def _execute(connection: Connection, request: dict[str, Any]) -> None:
    """Run a command as the runner does, and kill it when the client disconnects."""
    if not Path(request["cwd"] or "/").is_dir():
        await _finish(connection, {"error": {"code": "BadCwd", "message": f"no directory {request['cwd']}"}})
        return
    process = await asyncio.create_subprocess_exec(
        *request["argv"],
        cwd=request["cwd"] or "/",
        env=os.environ | request["env"],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout and process.stderr
    work = asyncio.gather(_stream(connection, 1, process.stdout), _stream(connection, 2, process.stderr), process.wait())
    gone = asyncio.create_task(connection.reader.read(1))
    waiting: set[asyncio.Future[Any]] = {work, gone}
    done, _ = await asyncio.wait(waiting, timeout=request["timeoutSeconds"], return_when=asyncio.FIRST_COMPLETED)
    if work not in done:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    gone.cancel()
    code = process.returncode or 0
    result = {"exitCode": code if code >= 0 else None, "signal": -code if code < 0 else None, "timedOut": not done, "error": None}
    await _finish(connection, result)


async def _finish(connection: Connection, result: dict[str, Any]) -> None:
    await connection.request({"ok": True, "result": result})


async def _stream(connection: Connection, number: int, source: asyncio.StreamReader) -> None:
    while block := await source.read(64 << 10):
        await connection.send(DATA, bytes([number]) + block)


async def _upload(connection: Connection, request: dict[str, Any]) -> None:
    await connection.request({"ok": True, "proceed": True})
    archive = io.BytesIO()
    await connection.receive_body(archive.write, 1 << 30)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        tar.extractall(request["target"], filter="data")
    await connection.request({"ok": True})


def frame(kind: bytes, payload: bytes) -> bytes:
    """Return the bytes of a frame."""
    return struct.pack(">cI", kind, len(payload)) + payload


__all__ = ["DATA", "END", "JSON", "TOKEN", "Runner", "frame"]
