"""All errors that localkube raises.

LocalkubeError            exit code 1
├── Unsupported           exit code 2: this machine or this kind of cluster does not support the request
├── CommandFailed         a program exited with an error
├── Unhealthy             a component is not healthy
├── ApiError              the API server rejected a request
└── Unreachable           the API server does not answer
"""

from collections.abc import Sequence
from pathlib import Path


class LocalkubeError(Exception):
    """An error that is shown to the user as one message."""

    exit_code = 1


class Unsupported(LocalkubeError):
    """The request is not supported here. The message names what is missing."""

    exit_code = 2


class CommandFailed(LocalkubeError):
    """A program exited with a non-zero exit code."""

    def __init__(self, command: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"`{' '.join(command)}` ended with exit code {code}:\n{output.strip()[-4000:]}")
        self.code = code
        self.output = output


class Unhealthy(LocalkubeError):
    """A component is not healthy. The message shows the last lines of its log, if a log is given."""

    def __init__(self, what: str, log: Path | None = None) -> None:
        hint = f"\nIts log is {log}; the last lines:\n{_tail(log)}" if log else ""
        super().__init__(f"{what}{hint}")


class ApiError(LocalkubeError):
    """The API server responded with an error status."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: the API server answered {status}: {body[:1000]}")
        self.status = status


class Unreachable(LocalkubeError):
    """The connection to the API server failed."""


def _tail(log: Path, lines: int = 15) -> str:
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "(there is none)"
    return "\n".join("  " + line[:300] for line in text.splitlines()[-lines:])
