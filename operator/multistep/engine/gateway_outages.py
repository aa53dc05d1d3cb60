"""Decides whether a downtime of the model gateway, not the agent, is to blame for the end of an agent's phase that the script does
not see: the container ended, or the trial reached its deadline."""

from __future__ import annotations

from typing import TypeAlias

from multistep.api.failures import MODEL_GATEWAY_DOWN
from multistep.api.phases import AGENT
from multistep.api.trial_status import TrialStatus
from multistep.engine.deadlines import DEADLINE_EXCEEDED
from multistep.engine.decisions import Fail, FailAttempt, PhaseDied
from multistep.engine.model_access import ModelReport

Interruption: TypeAlias = Fail | FailAttempt | PhaseDied


def unless_gateway_was_down(decision: Interruption, status: TrialStatus, found: ModelReport | None, now: float) -> Interruption:
    """Return the decision. If the gateway was down while the agent ran, lose the attempt instead of blaming the agent for the end
    of its container, and let a missed deadline be no result of the agent. found: the gateway's report on the current step."""
    in_agent_phase = bool(status.steps) and (status.steps[-1].phase or "").lower() == AGENT
    if found is None or not in_agent_phase or (down := found.downtime(now)) is None:
        return decision
    message = f"the model gateway {down.why} while the agent ran; {decision.message}"
    if isinstance(decision, PhaseDied):
        return FailAttempt(MODEL_GATEWAY_DOWN, message)
    if isinstance(decision, Fail) and decision.reason == DEADLINE_EXCEEDED:
        return Fail(MODEL_GATEWAY_DOWN, message)
    return decision
