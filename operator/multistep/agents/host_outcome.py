"""Parses the outcome that the agent host writes at the end of a setup or a step. A hostile agent class may have written it, so all
fields are validated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from multistep.api.trial.runner_records import Fields, PhaseResult
from multistep.api.trial.status import Usage
from multistep.engine.journal.journal import AgentInfo
from multistep.engine.journal.operations import HOST_OUTCOME
from multistep.engine.score.usage_totals import counted
from multistep.engine.script.operation_scope import ending
from multistep.errors import RunnerError

HOST_ERROR: Final = "AgentHostError"
_TEXT_CHARACTERS = 16_384


@dataclass(frozen=True)
class HostError:
    """The error of a failed setup or step. type: class name of Harbor's exception, or HOST_ERROR; exit_code: exit status of the
    agent's last command, None if it is unknown."""

    type: str
    message: str
    exit_code: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a setup or a step. metadata: data that the agent returned, for result.json."""

    error: HostError | None = None
    agent: AgentInfo | None = None
    usage: Usage | None = None
    metadata: Mapping[str, Any] | None = None


def read(result: PhaseResult) -> Outcome:
    """Return the outcome of a finished agent host command; an error of type HOST_ERROR if the host wrote no valid outcome."""
    if result.error is not None or result.timed_out:
        return Outcome(HostError(HOST_ERROR, f"the agent host {ending(result)}"))
    capture = result.captures.get(HOST_OUTCOME)
    if capture is None:
        return Outcome(HostError(HOST_ERROR, f"the agent host returned no outcome; it {ending(result)}"))
    try:
        return _parsed(json.loads(capture.data))
    except (ValueError, RecursionError, RunnerError) as error:
        return Outcome(HostError(HOST_ERROR, f"the agent host returned an invalid outcome: {str(error)[:500]}"))


def _parsed(value: object) -> Outcome:
    fields = Fields(value, "outcome")
    error = fields.optional_mapping("error")
    agent, usage = fields.optional_mapping("agent"), fields.optional_mapping("usage")
    return Outcome(
        error=None if error is None else _error(Fields(error, "outcome.error")),
        agent=None if agent is None else _agent(Fields(agent, "outcome.agent")),
        usage=None if usage is None else _usage(Fields(usage, "outcome.usage")),
        metadata=fields.optional_mapping("metadata"),
    )


def _error(fields: Fields) -> HostError:
    exit_code = fields.optional_integer("exitCode")
    return HostError(fields.text("type", 200) or HOST_ERROR, fields.text("message", _TEXT_CHARACTERS), exit_code)


def _agent(fields: Fields) -> AgentInfo:
    model = Fields(fields.optional_mapping("model") or {}, "outcome.agent.model")
    return AgentInfo(
        fields.text("name", 200),
        fields.optional_text("version", 200) or "unknown",
        model.optional_text("name", 512),
        model.optional_text("provider", 512),
    )


def _usage(fields: Fields) -> Usage | None:
    usage = counted(fields)
    return None if usage == Usage() else usage
