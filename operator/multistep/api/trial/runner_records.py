"""Parses the runner's answers and records (docs/internals/runner-protocol.md).

The runner shares a container with hostile code, so type and size of every field are checked before use. An invalid answer raises
RunnerError with code Protocol, so that no KeyError can occur later.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from multistep.errors import RunnerError

MAX_ID_CHARACTERS = 1024
MAX_TEXT_CHARACTERS = 64 * 1024  # limit of each text in a result, of which the longest is the end of a phase's output
MAX_PATH_CHARACTERS = 4096  # Linux's limit of a path, PATH_MAX
MAX_RECORDS = 30_000  # enough for 1,000 steps, which is the maximum of a task
MAX_GROUPS = 65_537  # Linux's limit of supplementary groups, plus the user's primary group
MAX_INTEGER = 2**53  # up to this integer JSON numbers (doubles) are exact

PROCESSES_LEFT = "Left"  # error code of a phase that ran, but of which some processes could not be killed
DISK_FULL = "DiskFull"  # error code for a disk or a disk quota that is full
OPERATIONS = frozenset(
    {"start", "healthcheck", "upload", "reset", "note", "send", "admit", "dismiss", "commit", "restore", "baseline", "inspect"}
)


@dataclass(frozen=True)
class Record:
    """The record of a started or finished operation. Times are seconds since the epoch, according to the node's clock."""

    id: str
    op: str
    state: str  # "running" or "done"
    started_at: float
    ended_at: float | None = None
    acknowledged: bool = False
    result: Mapping[str, Any] | None = None  # None while running; PhaseResult and HealthcheckResult parse it

    @property
    def done(self) -> bool:
        return self.state == "done"

    @classmethod
    def from_json(cls, value: object) -> Record:
        """Parse a record in the runner's answer. Raises RunnerError (code Protocol)."""
        fields = Fields(value, "record")
        record = cls(
            id=fields.text("id", MAX_ID_CHARACTERS),
            op=fields.one_of("op", OPERATIONS),
            state=fields.one_of("state", {"running", "done"}),
            started_at=fields.number("startedAt"),
            ended_at=fields.optional_number("endedAt"),
            acknowledged=fields.boolean("acknowledged"),
            result=fields.optional_mapping("result"),
        )
        if record.done and record.result is None:
            raise _violation(f"record {record.id!r} is done without a result")
        return record

    def to_json(self) -> dict[str, Any]:
        """Return the record in the JSON form in which the runner sends it."""
        times = {"startedAt": self.started_at, "endedAt": self.ended_at}
        result = None if self.result is None else dict(self.result)
        return {"id": self.id, "op": self.op, "state": self.state, **times, "acknowledged": self.acknowledged, "result": result}


@dataclass(frozen=True)
class RunnerUser:
    """The user of the container's PID 1, which is the runner."""

    uid: int
    gid: int
    name: str = ""
    home: str = ""


@dataclass(frozen=True)
class Identity:
    """The ids of a user in the container."""

    uid: int
    gids: frozenset[int] = frozenset()

    @classmethod
    def from_json(cls, value: object) -> Identity:
        """Parse a user's ids. Raises RunnerError (code Protocol)."""
        fields = Fields(value, "hello.users")
        return cls(fields.integer("uid"), frozenset(each for each in fields.sequence("gids", MAX_GROUPS) if isinstance(each, int)))


