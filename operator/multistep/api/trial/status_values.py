"""The values of status.phase and status.outcome. Without pydantic, so that the command line can import them and stay fast."""

from __future__ import annotations

from typing import Final, Literal, get_args

Phase = Literal["Pending", "Running", "Suspended", "Halting", "Complete", "Failed"]
"""Phase of a trial or a sweep. Halting: a sweep that creates no more trials and waits for active ones."""
SWEEP_PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
TRIAL_PHASES: Final = tuple(each for each in SWEEP_PHASES if each != "Halting")
FINISHED_PHASES: Final = ("Complete", "Failed")

Outcome = Literal["Passed", "NotPassed", "GateNotMet", "AgentError", "VerifierError", "TaskError", "Unverified", "Excluded"]
"""How a trial ended. Passed: every declared step ran and passed; NotPassed: the trial ran to its end, and a step did not pass;
GateNotMet: a gate ended it; AgentError, VerifierError, TaskError: a failure of this class that its agent may have caused;
Unverified: verification is disabled; Excluded: a failure that no agent can have caused, of the class in status.failure."""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
