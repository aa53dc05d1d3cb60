"""Divides a trial's log, the output of its phases, into pieces: one per phase, step and attempt. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from multistep.api.trial.phases import AGENT, HEALTHCHECK, PRINTING, VERIFIER
from multistep.api.trial.status import StepStatus, TrialStatus
from multistep.api.trial.step_runs import ANOTHER_TRIAL
from multistep.engine.journal.operations import Place, operation_id
from multistep.errors import UsageError

BUILD = "build"  # the phase of a piece that is an image's build log; the piece's ``step`` is the image's name
_FILES = {AGENT: ("agent/oracle.txt", "agent/command.txt", "agent/output.txt"), VERIFIER: ("verifier/test-stdout.txt",)}


@dataclass(frozen=True)
class Piece:
    """The output of one phase. attempt: the attempt that ran the phase; number: number of the step, from 1. The environment's
    healthcheck, which runs before step 1, has the number 0 and the step ""."""

    attempt: int
    number: int
    step: str
    phase: str

    @property
    def title(self) -> str:
        if self.phase == BUILD:
            return f"build of {self.step}"
        where = f"step {self.number} {self.step}".rstrip() if self.number else "environment"
        return f"{where}, {self.phase}{f', attempt {self.attempt}' if self.attempt > 1 else ''}"

    def id(self, place: Place) -> str:
        """Return the id of the phase's operation in the runner at ``place``."""
        return operation_id(self.attempt, self.step, place, self.phase)

    def files(self, status: TrialStatus) -> Iterator[str]:
        """Yield the possible paths of the output in the trial's results: in the step's directory (multi-step task) and in the top
        directory (single-step task)."""
        if not self.number:
            return  # the results do not contain the output of the environment's healthcheck
        last = [runner for runner, _ in status.listed_steps().get(status.attempt or 1, [])]
        top = "" if self.attempt in last[self.number - 1 : self.number] else f"attempts/{self.attempt}/"
        for file in _FILES.get(self.phase, (f"{self.phase}.txt",)):
            yield f"{top}steps/{self.step}/{file}"
            yield f"{top}{file}"


@dataclass(frozen=True)
class Wanted:
    """The user's selection of pieces. attempt: None for the latest attempt; step: name or number, None for all steps; phase: None
    for all phases."""

    attempt: int | None = None
    step: str | None = None
    phase: str | None = None
    follow: bool = False

    @property
    def one(self) -> bool:
        """Report whether the selection is a single piece. The output then needs no titles."""
        return self.step is not None and self.phase is not None and not (self.follow and self.attempt is None)


def pieces(status: TrialStatus, wanted: Wanted, since: int | None = None) -> list[Piece]:
    """Return the selected pieces of a trial's log that may have output so far, in the order in which the phases ran, without
    duplicates.

    The pieces of an attempt include those of the steps that it did not repeat because an earlier attempt completed them. since: the
    first attempt to include if the user selected no attempt; None: only the latest attempt. Raises UsageError if the selected
    attempt does not exist.
    """
    attempts = status.listed_steps()
    if wanted.attempt is not None and attempts and wanted.attempt not in attempts:
        raise UsageError(f"attempt {wanted.attempt} does not exist: the trial has {', '.join(map(str, sorted(attempts)))}")
    first = wanted.attempt or since or max(attempts, default=1)
    last = wanted.attempt or max(attempts, default=1)
    chosen = [(number, steps) for number, steps in sorted(attempts.items()) if first <= number <= last]
    found = (piece for number, steps in chosen for piece in _of_attempt(number, steps) if _fits(piece, wanted))
    return list(dict.fromkeys(found))


def _of_attempt(attempt: int, steps: list[tuple[int, StepStatus]]) -> Iterator[Piece]:
    yield Piece(attempt, 0, "", HEALTHCHECK)
    for number, (runner, step) in enumerate(steps, 1):
        for phase in PRINTING if runner != ANOTHER_TRIAL else ():
            yield Piece(runner, number, step.name, phase)


def _fits(piece: Piece, wanted: Wanted) -> bool:
    if wanted.phase is not None and piece.phase != wanted.phase:
        return False
    return wanted.step is None or wanted.step == piece.step or (wanted.step == str(piece.number) and piece.number > 0)
