"""The fetching process, ``python -m multistep.sources.fetch``. It reads a FetchOrder on stdin, and writes the result to stdout."""

from __future__ import annotations

import importlib
import math
import signal
import sys
import zlib
from pathlib import Path

from multistep.api.trial.values import TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import FetchOrder, FetchResult, answer
from multistep.sources.fetch.http_client import block_networks
from multistep.sources.fetch.output_file import split_tasks
from multistep.sources.task.bundle import read_members
from multistep.sources.task.read_limits import limit_resources

INCOMING = "incoming"
_DATA_BYTES = 448 << 20
_FILE_BYTES = 768 << 20
_OPEN_FILES = 128


def limit_process(seconds: float) -> None:
    """Limit the CPU time of this process to ``seconds``, its wall time to 1 s more, and its other resources. The parent kills the
    process a bit later."""
    limit_resources(data=_DATA_BYTES, file_size=_FILE_BYTES, open_files=_OPEN_FILES, cpu_seconds=math.ceil(seconds))
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)


def run(order: FetchOrder) -> FetchResult:
    """Fetch the task (or tasks), and check that the bundle is valid. Raises SourceError. The parent process then deletes all files
    that this process created."""
    incoming = Path(order.cache) / INCOMING
    kind = importlib.import_module(f".{order.request.kind}", __package__)
    fetched: FetchResult = kind.fetch(order, incoming)
    if fetched.file and order.request.many:
        whole = incoming / fetched.file
        try:
            return split_tasks(whole, order.request.path.strip("/") if order.request.kind == "url" else "", order, fetched.revision)
        finally:
            whole.unlink()
    if fetched.file:
        check(incoming / fetched.file, order)
    return fetched


def check(file: Path, order: FetchOrder) -> None:
    """Raise SourceError if the file is not a bundle, is too large, or has no task.toml."""
    with file.open("rb") as stream:
        names = {path for path, _ in read_members(stream, order.rules.limits)}
    if "task.toml" not in names:
        where = f"at {order.request.path!r}" if order.request.path.strip("/") else "at its top"
        raise SourceError(f"{order.request.location.partition('?')[0]} has no task: task.toml is missing {where}")


def outcome(order: FetchOrder) -> FetchResult | SourceError:
    """Return the fetched task or tasks, or a SourceError for any error. Its message has no credentials."""
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
    order = FetchOrder.from_json(sys.stdin.buffer.read())
    limit_process(order.rules.seconds)
    block_networks(order.rules.blocked_networks)
    sys.stdout.buffer.write(answer(outcome(order)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
