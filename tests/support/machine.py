"""Control localkube's cluster from tests: its node, its components and the processes of its containers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from multistep.kube.protocols import Object

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

    name: the container's name; empty for the pod's only container.
    """
    sidecars = pod["status"].get("initContainerStatuses", []) if name else []
    (status,) = [each for each in (*pod["status"]["containerStatuses"], *sidecars) if name in ("", each["name"])]
    container = status.get("containerID", "").rpartition("/")[2].encode()
    if not container:
        return []  # the container does not exist yet
    return [pid for pid in _all() if _read(pid, "cmdline").startswith(command) and container in _read(pid, "cgroup")]


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


def _all() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
