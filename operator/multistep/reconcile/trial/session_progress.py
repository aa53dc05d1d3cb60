"""The results of ``Driver.drive``: how far a trial's script got in its exec sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from multistep.engine.journal.journal import Journal
from multistep.engine.plan.plan import StepPlan


@dataclass(frozen=True)
class Progressed:
    """A result: the script finished (``journal.finished``), or waits for a phase that takes long."""

    journal: Journal


@dataclass(frozen=True)
class AgentStillRuns:
    """A result: there was nothing to do, because the agent host is still running the current step's agent."""


@dataclass(frozen=True)
class PausedBetweenSteps:
    """A result: the suspended trial finished a step."""

    journal: Journal


@dataclass(frozen=True)
class RootRequired:
    """A result: the pod must be created again as root. image_user: the image's user, which then runs the phases."""

    image_user: str


@dataclass(frozen=True)
class VerifierRequired:
    """A result: a step's verifier pod must be created. image_user: the image's user, if the pod must be recreated as root."""

    journal: Journal
    step: StepPlan
    image_user: str | None = None


@dataclass(frozen=True)
class TransferQueued:
    """A result: a checkpoint must be stored or restored, and the limit of concurrent transfers is reached."""

    journal: Journal


DriveResult: TypeAlias = Progressed | AgentStillRuns | PausedBetweenSteps | RootRequired | VerifierRequired | TransferQueued
