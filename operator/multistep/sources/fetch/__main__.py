"""The fetching process, ``python -m multistep.sources.fetch``: reads an Order on stdin, and writes the result on stdout."""

from __future__ import annotations

import importlib
import math
import resource
import signal
import sys
import zlib
from pathlib import Path

from multistep.api.trial.values import TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import Fetched, Order, answer
from multistep.sources.fetch.http_client import install
from multistep.sources.fetch.output_file import split
from multistep.sources.task.bundle import read_members

INCOMING = "incoming"
_DATA_BYTES = 448 << 20
_FILE_BYTES = 768 << 20
_OPEN_FILES = 128


def limit(seconds: float) -> None:
    """Set this process's resource limits. seconds: limit of CPU time; the limit of wall time is 1 s longer. The parent kills the
    process a bit later."""
    wanted = {
        resource.RLIMIT_DATA: _DATA_BYTES,
        resource.RLIMIT_FSIZE: _FILE_BYTES,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CPU: math.ceil(seconds),
        resource.RLIMIT_CORE: 0,
    }
    for each, most in wanted.items():
        hard = resource.getrlimit(each)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(each, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write beyond the file size limit raises an OSError
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)


def run(order: Order) -> Fetched:
    """Fetch the task (or tasks), and check that the bundle is valid. Raises SourceError; the parent process then deletes all files
    that this process created."""
    incoming = Path(order.cache) / INCOMING
    kind = importlib.import_module(f".{order.request.kind}", __package__)
    fetched: Fetched = kind.fetch(order, incoming)
    if fetched.file and order.request.many:
        whole = incoming / fetched.file
        try:
            return split(whole, order.request.path.strip("/") if order.request.kind == "url" else "", order, fetched.revision)
        finally:
            whole.unlink()
    if fetched.file:
        check(incoming / fetched.file, order)
    return fetched


def check(file: Path, order: Order) -> None:
    """Raise SourceError if the file is not a bundle, is too large, or has no task.toml."""
    with file.open("rb") as stream:
        names = {path for path, _ in read_members(stream, order.rules.limits)}
    if "task.toml" not in names:
        where = f"at {order.request.path!r}" if order.request.path.strip("/") else "at its top"
        raise SourceError(f"{order.request.location.partition('?')[0]} has no task: task.toml is missing {where}")


def outcome(order: Order) -> Fetched | SourceError:
    """Return the fetched task or tasks, or any error as a SourceError without credentials."""
    what = order.request.location.partition("?")[0]
    try:
        return run(order)
    except SourceError as error:
        return error
    except MemoryError:
        return SourceError(f"reading {what} needs more memory than the operator allows", reason=TOO_LARGE)
    except (OSError, zlib.error) as error:
        return SourceError(f"{what} could not be read or stored: {getattr(error, 'strerror', None) or error}", transient=True)
    except Exception as error:  # on hostile input, libraries can raise exceptions of any type
        return SourceError(f"{what} cannot be read: {type(error).__name__}")


def main() -> None:
    """Read the order, fetch the task, and write the answer."""
    order = Order.from_json(sys.stdin.buffer.read())
    limit(order.rules.seconds)
    install(order.rules.blocked_networks)
    sys.stdout.buffer.write(answer(outcome(order)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
