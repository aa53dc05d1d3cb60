"""Parses the runner's answers, and builds parts of requests to it (docs/internals/runner-protocol.md). Answers are not trusted."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multistep.api.trial.runner_records import Fields, Record
from multistep.engine.journal.operations import Directory, Source
from multistep.errors import RunnerError


@dataclass(frozen=True)
class Printed:
    """A part of a phase's output. size: bytes of the whole output; start: offset of the part; done: whether the phase has ended."""

    size: int
    start: int
    data: bytes
    done: bool


def record(answer: Mapping[str, Any], id: str, op: str | None = None) -> Record:
    """Return the record of an answer. Raises RunnerError if the record has another id or operation."""
    record = Record.from_json(answer.get("record"))
    if record.id != id or (op is not None and record.op != op):
        raise RunnerError(f"asked for {id!r}, the runner answered for {record.id[:200]!r}", code="Protocol")
    return record


def printed(answer: Mapping[str, Any], max_bytes: int) -> Printed:
    """Return the output in the answer to an "output" request. Raises RunnerError if the answer is invalid."""
    fields = Fields(answer, "output")
    try:
        data = base64.b64decode(fields.text("base64", 2 * max_bytes + 4), validate=True)
    except binascii.Error:
        raise RunnerError("the runner sent output that is not base64", code="Protocol") from None
    if len(data) > max_bytes:
        raise RunnerError(f"asked for {max_bytes} bytes, the runner sent {len(data)}", code="Protocol")
    return Printed(fields.integer("size"), fields.integer("from"), data, fields.one_of("state", {"running", "done"}) == "done")


def types(answer: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the types of a download's sources. count: number of requested sources. Raises RunnerError if the answer is invalid."""
    sources = Fields(answer, "download").sequence("sources", count)
    if len(sources) != count:
        raise RunnerError(f"asked for {count} sources, the runner answered for {len(sources)}", code="Protocol")
    kinds = {"file", "directory", "missing", "other"}
    return tuple(Fields(each, "source").one_of("type", kinds) for each in sources)


def error(answer: Mapping[str, Any]) -> RunnerError:
    """Return the error of an answer that is not ok."""
    if answer.get("ok") is not False:
        return RunnerError("the runner's answer is neither ok nor an error", code="Protocol")
    error = Fields(answer.get("error"), "error")
    return RunnerError(error.text("message")[:1000], code=error.text("code", 64))


def directory(directory: Directory) -> dict[str, Any]:
    """Return a directory's description in the format that the "reset" request uses."""
    request: dict[str, Any] = {"path": directory.path, "mode": directory.mode, "user": directory.user}
    return {**request, "keep": True} if directory.keep else request


def source(source: Source) -> dict[str, Any]:
    """Return a source's description in the format that the "download" and "survey" requests use."""
    request: dict[str, Any] = {"path": source.path, "exclude": list(source.exclude)}
    return {**request, "sent": list(source.sent)} if source.sent else request


def wait(id: str, timeout_seconds: float) -> dict[str, Any]:
    """Return a request that waits until the operation with this record id has finished."""
    return {"op": "wait", "id": id, "timeoutSeconds": timeout_seconds}
