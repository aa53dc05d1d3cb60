"""A trial's output in pieces: one per phase, step and attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from multistep.api.trial_status import StepStatus, TrialStatus
from multistep.engine.journal import AGENT, HEALTHCHECK, SETUP, VERIFIER
from multistep.errors import UsageError

PHASES = (SETUP, HEALTHCHECK, AGENT, VERIFIER)
_FILES = {AGENT: ("agent/oracle.txt", "agent/command.txt"), VERIFIER: ("verifier/test-stdout.txt",)}


@dataclass(frozen=True)
class Piece:
    """The output of one phase. number: the step's number, from 1; 0 and step "" for the environment's phase before all steps."""

    attempt: int
    number: int
    step: str
    phase: str

    @property
    def title(self) -> str:
        where = f"step {self.number} {self.step}".rstrip() if self.number else "environment"
        return f"{where}, {self.phase}{f', attempt {self.attempt}' if self.attempt > 1 else ''}"

    def id(self, *, apart: bool) -> str:
        """Return the phase's id in the runner. apart: whether the phase runs in the pod of a separate verifier."""
        return f"{self.attempt}/{self.step}/{'verifier/' if apart else ''}{self.phase}"

    def files(self, current_attempt: int) -> Iterator[str]:
        """Yield the paths in the trial's results at which the output may be: in a multi-step task in the step's directory, in a
        single-step task at the top."""
        if not self.number:
            return  # the results do not contain the output of the environment's phase
        top = "" if self.attempt == current_attempt else f"attempts/{self.attempt}/"
        for file in _FILES.get(self.phase, (f"{self.phase}.txt",)):
            yield f"{top}steps/{self.step}/{file}"
            yield f"{top}{file}"


@dataclass(frozen=True)
class Wanted:
    """The selected output. attempt: None for the latest; step: name or number, None for all; phase: None for all."""

    attempt: int | None = None
    step: str | None = None
    phase: str | None = None
    follow: bool = False

    @property
    def one(self) -> bool:
        """Whether the selection is a single piece, which needs no title."""
        return self.step is not None and self.phase is not None and not (self.follow and self.attempt is None)


def pieces(status: TrialStatus, wanted: Wanted, since: int | None = None) -> list[Piece]:
    """Return the pieces that may have output so far, in order. since: the first attempt to include; None: the latest.

    Raises UsageError for an attempt that does not exist.
    """
    attempts = status.steps_by_attempt()
    if wanted.attempt is not None and attempts and wanted.attempt not in attempts:
        raise UsageError(f"attempt {wanted.attempt} does not exist: the trial has {', '.join(map(str, sorted(attempts)))}")
    first = wanted.attempt or since or max(attempts, default=1)
    last = wanted.attempt or max(attempts, default=1)
    chosen = [(number, steps) for number, steps in sorted(attempts.items()) if first <= number <= last]
    return [piece for number, steps in chosen for piece in _of_attempt(number, steps) if _fits(piece, wanted)]


def _of_attempt(attempt: int, steps: list[StepStatus]) -> Iterator[Piece]:
    yield Piece(attempt, 0, "", HEALTHCHECK)
    for number, step in enumerate(steps, 1):
        for phase in PHASES:
            yield Piece(attempt, number, step.name, phase)


def _fits(piece: Piece, wanted: Wanted) -> bool:
    if wanted.phase is not None and piece.phase != wanted.phase:
        return False
    return wanted.step is None or wanted.step == piece.step or (wanted.step == str(piece.number) and piece.number > 0)
