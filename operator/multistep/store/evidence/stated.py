"""What the evidence of a trial's results says, as far as other trials need it, which start from the trial or verify it again.

Whoever may write to the results may have written it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import ValidationError

from multistep.api.model import Model
from multistep.api.trial_status import Tampering

MOST_BYTES = 16 * 2**20


class Sha256(Model):
    """A digest."""

    sha256: str


class Digested(Model):
    """Something with a digest. name: "" for a checkpoint."""

    digest: Sha256
    name: str = ""


class StatedTask(Model):
    """The task. digest: by algorithm."""

    digest: dict[str, str]


class StatedAgent(Model):
    """The agent."""

    name: str
    version: str = "unknown"
    model: str | None = None


class StatedStep(Model):
    """A step. exception: its type; exception_phase: the phase that raised it."""

    name: str
    checkpoint: Digested | None = None
    exception: str | None = None
    exception_phase: str | None = None
    tests: Sequence[Digested] = ()


class StatedSource(Model):
    """The trial that a regrade verified again."""

    trial: str


class Stated(Model):
    """The predicate of a statement (store.evidence.statement)."""

    outcome: Literal["Complete", "Failed"]
    task: StatedTask
    agent: StatedAgent
    steps: Sequence[StatedStep] = ()
    tampering: Sequence[Tampering] = ()
    regraded: StatedSource | None = None


class _Statement(Model):
    predicate: Stated


def stated(data: bytes) -> Stated | None:
    """Return what a statement says; None if it is not one of this operator's."""
    try:
        return _Statement.model_validate_json(data).predicate
    except ValidationError:
        return None
