"""Parses the model gateway's report on a step: the step's model usage, and why its last model request failed, if it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from multistep.api.records import Fields
from multistep.api.trial_status import Usage
from multistep.engine.usage import counted

SETUP_ACCESS: Final = "-"
"""Name, in place of a step's, under which the model gateway counts the requests of an agent's setup."""

_READY_SECONDS: Final = 15.0  # after its start, the gateway has endpoints only once its readiness probe succeeded
MAX_DOWNTIMES: Final = 8
"""Maximum number of downtimes in a report."""

FailureKind: TypeAlias = Literal["Provider", "Configuration", "Budget", "SweepBudget"]


@dataclass(frozen=True)
class ModelFailure:
    """Why the step's last model request failed, as the gateway observed it. The agent's own output is not trusted as evidence."""

    kind: FailureKind
    message: str


@dataclass(frozen=True)
class ModelReport:
    """The gateway's report on a step. usage: None if the gateway received no request of the step; stalled_seconds: time in which
    at least one request of the step waited because the provider refused requests; downtimes: start and end of the times after the
    step's last request in which no gateway ran, in seconds since the epoch."""

    usage: Usage | None = None
    failure: ModelFailure | None = None
    stalled_seconds: float = 0.0
    downtimes: tuple[tuple[float, float], ...] = ()

    def was_down(self, started: float, ended: float) -> bool:
        """Return whether the gateway was down between these times, after the step's last request."""
        return any(began <= ended and started <= up + _READY_SECONDS for began, up in self.downtimes)


def report(result: Mapping[str, Any] | None) -> ModelReport:
    """Parse the gateway's report: its answer, or the result in the record of a CloseModelAccess.

    Raises RunnerError (code Protocol).
    """
    fields = Fields(result, "the model gateway's report")
    usage, failure = fields.optional_mapping("usage"), fields.optional_mapping("failure")
    downtimes = fields.sequence("downtimes", MAX_DOWNTIMES) if result and "downtimes" in result else []
    return ModelReport(
        usage=None if usage is None else _usage(Fields(usage, "usage")),
        stalled_seconds=Fields(usage or {}, "usage").optional_number("stalledSeconds") or 0.0,
        failure=None if failure is None else _failure(Fields(failure, "failure")),
        downtimes=tuple(_downtime(Fields(each, "downtimes")) for each in downtimes),
    )


def _downtime(fields: Fields) -> tuple[float, float]:
    return fields.number("began"), fields.number("ended")


def _usage(fields: Fields) -> Usage:
    only_gateway = {
        "requests": fields.optional_integer("requests"),
        "incomplete": fields.optional_integer("incomplete"),
        "held_seconds": fields.optional_number("heldSeconds"),
        "source": "Gateway",
        "prices": fields.optional_text("priceTable", 200),
    }
    return counted(fields).model_copy(update=only_gateway)


def _failure(fields: Fields) -> ModelFailure:
    kinds: dict[str, FailureKind] = {each: each for each in get_args(FailureKind)}
    return ModelFailure(kinds[fields.one_of("kind", set(kinds))], fields.text("message", 2000))
