"""Parses the model gateway's report on a step: its usage, and whether provider, configuration or budget ended its last request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from multistep.api.records import Fields, Record
from multistep.api.trial_status import Usage
from multistep.engine.usage import counted

FailureKind: TypeAlias = Literal["Provider", "Configuration", "Budget"]


@dataclass(frozen=True)
class ModelFailure:
    """Why the step's last model request failed, as the gateway observed it: the agent's output is not trusted as evidence."""

    kind: FailureKind
    message: str


@dataclass(frozen=True)
class ModelReport:
    """The gateway's report on a step. usage: None if the gateway received no request of the step."""

    usage: Usage | None = None
    failure: ModelFailure | None = None


def report(record: Record) -> ModelReport:
    """Return the report in the record of a CloseModelAccess. Raises RunnerError (code Protocol)."""
    fields = Fields(record.result, f"result of {record.id}")
    usage, failure = fields.optional_mapping("usage"), fields.optional_mapping("failure")
    return ModelReport(
        usage=None if usage is None else _usage(Fields(usage, "usage")),
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
