"""Values without pydantic, so that the command line starts fast: phases of a step, status.phase, names of agents, reasons."""

from __future__ import annotations

from typing import Final, Literal, get_args

Phase = Literal["Pending", "Running", "Suspended", "Halting", "Complete", "Failed"]
"""Phase of a trial or a sweep. Halting means that a sweep creates no more trials and waits for active ones."""
SWEEP_PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
TRIAL_PHASES: Final = tuple(each for each in SWEEP_PHASES if each != "Halting")
FINISHED_PHASES: Final = ("Complete", "Failed")

Outcome = Literal["Passed", "NotPassed", "GateNotMet", "AgentError", "VerifierError", "TaskError", "Unverified", "Excluded"]
"""How a trial ended.

- Passed: every declared step ran and passed.
- NotPassed: the trial ran to its end, and a step did not pass.
- GateNotMet: a gate ended the trial.
- AgentError, VerifierError, TaskError: a failure of this class, which the trial's agent may have caused, ended the trial.
- Unverified: verification is disabled.
- Excluded: a failure that no agent can have caused ended the trial. status.failure has its class.
"""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)


SETUP, HEALTHCHECK, AGENT, VERIFIER, ARTIFACTS = "setup", "healthcheck", "agent", "verifier", "artifacts"
PHASES: Final = (SETUP, HEALTHCHECK, AGENT, VERIFIER, ARTIFACTS)  # in the order in which they run
PRINTING: Final = (SETUP, HEALTHCHECK, AGENT, VERIFIER)  # phases whose output `multistep logs` shows
AGENT_SETUP: Final = "agent setup"  # the phase in which an agent of Harbor is set up, once, before the first step


PLAIN: Final = ("oracle", "nop")
"""Names of the operator's own agents that run no program of the user's."""
BUILT_IN: Final = (*PLAIN, "command")
"""Names of the operator's own agents."""


def agent_label(name: str | None, import_path: str | None) -> str:
    """Return the agent's name for labels, metrics and reports, which is ``name``, else the class name in the import path."""
    return name or (import_path or "").rpartition(":")[2]


NOT_FOUND: Final = "TaskNotFound"
DENIED: Final = "TaskAccessDenied"
TOO_LARGE: Final = "TaskTooLarge"
DIGEST: Final = "TaskDigestMismatch"
NOT_ALLOWED: Final = "TaskSourceNotAllowed"
FETCHING: Final = "TaskFetching"
