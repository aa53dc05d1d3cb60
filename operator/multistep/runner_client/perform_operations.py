"""Sends the engine's operations as requests to the runner (docs/internals/runner-protocol.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from multistep.api.trial.content_references import Content
from multistep.api.trial.runner_records import DISK_FULL, Fields, Record
from multistep.engine.journal.operations import (
    CAPTURE_LIMIT_BYTES,
    HOST_OUTCOME,
    HOST_OUTPUT,
    LOGS_VERIFIER,
    OUTPUT_LIMIT_BYTES,
    TAIL_BYTES,
    TESTS,
    Admit,
    Baseline,
    Dismiss,
    Healthcheck,
    HostCall,
    Inspect,
    Launch,
    Note,
    Operation,
    Reset,
    Start,
    Upload,
)
from multistep.errors import RunnerError
from multistep.runner_client.session import Session
from multistep.runner_client.transfer_bodies import Body

INSPECT_PROTOCOL = 4  # first protocol version with inspections


async def inspect(session: Session, operation: Baseline | Inspect) -> Record:
    """Record the environment's state (Baseline) or find the changes since then (Inspect), and return the record. It is empty if the
    runner is of an earlier release, which supports neither operation."""
    if session.protocol < INSPECT_PROTOCOL:
        return await session.note(operation.id, {})
    request = {"id": operation.id, "user": operation.user, "env": dict(operation.env), "directories": [TESTS, LOGS_VERIFIER]}
    return await session.operate("baseline" if isinstance(operation, Baseline) else "inspect", request)


ENVIRONMENT_SOCKET = "multistep/runner"
HOST_PROGRAM = "multistep-host"
Contents = Callable[[Content], Body]
_FINAL = frozenset({"Upload", DISK_FULL, "TooLarge"})  # errors that a retry of the upload cannot fix

_LAUNCH_SECONDS = 0.2  # time in which the runner reports that a command cannot be started


async def perform(session: Session, operation: Operation, contents: Contents, wait_seconds: float) -> Record:
    """Perform an operation that needs only the runner, and return its record. A phase that runs for longer than ``wait_seconds``
    continues, and its record shows it as running.

    ``contents`` returns the tar stream of an upload.
    """
    match operation:
        case Reset():
            return await session.reset(operation.id, operation.directories)
        case Upload():
            return await upload(session, operation.id, operation.target, contents(operation.content), operation.user)
        case Start():
            return await session.start(start_request(operation), wait_seconds)
        case Healthcheck():
            return await session.healthcheck(_healthcheck(operation), wait_seconds)
        case Launch():
            request = start_request(Start(f"{operation.id}-process", operation.argv, env=operation.env))
            started = await session.start(request, _LAUNCH_SECONDS)
            fault = (started.result or {}).get("error") if started.done else None
            return await session.note(operation.id, {"error": fault} if fault else {})
        case Note():
            return await session.note(operation.id, operation.data)
        case Admit():
            return await session.operate("admit", {"id": operation.id, "user": operation.user, "root": operation.root})
        case Baseline() | Inspect():
            return await inspect(session, operation)
        case Dismiss():
            return await session.operate("dismiss", {"id": operation.id, "admission": operation.admission, "kill": operation.kill})
    raise TypeError(f"not an operation that needs only the runner: {operation}")


async def call_host(session: Session, call: HostCall, admission: Record, wait_seconds: float) -> Record:
    """Start a command of the agent host, and return its record. ``admission`` is the record of the Admit operation, whose token
    allows the command to act in the environment."""
    token = Fields(admission.result, f"result of {admission.id}").text("token", 64)
    credentials = {"id": call.admission, "token": token, "socket": ENVIRONMENT_SOCKET}
    request = {**call.request, "outcome": HOST_OUTCOME, "admission": credentials}
    argv, files = (HOST_PROGRAM, call.command), (HOST_OUTCOME,)
    start = Start(call.id, argv, timeout=call.timeout, output=HOST_OUTPUT, remove=files, captures=files)
    return await session.start({**start_request(start), "stdin": json.dumps(request)}, wait_seconds)


async def upload(session: Session, id: str, target: str, chunks: Body, user: str = "") -> Record:
    """Upload a tar stream, and return the upload's record. A final error (full disk, too large) is stored as the record's result,
    so that the upload is not retried."""
    try:
        return await session.upload(id, target, chunks, user)
    except RunnerError as error:
        if error.code not in _FINAL:
            raise
        return await session.note(id, {"error": {"code": error.code, "message": str(error)[:1000]}})


def start_request(operation: Start) -> dict[str, Any]:
    """Return the fields of the ``start`` request for a command, except ``op``."""
    request: dict[str, Any] = {
        "id": operation.id,
        "argv": list(operation.argv),
        "user": operation.user,
        "cwd": operation.cwd,
        "env": dict(operation.env),
        "timeoutSeconds": _timeout(operation.timeout),
        "tailBytes": TAIL_BYTES,
        "remove": list(operation.remove),
        "captures": [{"path": path, "maxBytes": CAPTURE_LIMIT_BYTES} for path in operation.captures],
        "killAtEnd": operation.kill_at_end,
    }
    if operation.make_executable:
        request["makeExecutable"] = operation.make_executable
    if operation.output:
        request["output"] = {"path": operation.output, "maxBytes": OUTPUT_LIMIT_BYTES}
    if operation.exit_code_file:
        request["exitCodeFile"] = operation.exit_code_file
    return request


def _timeout(seconds: float | None) -> float | None:
    """Return a timeout in the form that the runner accepts. Infinity and NaN, which Harbor allows, mean no timeout."""
    return None if seconds is None or math.isnan(seconds) or seconds == math.inf else max(seconds, 0.0)


def _healthcheck(operation: Healthcheck) -> dict[str, Any]:
    return {
        "id": operation.id,
        "argv": list(operation.argv),
        "user": operation.user,
        "cwd": "",
        "env": dict(operation.env),
        "intervalSeconds": operation.interval,
        "timeoutSeconds": _timeout(operation.timeout),
        "startPeriodSeconds": operation.start_period,
        "startIntervalSeconds": operation.start_interval,
        "retries": operation.retries,
    }
