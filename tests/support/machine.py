"""Control localkube's cluster from tests: its node, its components and the processes of its containers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from multistep.kube.cluster_protocols import Object

ROOT = Path(__file__).parents[2]


async def localkube(*arguments: str, fails: str = "") -> str:
    """Run localkube and return its output. Assert that its exit code is 0, or that stderr has the text ``fails``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "localkube", *arguments), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0 or (fails and fails in err.decode()), err.decode()
    return out.decode()


@asynccontextmanager
async def without(component: str) -> AsyncIterator[None]:
    """Stop a component of the control plane for the duration of the context."""
    await localkube("stop", component)
    try:
        yield
    finally:
        await localkube("start", component)


@asynccontextmanager
async def on_node(program: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program on the node for the duration of the context."""
    arguments = (sys.executable, "-m", "localkube", "node", *program)  # localkube replaces itself with the program
    process = await asyncio.create_subprocess_exec(*arguments, cwd=ROOT)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def processes(pod: Object, command: bytes = b"", name: str = "") -> list[int]:
    """Return the ids of the processes in a pod's container whose command line (NUL-terminated words) starts with `command`.

    A child that has not executed its own program yet still has its parent's command line; it is left out.
    name: the container's name; empty for the pod's only container.
    """
    sidecars = pod["status"].get("initContainerStatuses", []) if name else []
    statuses = [each for each in (*pod["status"].get("containerStatuses", []), *sidecars) if name in ("", each["name"])]
    (status,) = statuses or [{}]
    container = status.get("containerID", "").rpartition("/")[2].encode()
    if not container:
        return []  # the kubelet has not reported the container yet
    lines = {pid: _read(pid, "cmdline") for pid in _all() if container in _read(pid, "cgroup")}
    lines = {pid: line for pid, line in lines.items() if line.startswith(command)}
    return [pid for pid, line in lines.items() if lines.get(_parent(pid)) != line]


@contextmanager
def asleep(pids: Sequence[int]) -> Iterator[None]:
    """Suspend processes for the duration of the context."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def kill(pids: Sequence[int]) -> int:
    """Kill the processes. Return how many still existed."""
    ended = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            ended += 1
    return ended


def _parent(pid: int) -> int:
    """Return the id of the process's parent; 0 if the process has ended."""
    return int((_read(pid, "stat").rpartition(b")")[2].split() or [b"", b"0"])[1])


def _all() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
