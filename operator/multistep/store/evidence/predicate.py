"""The parts of a trial's evidence that other trials read: trials that start from this trial's checkpoints, and regrades.

The evidence is untrusted: everybody who can write to the results can have written it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from multistep.api.common.base_model import Model
from multistep.api.trial.status import Tampering, TrialFailure

MAX_BYTES = 16 * 2**20


class Sha256(Model):
    """A digest."""

    sha256: str


class Digested(Model):
    """The digest of a checkpoint or of a directory of tests. name: the tests' directory in the task; "" for a checkpoint."""

    digest: Sha256
    name: str = ""


class PredicateTask(Model):
    """The task. digest: hexadecimal digests, by algorithm."""

    digest: dict[str, str]


class PredicateAgent(Model):
    """The agent."""

    name: str
    version: str = "unknown"
    model: str | None = None


class PredicateTrial(Model):
    """The trial. sweep_uid: UID of the sweep that created it, "" if no sweep did; None in statements of earlier releases."""

    sweep_uid: Annotated[str | None, Field(alias="sweepUID")] = None


class PredicateStep(Model):
    """A step. trial: the other trial that ran it, None if the trial itself ran it; exception: its type; exception_phase: the phase
    that raised it."""

    name: str
    trial: str | None = None
    checkpoint: Digested | None = None
    exception: str | None = None
    exception_phase: str | None = None
    tests: Sequence[Digested] = ()


class PredicateSource(Model):
    """The trial that a regrade verified again."""

    trial: str


class Predicate(Model):
    """The predicate of a statement (store.evidence.statement). Statements of earlier releases have no failure, score and passed."""

    trial: PredicateTrial = PredicateTrial()
    outcome: Literal["Complete", "Failed"]
    failure: TrialFailure | None = None
    score: Annotated[float | None, Field(allow_inf_nan=False)] = None
    passed: bool | None = None
    task: PredicateTask
    agent: PredicateAgent
    steps: Sequence[PredicateStep] = ()
    tampering: Sequence[Tampering] = ()
    regraded: PredicateSource | None = None


class _Statement(Model):
    predicate: Predicate


def parse_predicate(data: bytes) -> Predicate | None:
    """Return a statement's predicate; None if the statement does not have the format of this operator's statements."""
    try:
        return _Statement.model_validate_json(data).predicate
    except ValidationError:
        return None
