"""The container of a trial: finds its pod, connects the terminal with a command in it, copies files out of it."""

from __future__ import annotations

import asyncio
import os
import posixpath
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from multistep.api.common.plural import plural
from multistep.api.trial.status import is_finished
from multistep.api.trial.trial import parse_status
from multistep.cli.terminal import bytes_text, print_err, working
from multistep.cli.trial.results import warn_left_out
from multistep.client.connection import Cluster
from multistep.client.objects import existing_trial
from multistep.client.outcome import outcome
from multistep.client.results.unpack import IN_MEMORY_BYTES, unpack
from multistep.errors import ClusterError, NotFound, Unavailable, UsageError
from multistep.kube.cluster_protocols import ExecStream
from multistep.kube.resources import PODS
from multistep.pods.pod_identity import CONTAINER

__all__ = ["CONTAINER", "TrialPod", "find_pod"]


@dataclass(frozen=True)
class TrialPod:
    """A trial's pod whose container runs."""

    namespace: str
    name: str
    active: bool
    """Whether the trial has not finished, so that changes in the pod may affect its results."""


async def find_pod(cluster: Cluster, namespace: str, trial: str) -> TrialPod:
    """Return the trial's pod. Raises UsageError if the trial has no pod whose container runs."""
    status = parse_status(await existing_trial(cluster, namespace, trial))
    finished = is_finished(status)
    advice = "run it with --keep (spec.podCleanup: Never) to keep the pod" if finished else "try again when it runs"
    missing = UsageError(f"trial {trial} is {outcome(status).phase} and has no pod: {advice}")
    if status.pod_name is None:
        raise missing
    try:
        pod = await cluster.get(PODS, namespace, status.pod_name)
    except NotFound:
        raise missing from None
    if pod["metadata"]["uid"] != status.pod_uid or pod["metadata"].get("deletionTimestamp"):
        raise missing
    states = [each.get("state") or {} for each in pod.get("status", {}).get("containerStatuses") or () if each["name"] == CONTAINER]
    if not any("running" in each for each in states):
        raise UsageError(f"the container of trial {trial} does not run in pod {status.pod_name}: `kubectl describe pod` shows why")
    return TrialPod(namespace, status.pod_name, active=not finished)


_BYTES = 64 * 1024


class TerminalStream(ExecStream, Protocol):
    """An exec session with a terminal."""

    async def resize(self, columns: int, rows: int) -> None: ...


class Session:
    """A command in a container, connected with this process."""

    def __init__(self, *, tty: bool) -> None:
        """tty: whether the command has a terminal, which is connected to this process's terminal."""
        self._tty = tty

    def write_error(self, data: bytes) -> None:
        """Write data of the command's stderr to this process's stderr."""
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()

    async def run(self, stream: TerminalStream) -> int:
        """Send input and show output until the command ends; return its exit code. Raises Unavailable if the connection breaks."""
        try:
            with _raw_terminal() if self._tty else _as_it_is():
                tasks = [asyncio.create_task(self._send(stream))]
                if self._tty:
                    tasks.append(asyncio.create_task(_keep_size(stream)))
                try:
                    await self._show(stream)
                finally:
                    for each in tasks:
                        each.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await stream.close()
        status = stream.status
        if status is None or status.code is None:
            raise Unavailable(f"the command did not report how it ended: {stream.exit_details}")
        return status.code

    async def _show(self, stream: TerminalStream) -> None:
        try:
            while data := await stream.receive():
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
        except ClusterError as error:
            raise Unavailable(f"the connection to the container broke: {error}") from error

    async def _send(self, stream: TerminalStream) -> None:
        with suppress(ClusterError):  # the command may end before it has read its input
            async for data in _input():
                await stream.send(data)
            await stream.send_eof()


async def _input() -> AsyncIterator[bytes]:
    """Yield the data of stdin. A thread reads it, because stdin may be a regular file, which the event loop cannot watch."""
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)

    def read() -> None:
        with suppress(RuntimeError, OSError):  # RuntimeError: the event loop is closed when the command has ended
            while True:
                data = os.read(descriptor, _BYTES)
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()
                if not data:
                    return

    import threading

    threading.Thread(target=read, daemon=True).start()  # a daemon thread, because a read of a terminal cannot be interrupted
    while data := await queue.get():
        yield data


async def _keep_size(stream: TerminalStream) -> None:
    """Set the size of the command's terminal to that of this process's terminal, now and after each change."""
    changed = asyncio.Event()
    changed.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while await changed.wait():
            changed.clear()
            await stream.resize(*shutil.get_terminal_size())
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Switch this process's terminal to raw mode, so that each key, Ctrl-C too, reaches the command; restore it afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)  # unlike TCSAFLUSH, keeps input that was typed before
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


_NOT_FOUND = (126, 127)  # exit codes that container runtimes and shells report for a program that does not exist


def parse_source(text: str) -> tuple[str, str]:
    """Parse ``TRIAL:PATH``; return the trial and the normalized path. Raises UsageError if the text has another form."""
    trial, colon, path = text.partition(":")
    if not trial or not colon or not path.startswith("/"):
        raise UsageError(f"{text} must be TRIAL:PATH with an absolute path, such as {trial or 'my-trial'}:/app")
    return trial, posixpath.normpath(path)


async def copy(cluster: Cluster, namespace: str, trial: str, path: str, directory: Path, max_mb: int) -> None:
    """Copy the file or directory ``path`` of a trial's container into ``directory``.

    max_mb: the maximum size of the archive, in megabytes, because an untrusted container may send data without end. Raises
    UsageError if tar cannot read the path or sends more, StoreError if the files cannot be written, Unavailable if the connection
    breaks.
    """
    pod = await find_pod(cluster, namespace, trial)
    parent, name = posixpath.split(path)
    argv = ["tar", "-c", "-f", "-", "-C", parent, "--", name or "."]
    with working(f"copying {path} of trial {trial}"), tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
        stream = await cluster.open_exec(pod.namespace, pod.name, CONTAINER, argv)
        try:
            while data := await stream.receive():
                if file.tell() + len(data) > max_mb * 1_000_000:
                    text = f"{path} of trial {trial} has more than {max_mb} MB, or never ends; nothing was copied"
                    raise UsageError(f"{text}: name a part of it, or give --max-mb")
                file.write(data)
        except ClusterError as error:
            raise Unavailable(f"the connection to the container broke: {error}") from error
        finally:
            await stream.close()
        code = stream.status.code if stream.status else None
        if code in _NOT_FOUND or "executable file not found" in stream.exit_details:
            raise UsageError(f"the image of trial {trial} has no tar: fetch what is stored with `multistep results {trial} DIR`")
        if code != 0:
            raise UsageError(f"tar in trial {trial} cannot read {path}: {stream.exit_details or f'exit code {code}'}")
        file.seek(0)
        unpacked = unpack(file, directory, compressed=False)
    warn_left_out(unpacked)
    print_err(f"{plural(unpacked.files, 'file')} ({bytes_text(unpacked.bytes)}) in {directory}")