@dataclass(frozen=True)
class Hello:
    """The runner's answer to the request ``hello``, which contains its identity and all its records."""

    protocol: int
    version: str
    instance: str  # changes when PID 1 restarts
    pod_uid: str
    user: RunnerUser
    workdir: str
    runtime_dir: str
    started_at: float
    records: tuple[Record, ...] = ()
    users: Mapping[str, Identity] = field(default_factory=dict)
    """Ids of the requested users by name, without users that do not exist. Empty in answers of earlier releases of the runner."""
    root_programs: tuple[str, ...] = ()
    """Programs by which a user may become root, such as sudo. Empty in answers of earlier releases of the runner."""

    @classmethod
    def from_json(cls, value: object) -> Hello:
        """Parse the answer to hello. Raises RunnerError (code Protocol)."""
        fields = Fields(value, "hello")
        user = Fields(fields.mapping("user"), "hello.user")
        return cls(
            protocol=fields.integer("protocol"),
            version=fields.text("version", 256),
            instance=fields.text("instance", 256),
            pod_uid=fields.text("podUID", 256),
            user=RunnerUser(uid=user.integer("uid"), gid=user.integer("gid"), name=user.text("name"), home=user.text("home")),
            workdir=fields.absolute_path("workdir"),
            runtime_dir=fields.absolute_path("runtimeDir"),
            started_at=fields.number("startedAt"),
            records=tuple(Record.from_json(each) for each in fields.sequence("records", MAX_RECORDS) if not _is_newer(each)),
            users={name: Identity.from_json(each) for name, each in (fields.optional_mapping("users") or {}).items()},
            root_programs=fields.texts("rootPrograms", 64),
        )


@dataclass(frozen=True)
class Fault:
    """The error in the result of an operation."""

    code: str
    """One of the codes in docs/internals/runner-protocol.md."""
    message: str


@dataclass(frozen=True)
class Capture:
    """A file that the runner read when a phase ended."""

    data: bytes
    size: int
    """Size of the whole file in bytes."""
    truncated: bool
    """Whether ``data`` is only the start of the file."""
    changed: bool = False
    """Whether the file changed while it was read."""


@dataclass(frozen=True)
class PhaseResult:
    """The result of a phase, from the record of a ``start`` operation."""

    exit_code: int | None  # None if the process was killed or not started
    signal: int | None  # the signal that killed the process, if any
    timed_out: bool
    error: Fault | None  # set if the process could not be started, or if some of its processes could not be killed
    tail: str  # the end of the phase's output
    output_bytes: int
    output_truncated: bool
    oom_kills: int | None  # None if unknown
    memory_limit: int | None  # the container's limit in bytes, None if it has none or the limit is unknown
    duration_seconds: float
    captures: Mapping[str, Capture | None] = field(default_factory=dict)  # by path, None if no regular file has this path

    @property
    def started(self) -> bool:
        """Return whether the process was started."""
        return self.error is None or self.error.code == PROCESSES_LEFT

    @classmethod
    def from_record(cls, record: Record) -> PhaseResult:
        """Parse the result of a finished ``start`` operation. Raises RunnerError (code Protocol)."""
        fields = Fields(record.result, f"result of {record.id}")
        return cls(
            exit_code=fields.optional_integer("exitCode"),
            signal=fields.optional_integer("signal"),
            timed_out=fields.boolean("timedOut"),
            error=fields.optional_fault("error"),
            tail=fields.text("tail"),
            output_bytes=fields.integer("outputBytes"),
            output_truncated=fields.boolean("outputTruncated"),
            oom_kills=fields.optional_integer("oomKills"),
            memory_limit=fields.optional_integer("memoryLimit"),
            duration_seconds=fields.number("durationSeconds"),
            captures=_captures(fields.optional_mapping("captures") or {}),
        )


@dataclass(frozen=True)
class HealthcheckResult:
    """The result of a healthcheck. The fields from exit_code on describe the last execution of its command."""

    healthy: bool
    attempts: int
    duration_seconds: float
    exit_code: int | None
    timed_out: bool
    tail: str
    error: Fault | None

    @classmethod
    def from_record(cls, record: Record) -> HealthcheckResult:
        """Parse the result of a finished ``healthcheck`` operation. Raises RunnerError (code Protocol)."""
        fields = Fields(record.result, f"result of {record.id}")
        return cls(
            healthy=fields.boolean("healthy"),
            attempts=fields.integer("attempts"),
            duration_seconds=fields.number("durationSeconds"),
            exit_code=fields.optional_integer("exitCode"),
            timed_out=fields.boolean("timedOut"),
            tail=fields.text("tail"),
            error=fields.optional_fault("error"),
        )


