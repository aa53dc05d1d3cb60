"""Whose doing a failure is, by the tables of api.failures."""

from __future__ import annotations

from ..api.failures import EXCEPTIONS, FAILED, LOST
from ..api.trial_status import FailureClass
from .journal import AGENT, ARTIFACTS, HEALTHCHECK, SETUP, VERIFIER, Journal

OTHER = "Other"
"""What a metric's label says of a reason that is in no table."""

_BY_PHASE: dict[str, FailureClass] = {
    SETUP: "Task",
    HEALTHCHECK: "Task",
    AGENT: "Agent",
    VERIFIER: "Verifier",
    ARTIFACTS: "Agent",  # nothing runs then but what the agent left
}
_OF_TRIALS = {row.reason: row for row in (*LOST, *FAILED)}
_OF_STEPS = {row.reason: row for row in EXCEPTIONS}


def of_failed(reason: str, journal: Journal | None) -> FailureClass:
    """Whose doing it is that a trial is Failed; a reason in no table is a kubelet's. journal: of one whose environment failed."""
    if journal is not None and any(AGENT in run.timings for run in journal.steps):
        return "Agent"  # who alone could change the environment since it was last seen to work
    row = _OF_TRIALS.get(reason)
    return (row.blame if row else None) or "Infrastructure"


def of_exception(type_: str, phase: str) -> FailureClass:
    """Whose doing a step's exception is, or that of a trial which is Complete."""
    row = _OF_STEPS.get(type_)
    return (row.blame if row else None) or _BY_PHASE.get(phase, "Task")


def label(reason: str | None) -> str:
    """A reason as a metric's label, which are few."""
    return reason if reason in _OF_TRIALS or reason in _OF_STEPS else OTHER
