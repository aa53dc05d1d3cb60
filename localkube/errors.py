"""Everything that localkube raises on purpose.

LocalkubeError            exit code 1
├── Unsupported           exit code 2: this machine, or this kind of cluster, cannot do it
├── CommandFailed         a program ended with an error
├── Unhealthy             a part of the cluster did not become (or is not) healthy
├── ApiError              the API server refused a request
└── Unreachable           nothing answers where the API server should be
"""

from collections.abc import Sequence
from pathlib import Path


class LocalkubeError(Exception):
    """Base of all errors that are shown to the user as one message."""

    exit_code = 1


class Unsupported(LocalkubeError):
    """What was asked for is not possible here; the message says what is missing."""

    exit_code = 2


class CommandFailed(LocalkubeError):
    """A program ended with a non-zero exit code."""

    def __init__(self, command: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"`{' '.join(command)}` ended with exit code {code}:\n{output.strip()[-4000:]}")
        self.code = code
        self.output = output


class Unhealthy(LocalkubeError):
    """A part is not what it should be; names the log that tells why."""

    def __init__(self, what: str, log: Path | None = None) -> None:
        hint = f"\nIts log is {log}; the last lines:\n{_tail(log)}" if log else ""
        super().__init__(f"{what}{hint}")


class ApiError(LocalkubeError):
    """The API server answered with an error status."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: the API server answered {status}: {body[:1000]}")
        self.status = status


class Unreachable(LocalkubeError):
    """No connection to the API server."""


def _tail(log: Path, lines: int = 15) -> str:
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "(there is none)"
    return "\n".join("  " + line[:300] for line in text.splitlines()[-lines:])