class Fields:
    """Access to the members of a JSON object, which checks their types. All methods raise RunnerError (code Protocol)."""

    def __init__(self, value: object, what: str) -> None:
        """Create the access to ``value``. ``what`` is the name of the object in error messages."""
        if not isinstance(value, Mapping):
            raise _violation(f"{what} is not an object")
        self._value: Mapping[str, Any] = value
        self._what = what

    def text(self, name: str, limit: int = MAX_TEXT_CHARACTERS) -> str:
        value = self._value.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        if len(value) > limit:
            raise self.wrong(name, f"a string of at most {limit} characters")
        return value

    def absolute_path(self, name: str) -> str:
        """Return an absolute path. Requests contain it, so any other text would later look like an invalid value of the task."""
        value = self.text(name, MAX_PATH_CHARACTERS)
        if not value.startswith("/") or "\0" in value:
            raise self.wrong(name, "an absolute path without NUL characters")
        return value

    def one_of(self, name: str, choices: frozenset[str] | set[str]) -> str:
        value = self.text(name)
        if value not in choices:
            raise self.wrong(name, "one of " + ", ".join(sorted(choices)))
        return value

    def boolean(self, name: str) -> bool:
        value = self._value.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def integer(self, name: str) -> int:
        value = self._value.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INTEGER:
            raise self.wrong(name, "an integer")
        return value

    def optional_boolean(self, name: str) -> bool:
        """Return a boolean, False if it is missing or null, as in answers of earlier releases of the runner."""
        return False if self._value.get(name) is None else self.boolean(name)

    def number(self, name: str) -> float:
        value = self._value.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number")
        if not -MAX_INTEGER <= value <= MAX_INTEGER or math.isnan(value):
            raise self.wrong(name, "a number within bounds")
        return float(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self._value.get(name)
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return MappingProxyType(dict(value))

    def sequence(self, name: str, limit: int) -> list[Any]:
        value = self._value.get(name)
        if not isinstance(value, list) or len(value) > limit:
            raise self.wrong(name, f"a list of at most {limit}")
        return value

    def texts(self, name: str, limit: int) -> tuple[str, ...]:
        """Return a list of strings as a tuple, () if it is missing or null."""
        if self._value.get(name) is None:
            return ()
        values = self.sequence(name, limit)
        if not all(isinstance(each, str) and len(each) <= MAX_TEXT_CHARACTERS for each in values):
            raise self.wrong(name, "a list of strings")
        return tuple(values)

    def optional_text(self, name: str, limit: int = MAX_TEXT_CHARACTERS) -> str | None:
        return None if self._value.get(name) is None else self.text(name, limit)

    def optional_integer(self, name: str) -> int | None:
        return None if self._value.get(name) is None else self.integer(name)

    def optional_number(self, name: str) -> float | None:
        return None if self._value.get(name) is None else self.number(name)

    def optional_mapping(self, name: str) -> Mapping[str, Any] | None:
        return None if self._value.get(name) is None else self.mapping(name)

    def optional_fault(self, name: str) -> Fault | None:
        value = self.optional_mapping(name)
        if value is None:
            return None
        fault = Fields(value, f"{self._what}.{name}")
        return Fault(code=fault.text("code", 64), message=fault.text("message"))

    def wrong(self, name: str, wanted: str) -> RunnerError:
        return _violation(f"{self._what}: {name} is not {wanted}")


def _is_newer(record: object) -> bool:
    """Return whether this release does not know the record's operation, e.g. after a rollback of the operator.

    Hello omits such records, because no script of this release uses them.
    """
    op = record.get("op") if isinstance(record, Mapping) else None
    return isinstance(op, str) and op not in OPERATIONS


def _captures(value: Mapping[str, Any]) -> dict[str, Capture | None]:
    return {path: None if each is None else _capture(path, each) for path, each in value.items()}


def _capture(path: str, value: object) -> Capture:
    fields = Fields(value, f"capture {path}")
    # A captured file may be longer than MAX_TEXT_CHARACTERS. Its limit is the maximum size of a protocol frame.
    encoded = fields.text("base64", 2**21)
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _violation(f"capture {path}: {error}") from None
    return Capture(
        data=data, size=fields.integer("size"), truncated=fields.boolean("truncated"), changed=fields.optional_boolean("changed")
    )


def _violation(what: str) -> RunnerError:
    return RunnerError(f"the runner's answer violates the protocol: {what}"[:1000], code="Protocol")
