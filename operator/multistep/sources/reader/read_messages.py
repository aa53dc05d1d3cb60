"""The JSON messages between the operator and the process that reads a task. Answers are small and bounded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

from pydantic import TypeAdapter

from multistep.api.task.layout import TaskLayout
from multistep.api.task.suspicious_values import UnknownKey
from multistep.errors import InvalidSpec, InvalidTask, MultistepError, SourceError

_MESSAGE_LENGTH: Final = 2000
_LAYOUT = TypeAdapter(TaskLayout)

BundleForm = Literal["parts", "bundle", "inline"]
"""Format of a task's file.

- parts: The parts of a bundle, each in base64 on a line.
- bundle: A bundle.
- inline: An inline task as JSON.
"""
Span = tuple[int, int]
"""Offset and size, in bytes, of an upload's tar stream in the output file."""
ContentKey = tuple[str, str | None]
"""Fields ``kind`` and ``step`` of an api.trial.content_references.Content."""


@dataclass(frozen=True)
class ReadOrder:
    """A task to read. sources.task.task.load_task explains ``verification`` and ``oracle``."""

    form: BundleForm
    path: str
    """Path of the task's file."""
    output: str
    """Path of the file to which the child writes the uploads' tar streams."""
    digest: str = ""
    """The bundle's expected digest."""
    verification: bool = True
    oracle: bool = False

    def to_json(self) -> bytes:
        """Return the order as JSON for the child's socket."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ReadOrder:
        """Return the order that ``to_json`` encoded."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class ReadAnswer:
    """A task that was read and checked."""

    digest: str
    table: Mapping[str, Any]
    """The content of task.toml."""
    layout: TaskLayout
    unknown: tuple[UnknownKey, ...]
    contents: Mapping[ContentKey, Span]
    """Position of each upload's tar stream in the output file."""

    def to_json(self) -> bytes:
        """Return the answer as JSON for the operator."""
        table = asdict(self) | {"contents": [[*key, *span] for key, span in self.contents.items()]}
        return json.dumps({"task": table}, default=str).encode()


def error_answer(error: MultistepError) -> bytes:
    """Return the JSON answer that reports an error."""
    document = {"type": type(error).__name__, "message": str(error)[:_MESSAGE_LENGTH]}
    if isinstance(error, SourceError):
        document |= {"reason": error.reason, "transient": error.transient, "retry": error.retry_seconds}  # type: ignore[dict-item]
    if isinstance(error, InvalidTask):
        document |= {"kind": error.kind, "field": error.field[:_MESSAGE_LENGTH]}
    return json.dumps({"error": document}).encode()


def parse_answer(text: bytes) -> ReadAnswer:
    """Return the task, or raise the answer's error. Raises ValueError, KeyError, TypeError or RecursionError for a malformed
    answer."""
    table = json.loads(text)
    if "error" in table:
        raise _error(table["error"])
    task = table["task"]
    return ReadAnswer(
        digest=task["digest"],
        table=task["table"],
        layout=_LAYOUT.validate_python(task["layout"]),
        unknown=tuple(UnknownKey(**key) for key in task["unknown"]),
        contents={(str(kind), step): (int(start), int(size)) for kind, step, start, size in task["contents"]},
    )


def _error(document: Mapping[str, Any]) -> MultistepError:
    message = str(document["message"])[:_MESSAGE_LENGTH]
    match document["type"]:
        case "InvalidTask":
            error = InvalidTask(message, kind=str(document["kind"]))
            error.field = str(document["field"])
            return error
        case "InvalidSpec":
            return InvalidSpec(message)
    retry = cast("float | None", document["retry"])
    return SourceError(message, transient=bool(document["transient"]), reason=str(document["reason"]), retry_seconds=retry)
