"""The fork server, ``python -m multistep.sources.reader CPU_SECONDS``. It forks a child for each task that the operator reads.

The server has imported all modules that a read needs, so a child starts in milliseconds. The server's stdin is a socket. Each
message on this socket asks for one child, and passes two sockets. One is for the order and the answer, the other for the child's
exit status.
"""

from __future__ import annotations

import base64
import binascii
import gc
import hashlib
import json
import mmap
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from multistep.api.trial.task_source import InlineSource
from multistep.api.trial.values import DIGEST, TOO_LARGE
from multistep.errors import InvalidSpec, InvalidTask, SourceError
from multistep.sources.reader.accept_task import accept_task
from multistep.sources.reader.read_messages import ReadOrder, error_answer
from multistep.sources.task.bundle import DEFAULT_LIMITS, Bundle, copy_plain
from multistep.sources.task.read_limits import CONFIG_BYTES, WALL_SECONDS, limit_process
from multistep.sources.task.stored_bundles import inline_bundle

_CHUNK = 1 << 20


def perform(order: ReadOrder) -> bytes:
    """Read the task, and return the answer for the operator. Any exception becomes an answer with an error."""
    try:
        return _read(order)
    except (InvalidTask, InvalidSpec, SourceError) as error:
        return error_answer(error)
    except MemoryError:
        return error_answer(SourceError("reading the task needs more memory than the operator allows", reason=TOO_LARGE))
    except OSError as error:
        text = f"the task could not be read on the operator's disk: {error.strerror or error}"
        return error_answer(SourceError(text, transient=True))
    except Exception as error:  # on hostile input, libraries can raise exceptions of any type
        return error_answer(InvalidSpec(f"spec.task: the task cannot be read: {type(error).__name__}"))


def _read(order: ReadOrder) -> bytes:
    with tempfile.TemporaryFile(dir=Path(order.output).parent) as plain:
        bundle = _bundle(order, plain)
        with Path(order.output).open("wb") as output:
            return accept_task(bundle, verification=order.verification, oracle=order.oracle, write=output.write).answer


def _bundle(order: ReadOrder, plain: BinaryIO) -> Bundle:
    if order.form == "inline":
        fields = json.loads(Path(order.path).read_bytes())
        if len(json.dumps(fields["config"])) > CONFIG_BYTES:
            text = f"spec.task.inline.config has more than {CONFIG_BYTES} bytes, which is the limit"
            raise SourceError(text, reason=TOO_LARGE)
        return inline_bundle(InlineSource(**fields))
    with _packed(order) as packed:
        _check_digest(order, packed)
        copy_plain(packed, plain, DEFAULT_LIMITS)
    plain.flush()
    size = os.fstat(plain.fileno()).st_size
    view = memoryview(mmap.mmap(plain.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    return Bundle.from_tar(plain, view, order.digest)


def _packed(order: ReadOrder) -> BinaryIO:
    """Open the packed bundle. It is the cached file, or a temporary file with the joined parts from ConfigMaps."""
    if order.form == "bundle":
        try:
            return Path(order.path).open("rb")
        except FileNotFoundError:
            text = "the fetched task was evicted from the cache before it was read"
            raise SourceError(text, reason=DIGEST) from None
    whole = tempfile.TemporaryFile(dir=Path(order.path).parent)  # noqa: SIM115 - the caller closes it
    with Path(order.path).open("rb") as lines:
        for line in lines:
            name, _, encoded = line.rstrip(b"\n").partition(b" ")
            try:
                whole.write(base64.b64decode(encoded, validate=True))
            except binascii.Error as error:
                problem = f"the ConfigMap {name.decode()} is not part of a bundle: binaryData.part is not base64"
                raise SourceError(problem) from error
    whole.seek(0)
    return whole


def _check_digest(order: ReadOrder, packed: BinaryIO) -> None:
    sha = hashlib.sha256()
    while data := packed.read(_CHUNK):
        sha.update(data)
    digest = f"sha256:{sha.hexdigest()}"
    packed.seek(0)
    if digest != order.digest:
        if order.form == "bundle":
            raise SourceError(f"the fetched task changed in the cache: its digest is {digest}, not {order.digest}", reason=DIGEST)
        raise SourceError(f"the bundle's digest is {digest}, not {order.digest}: package the task again")


STATUS = struct.Struct("!i")
_LONGER_SECONDS = 2.0


class _Child:
    """A child that reads one task. At the deadline the server kills the child, in case the child's own timer fails."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.status = status
        self.fd = os.pidfd_open(pid)
        self.deadline = time.monotonic() + WALL_SECONDS + _LONGER_SECONDS

    def reap(self) -> None:
        """Send the finished child's exit status to the operator."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with suppress(OSError):  # the operator may have stopped waiting for the status
            self.status.send(STATUS.pack(code), socket.MSG_DONTWAIT)
        self.status.close()
        os.close(self.fd)


def _work(order: socket.socket, cpu_seconds: int) -> None:
    """Read the order and the task, and send the answer. This runs in the child."""
    limit_process(cpu_seconds)
    with order.makefile("rb") as stream:
        text = stream.read()
    order.sendall(perform(ReadOrder.from_json(text)))


def _fork(control: socket.socket, cpu_seconds: int) -> _Child | None:
    data, fds, _, _ = socket.recv_fds(control, 1, 2)
    if not data:
        return None
    order, status = (socket.socket(fileno=fd) for fd in fds)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            status.close()
            control.close()
            _work(order, cpu_seconds)
            code = 0
        finally:
            os._exit(code)
    order.close()
    return _Child(pid, status)


def main(cpu_seconds: int) -> None:
    """Fork a child for each message until the operator closes the socket. ``cpu_seconds`` limits the CPU time of each child."""
    control = socket.socket(fileno=0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # children then share these memory pages, because their garbage collections do not write to them
    children: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(timeout=1.0 if children else None):
                if key.fileobj is control:
                    child = _fork(control, cpu_seconds)
                    if child is None:
                        for child in children.values():
                            os.kill(child.pid, signal.SIGKILL)
                        return
                    children[child.fd] = child
                    selector.register(child.fd, selectors.EVENT_READ)
                else:
                    selector.unregister(key.fd)
                    children.pop(key.fd).reap()
            for child in children.values():
                if time.monotonic() > child.deadline:
                    os.kill(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
