"""Record when components started and when they were ready.

An API server answers requests before it has loaded its RBAC rules. Until then, it denies requests that the rules allow. Only its
readiness probe shows when the rules are loaded. So readers of its audit log need to know when the API server was not ready.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

_FILE = "startups.jsonl"


@dataclass(frozen=True)
class Startup:
    """One startup of a component. Times have the format of audit logs, e.g. 2030-01-02T03:04:05.000000Z."""

    component: str
    started: str
    ready: str

    def contains(self, time: str) -> bool:
        """Return whether this time, in the same format, is between the component's start and its readiness."""
        return self.started <= time <= self.ready


@contextmanager
def recorded(logs: Path, component: str) -> Iterator[None]:
    """Return a context in which the caller starts the component and waits until it is ready. Its end without an error appends the
    startup to the file of startups in the directory of logs."""
    started = _now()
    yield
    startup = Startup(component, started, _now())
    with (logs / _FILE).open("a") as lines:
        lines.write(json.dumps(asdict(startup)) + "\n")


def read(logs: Path) -> list[Startup]:
    """Return all startups in the file of startups in the directory of logs, oldest first."""
    file = logs / _FILE
    if not file.exists():
        return []
    return [Startup(**json.loads(line)) for line in file.read_text().splitlines()]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
