"""The operations that a trial is made of: what is asked of the pod's runner (docs/runner-protocol.md), one id each.

An operation says what is to happen, never how; ids are ``ATTEMPT/STEP/OPERATION``, so a restarted operator asks for
the same thing under the same name.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from ..api.content import Content
from ..api.records import Record

LOGS_AGENT = "/logs/agent"
LOGS_VERIFIER = "/logs/verifier"
LOGS_ARTIFACTS = "/logs/artifacts"
TESTS = "/tests"
SOLUTION = "/solution"

OUTPUT_LIMIT_BYTES = 100 * 2**20
CAPTURE_LIMIT_BYTES = 64 * 2**10
TAIL_BYTES = 2048

Place: TypeAlias = Literal["agent", "verifier"]  # whose pod: the agent's, or that of a step's separate verifier
Part: TypeAlias = Literal["all", "agent", "verifier"]  # of a step's outputs

LOGS: Mapping[Part, tuple[str, ...]] = {
    "all": (LOGS_AGENT, LOGS_VERIFIER),
    "agent": (LOGS_AGENT,),
    "verifier": (LOGS_VERIFIER,),
}
"""The logs that come first in a collection, by what it brings."""


def in_verifier(id: str) -> bool:
    """Whether the operation of this id takes place in a verifier's pod (engine.scope.Scope.id)."""
    return id.count("/") == 3


@dataclass(frozen=True)
class Directory:
    """A directory to be emptied (or, with keep, only made). mode: permission bits."""

    path: str
    mode: int = 0o777
    user: str = ""
    keep: bool = False


@dataclass(frozen=True)
class Reset:
    """Make each directory an empty, real directory."""

    id: str
    directories: tuple[Directory, ...]
    where: Place = "agent"


@dataclass(frozen=True)
class Upload:
    """Merge content of the task into a directory of the environment."""

    id: str
    target: str
    content: Content
    user: str = ""
    where: Place = "agent"


@dataclass(frozen=True)
class Start:
    """Run a command as a phase. timeout: seconds, None for no limit, 0 or less for "do not start it".

    remove: files deleted before the start; captures: files read at the end, after all that the phase started is gone.
    """

    id: str
    argv: tuple[str, ...]
    user: str = ""
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    make_executable: str = ""
    remove: tuple[str, ...] = ()
    output: str = ""
    exit_code_file: str = ""
    captures: tuple[str, ...] = ()
    kill_at_end: bool = False
    where: Place = "agent"


@dataclass(frozen=True)
class Healthcheck:
    """Try a command until it succeeds or its retries are used up (Harbor 0.25, healthchecks). Times in seconds."""

    id: str
    argv: tuple[str, ...]
    user: str
    env: Mapping[str, str]
    interval: float
    timeout: float
    start_period: float
    start_interval: float
    retries: int
    where: Place = "agent"


@dataclass(frozen=True)
class Note:
    """Write a fact down beside the records, with the pod's clock."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    where: Place = "agent"


@dataclass(frozen=True)
class Source:
    """A path to be collected. exclude: tar patterns, for directories; sent: files of it ("" for itself) that come without
    their contents."""

    path: str
    exclude: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collect:
    """Bring sources of one step to the results store; its record's result is what was found (engine.artifacts).

    part: what they are; the sources begin with LOGS[part].
    """

    id: str
    step: int
    sources: tuple[Source, ...]
    part: Part = "all"
    where: Place = "agent"


@dataclass(frozen=True)
class Environment:
    """Have the pod of a step's separate verifier, and learn its WORKDIR."""

    id: str
    step: int
    where: Place = "verifier"


@dataclass(frozen=True)
class Transfer:
    """Merge what was collected of one artifact entry into a directory of the verifier's environment. entry: its index."""

    id: str
    target: str
    step: int
    entry: int
    where: Place = "verifier"


@dataclass(frozen=True)
class Release:
    """Keep the records of a step's separate verifier where no agent can reach them, and remove its pod."""

    id: str
    step: int
    where: Place = "agent"


Operation: TypeAlias = Reset | Upload | Start | Healthcheck | Note | Collect | Environment | Transfer | Release
PHASES = (Start, Healthcheck)  # operations that take their time: they are started, then waited for

T = TypeVar("T")
Script: TypeAlias = Generator[Operation, Record, T]
