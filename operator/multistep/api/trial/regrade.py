"""Models of regrades, which are trials that verify the steps of another trial, the source, again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from multistep.api.common.base_model import Model, ObjectName


class RegradeSpec(Model):
    """The trial whose steps are verified again, from its checkpoints. No agent runs."""

    trial: ObjectName
    """Name of the source, which is a trial in this namespace, or a deleted trial whose results are retained."""
    sweep_uid: Annotated[str | None, Field(alias="sweepUID", min_length=1, max_length=64)] = None
    """UID of the sweep that created the source. A sweep sets it in its trials, so that no trial of an earlier sweep of the same
    name is regraded."""


class SweepRegrade(Model):
    """The sweep whose trials are regraded."""

    sweep: ObjectName
    """Name of the other sweep. Each trial of this sweep regrades the other sweep's trial of the same task, agent and attempt, or
    the retry that counts for it."""


class SourceException(Model):
    """An exception that a step of the source had before its verification. The step has the same exception in the regrade."""

    type: str
    """Harbor's exception class."""
    phase: str
    """Phase that failed: setup, healthcheck or agent."""
    message: str = ""
    """Message of the exception."""


class SourceStep(Model):
    """A step that the source started."""

    name: str
    """Name of the step."""
    checkpoint: str | None = None
    """SHA-256 of the source's checkpoint after the step."""
    exception: SourceException | None = None
    """The exception that the step had before its verification."""
    tests: dict[str, str] | Literal["omitted"] = {}
    """SHA-256 of the tests that the source's verifier got, by directory. "omitted" in a status that is too large."""
    trial: str | None = None
    """The trial that ran the step, if the source started from that trial's checkpoint. The step does not count in the score."""


class SourceAgent(Model):
    """The agent of the source."""

    name: str
    """Name of the agent."""
    version: str = "unknown"
    """Version of the agent."""
    model: str | None = None
    """The agent's model as PROVIDER/NAME."""


class RegradeStatus(Model):
    """The source of a regrade, as it was when the regrade started."""

    trial: str
    """Name of the source."""
    uid: str
    """UID of the source."""
    task_digest: str | None = None
    """Digest of the source's task. Unset if it is unknown."""
    agent: SourceAgent
    """The source's agent, whose work is verified."""
    from_reference: bool | None = None
    """True if the source started from its task's reference state (spec.fromStep)."""
    steps: list[SourceStep] = []
    """The steps that the source started, in order."""
