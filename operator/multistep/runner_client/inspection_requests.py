"""Requests for inspections of the environment (docs/internals/runner-protocol.md)."""

from __future__ import annotations

from multistep.api.trial.runner_records import Record
from multistep.engine.journal.operations import LOGS_VERIFIER, TESTS, Baseline, Inspect
from multistep.runner_client.session import Session

INSPECT_PROTOCOL = 4  # first protocol version with inspections


async def inspect(session: Session, operation: Baseline | Inspect) -> Record:
    """Record the environment's state (Baseline) or find the changes since then (Inspect), and return the record. The record is
    empty if the runner is of an earlier release, which supports neither operation."""
    if session.protocol < INSPECT_PROTOCOL:
        return await session.note(operation.id, {})
    request = {"id": operation.id, "user": operation.user, "env": dict(operation.env), "directories": [TESTS, LOGS_VERIFIER]}
    return await session.operate("baseline" if isinstance(operation, Baseline) else "inspect", request)
