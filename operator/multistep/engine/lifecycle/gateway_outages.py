"""Decides whether the model gateway or the provider, not the agent, is to blame for the end of an agent's phase that the script
does not see: the container ended, or the trial reached its deadline."""

from __future__ import annotations

from typing import Final, TypeAlias

from multistep.api.trial.failure_table import MODEL_ACCESS_DENIED, MODEL_GATEWAY_DOWN, PROVIDER_FAILED
from multistep.api.trial.phases import AGENT
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.deadlines import DEADLINE_EXCEEDED
from multistep.engine.lifecycle.decisions import Fail, FailAttempt, PhaseDied
from multistep.engine.score.gateway_report import ModelReport

_REASONS: Final = {"Provider": PROVIDER_FAILED, "Configuration": MODEL_ACCESS_DENIED}
Interruption: TypeAlias = Fail | FailAttempt | PhaseDied


def unless_model_failed(decision: Interruption, trial: MultiStepTrial, found: ModelReport | None, now: float) -> Interruption:
    """Return the decision. If the gateway was down while the agent ran, lose the attempt instead of blaming the agent for the end
    of its container, and let a missed deadline be no result of the agent. So be it if the provider failed or rejected the agent's
    last request, or kept the agent waiting for half of the deadline. found: the gateway's report on the current step."""
    steps = trial.status.steps
    if found is None or not steps or (steps[-1].phase or "").lower() != AGENT:
        return decision
    missed = isinstance(decision, Fail) and decision.reason == DEADLINE_EXCEEDED
    if (down := found.downtime(now)) is not None:
        message = f"the model gateway {down.why} while the agent ran; {decision.message}"
        if isinstance(decision, PhaseDied):
            return FailAttempt(MODEL_GATEWAY_DOWN, message)
        return Fail(MODEL_GATEWAY_DOWN, message) if missed else decision
    if missed and found.failure is not None and found.failure.kind in _REASONS:
        return Fail(_REASONS[found.failure.kind], f"{found.failure.message}; {decision.message}")
    if missed and (why := found.provider_fault(failed=True, timeout=trial.spec.active_deadline_seconds, ended=now)):
        return Fail(PROVIDER_FAILED, f"{why}; {decision.message}")
    return decision
