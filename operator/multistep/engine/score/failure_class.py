"""Determines the failure class of a trial or an exception from the tables in api.trial.failure_table."""

from __future__ import annotations

from multistep.api.trial.failure_table import AGENT_SETUP_FAILED, ATTEMPTS, EXCEPTIONS, FAILED
from multistep.api.trial.status import FailureClass
from multistep.api.trial.values import AGENT, ARTIFACTS, HEALTHCHECK, SETUP, VERIFIER
from multistep.engine.journal.journal import Journal

OTHER = "Other"
"""Metric label for a reason that is in no table."""

_BY_PHASE: dict[str, FailureClass] = {
    SETUP: "Task",
    HEALTHCHECK: "Task",
    AGENT: "Agent",
    VERIFIER: "Verifier",
    ARTIFACTS: "Agent",  # only processes that the agent left behind run in this phase
}
_OF_TRIALS = {row.reason: row for row in (*ATTEMPTS, *FAILED)}
_OF_STEPS = {row.reason: row for row in EXCEPTIONS}


def class_of_failure(reason: str, journal: Journal | None, *, agent_acted: bool = True) -> FailureClass:
    """Return the failure class of a Failed trial. A reason in no table comes from a kubelet, so its class is Infrastructure.

    ``journal`` is the trial's progress if its environment failed, else None. ``agent_acted`` is whether an agent may have acted, or
    may have changed files that were restored. If not, the class Task replaces the class Agent.
    """
    if journal is not None and (journal.class_ran_at is not None or any(AGENT in run.timings for run in journal.steps)):
        return "Agent"  # the environment worked before the agent ran, and only the agent could break it
    if reason == AGENT_SETUP_FAILED and journal is not None:
        return "Agent"  # the setup of a custom agent class could read the task, and fail on purpose if the task is hard
    row = _OF_TRIALS.get(reason)
    failure_class = (row.failure_class if row else None) or "Infrastructure"
    return "Task" if failure_class == "Agent" and not agent_acted else failure_class


def class_of_exception(type_: str, phase: str) -> FailureClass:
    """Return the failure class of an exception of a step or of a Complete trial. ``phase`` is the phase that raised it."""
    row = _OF_STEPS.get(type_)
    return (row.failure_class if row else None) or _BY_PHASE.get(phase, "Task")


def reason_label(reason: str | None) -> str:
    """Return the reason as a metric label. All unknown reasons share one label, which limits the number of time series."""
    return reason if reason in _OF_TRIALS or reason in _OF_STEPS else OTHER
