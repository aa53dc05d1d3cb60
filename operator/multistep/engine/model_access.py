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

FailureKind: TypeAlias = Literal["Provider", "Configuration", "Budget", "SweepBudget"]


@dataclass(frozen=True)
class ModelFailure:
    """Why the step's last model request failed, as the gateway observed it. The agent's own output is not trusted as evidence."""

    kind: FailureKind
    message: str


@dataclass(frozen=True)
class ModelReport:
    """The gateway's report on a step. usage: None if the gateway received no request of the step; stalled_seconds: time in which
    at least one request of the step waited because the provider refused requests."""

    usage: Usage | None = None
    failure: ModelFailure | None = None
    stalled_seconds: float = 0.0


def report(result: Mapping[str, Any] | None) -> ModelReport:
    """Parse the gateway's report: its answer, or the result in the record of a CloseModelAccess.

    Raises RunnerError (code Protocol).
    """
    fields = Fields(result, "the model gateway's report")
    usage, failure = fields.optional_mapping("usage"), fields.optional_mapping("failure")
    return ModelReport(
        usage=None if usage is None else _usage(Fields(usage, "usage")),
        stalled_seconds=Fields(usage or {}, "usage").optional_number("stalledSeconds") or 0.0,
        failure=None if failure is None else _failure(Fields(failure, "failure")),
    )


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
