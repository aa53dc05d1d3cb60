"""Tests of the agent host's sessions with the real runner, as PID 1 of a container that shares this machine's network.

The tests need root. $MULTISTEP_RUNNER is the path of the runner's binary; tests/harbor/test_agent_host.py sets it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from multistep_host.environment import GuestEnvironment
from multistep_host.frames import GuestError, TransferError
from multistep_host.guest import Admission
from waiting import cancelled

RUNNER = os.environ["MULTISTEP_RUNNER"]
COPY = "/run/runner"  # of the runner, in the container
MOUNT = "mount -t proc proc /proc && mount -t tmpfs tmpfs /run"
START = f'{MOUNT} && cp "$0" {COPY} && cd / && exec {COPY} serve --socket "$1" --port "$2"'


@dataclass
class Container:
    """The environment's container. `ask` sends requests to its runner as the operator does: with `runner call`."""

    name: str
    pid: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, **request: Any) -> dict[str, Any]:
        argv = ["nsenter", "-t", str(self.pid), "-m", "-p", "-r", "--", COPY, "call", "--socket", self.name]
        requests = [{"op": "hello", "protocols": [3], "records": False}, {"id": f"1/test/{next(self.numbers)}", **request}]
        done = subprocess.run(argv, input=b"".join(map(_frame, requests)), capture_output=True, check=True)
        answer: dict[str, Any] = _answers(done.stdout)[1]["record"]
        return answer

    def admit(self, user: str = "", *, root: bool = False) -> Admission:
        record = self.ask(op="admit", user=user, root=root)
        return Admission(record["id"], bytes.fromhex(record["result"]["token"]), self.name)

    def dismiss(self, admission: Admission) -> dict[str, Any]:
        result: dict[str, Any] = self.ask(op="dismiss", admission=admission.id)["result"]
        return result


def _frame(request: dict[str, Any]) -> bytes:
    payload = json.dumps(request).encode()
    return struct.pack(">cI", b"J", len(payload)) + payload


def _answers(stream: bytes) -> list[dict[str, Any]]:
    answers = []
    while stream:
        size = struct.unpack(">I", stream[1:5])[0]
        answers.append(json.loads(stream[5 : 5 + size]))
        stream = stream[5 + size :]
    return answers


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Start a container from a directory that only root can enter, as a checkout below root's home directory is."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    runner = shutil.copy(RUNNER, home)
    name = f"multistep-test/{secrets.token_hex(8)}"
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", START, runner, name, str(port)]
    with subprocess.Popen(argv, cwd=home) as holder:
        try:
            yield Container(name, _pid_of_runner(holder, name))
        finally:
            holder.kill()


def _pid_of_runner(holder: subprocess.Popen[bytes], name: str) -> int:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        listens = f"@{name}" in Path("/proc/net/unix").read_text()
        if children and listens:
            return int(children[0])
        time.sleep(0.05)
    raise TimeoutError("the runner did not start")


@pytest.fixture
def admitted(container: Container, tmp_path: Path) -> Iterator[GuestEnvironment]:
    """Return an environment that can use the runner: the runner admits its guest sessions, which may run commands as any user."""
    environment = GuestEnvironment("trial", tmp_path / "trial", workdir=None)
    admission = container.admit(root=True)
    environment.guest.admit(admission)
    yield environment
    container.dismiss(admission)


async def test_a_command_has_apart_streams_an_exit_code_and_its_users_identity(admitted: GuestEnvironment) -> None:
    result = await admitted.exec("id -un; echo err >&2; exit 3", env={"A": "b"}, cwd="/usr", user="nobody")
    assert (result.stdout, result.stderr, result.return_code) == ("nobody\n", "err\n", 3)


async def test_a_command_that_cannot_start_fails_like_one_of_docker_exec(admitted: GuestEnvironment) -> None:
    assert (await admitted.exec("true", cwd="/no/such/place")).return_code == 126
    assert (await admitted.exec("true", user="no-such-user")).return_code == 126


async def test_a_commands_timeout_is_the_runners(admitted: GuestEnvironment) -> None:
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        await admitted.exec("sleep 30", timeout_sec=1)


async def test_much_output_is_streamed_and_bounded(admitted: GuestEnvironment) -> None:
    result = await admitted.exec("head -c 50000000 /dev/zero | tr '\\0' x; echo end")
    assert 4 << 20 <= len(str(result.stdout)) < 5 << 20
    assert str(result.stdout).endswith("end\n")


async def test_directories_and_files_arrive(admitted: GuestEnvironment, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep/file").write_text("content")
    await admitted.upload_dir(source, str(tmp_path / "there"))
    await admitted.upload_file(source / "deep/file", str(tmp_path / "there/copy"))
    await admitted.download_dir(str(tmp_path / "there"), tmp_path / "back")
    await admitted.download_file(str(tmp_path / "there/copy"), tmp_path / "one")
    assert (tmp_path / "back/deep/file").read_text() == (tmp_path / "one").read_text() == "content"
    with pytest.raises(TransferError, match="is missing"):
        await admitted.download_file("/no/such/file", tmp_path / "x")


async def test_a_cancelled_command_and_what_it_started_are_killed(admitted: GuestEnvironment, tmp_path: Path) -> None:
    await cancelled(admitted.exec, tmp_path / "lock")


async def test_a_guest_without_root_acts_as_the_admitted_user_only(container: Container, tmp_path: Path) -> None:
    environment = GuestEnvironment("trial", tmp_path / "trial", workdir=None)
    admission = container.admit("nobody")
    environment.guest.admit(admission)
    assert (await environment.exec("id -un")).stdout == "nobody\n"
    assert (await environment.exec("id -un", user="root")).return_code == 126
    assert container.dismiss(admission) == {"found": True}


async def test_a_dismissed_guest_is_refused_and_its_command_is_lost(container: Container, tmp_path: Path) -> None:
    environment = GuestEnvironment("trial", tmp_path / "trial", workdir=None)
    admission = container.admit()
    environment.guest.admit(admission)
    running = asyncio.create_task(environment.exec("sleep 60"))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(container.dismiss, admission)
    with pytest.raises(GuestError):
        await running
    with pytest.raises(GuestError):
        await environment.exec("true")


async def test_a_wrong_token_is_refused(container: Container, admitted: GuestEnvironment) -> None:
    admission = container.admit()
    admitted.guest.admit(Admission(admission.id, bytes(32), container.name))
    with pytest.raises(GuestError, match="does not know the admission's token"):
        await admitted.exec("true")
    container.dismiss(admission)
