"""Decides whether a verdict counts, by what the model gateway saw of the judge's requests, and what becomes of one that does not.

A verdict that lacks an answer of the judge is not taken, whatever it is: a program may note a lost answer as a 0. The verification
alone is repeated, a few times. A process that the agent left can send requests that fail, so the trial is excluded only if the
operator's own request to the model failed, too, or was rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from multistep.api.trial.failure_table import (
    BUDGET_USED_BY_LOST_ATTEMPTS,
    MODEL_ACCESS_DENIED,
    MODEL_GATEWAY_DOWN,
    PROVIDER_FAILED,
)
from multistep.api.trial.runner_records import Fields
from multistep.api.trial.status import Usage
from multistep.api.trial.values import VERIFIER
from multistep.backoff import Backoff
from multistep.engine.journal.journal import AttemptLost, StepException
from multistep.engine.plan.judge_plan import MAX_RUNS
from multistep.engine.score.usage_totals import parse_report

JUDGE_FAILED: Final = "JudgeFailedError"
JUDGE_BUDGET_EXCEEDED: Final = "JudgeBudgetExceededError"
Cause: TypeAlias = Literal["Configuration", "Request", "Downtime", "Outage", "Provider", "LostBudget", "Budget", "Left"]
"""Why the judge got no answer to a request.

Configuration: key or model is rejected, also in the operator's own request. Request: no request was answered, as their path, their
model or a missing maximum of tokens is wrong, or as each exceeds the whole budget. Downtime: the gateway was down. Outage: the
provider failed, and answered no request of the operator's, or answered the same content in another run. Provider: it failed, but
answered that one. LostBudget: the budget is used up, and lost runs and attempts used a part of it. Budget: it is used up. Left: the
program that asked left the request.
"""
_RUNS: Final[Mapping[Cause, int]] = {"Downtime": MAX_RUNS, "Outage": MAX_RUNS, "Provider": MAX_RUNS, "Left": 3}
"""How many times a verification may run, by the cause for which the last one does not count; 1 for the others."""
_PAUSES: Final = Backoff(first=10.0, last=120.0)  # without jitter, as the script is deterministic


@dataclass(frozen=True)
class Doubt:
    """Why a verdict does not count."""

    cause: Cause
    message: str

    @property
    def by_others(self) -> bool:
        """Return whether no process of the trial can have caused it, so that what the run used is lost."""
        return self.cause in ("Downtime", "Outage")

    def repeats(self, run: int) -> bool:
        """Return whether the verification runs again. run: number of the last run, from 1."""
        return run < _RUNS.get(self.cause, 1)

    def after(self, before: Doubt | None) -> Doubt:
        """Return the doubt that decides the end, if ``before`` is that of an earlier run: an outage, if there was one."""
        return before if before is not None and before.cause == "Outage" and self.cause in ("Provider", "Left") else self

    def end(self, *, suspect: bool) -> AttemptLost | StepException:
        """Return what becomes of a step whose verification does not run again. suspect: whether a process of the agent may have
        sent the requests."""
        match self.cause:
            case "Request" if not suspect:
                message = f"{self.message}; check what the tests request, and spec.models.judge.limits"
                return AttemptLost(MODEL_ACCESS_DENIED, message, final=True)
            case "Configuration":
                return AttemptLost(MODEL_ACCESS_DENIED, f"{self.message}; check spec.models.judge", final=True)
            case "Downtime":
                return AttemptLost(MODEL_GATEWAY_DOWN, self.message)
            case "Outage":
                return AttemptLost(PROVIDER_FAILED, self.message, final=True)
            case "LostBudget":
                message = f"{self.message}; runs that were lost have used a part of it"
                return AttemptLost(BUDGET_USED_BY_LOST_ATTEMPTS, message, final=True)
            case "Budget":
                return StepException(JUDGE_BUDGET_EXCEEDED, self.message, VERIFIER)
        return StepException(JUDGE_FAILED, self.message, VERIFIER)


@dataclass(frozen=True)
class JudgeReport:
    """What the gateway saw of a run's requests to the judge."""

    usage: Usage | None
    doubt: Doubt | None
    at: float
    """When it was read, in seconds since the epoch."""

    def next_run(self, run: int) -> float:
        """Return when the verification runs again, in seconds since the epoch. run: number of the last run, from 1."""
        return self.at + _PAUSES.seconds(run)


def parse_judge_report(result: Mapping[str, Any] | None, ended: float) -> JudgeReport:
    """Parse the gateway's report. ended: when the verifier's phase ended, in seconds since the epoch. Raises RunnerError (code
    Protocol)."""
    models, fields = parse_report(result), Fields(result, "the model gateway's report")
    doubt = None if (unanswered := fields.optional_mapping("unanswered")) is None else _doubt(Fields(unanswered, "unanswered"))
    if (down := models.downtime(ended)) is not None:
        doubt = Doubt("Downtime", f"the model gateway {down.why} while the step was verified")
    return JudgeReport(models.usage, doubt, fields.optional_number("at") or 0.0)


def _doubt(fields: Fields) -> Doubt:
    causes: dict[str, Cause] = {name: name for name in get_args(Cause)}
    return Doubt(causes[fields.one_of("cause", set(causes))], f"the judge got no answer: {fields.text('message', 2000)}")
