"""The end of an agent's phase that the script does not see, while the model gateway was down."""

from __future__ import annotations

import pytest

from multistep.api.trial_status import StepStatus, TrialStatus
from multistep.engine.decisions import Fail, FailAttempt, PhaseDied
from multistep.engine.gateway_outages import unless_gateway_was_down
from multistep.engine.model_access import Downtime, ModelReport

DIED, MISSED, STOPPED = PhaseDied("OutOfMemoryError", "why"), Fail("DeadlineExceeded", "why"), Fail("Stopped", "why")
EVICTED = FailAttempt("PodDeleted", "why")
DOWN, MESSAGE = ModelReport(downtimes=(Downtime(10.0, 20.0),)), "the model gateway was down while the agent ran; why"


def status(phase: str | None) -> TrialStatus:
    return TrialStatus(steps=[StepStatus(name="a", phase=phase)])


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (DIED, FailAttempt("ModelGatewayDown", MESSAGE)),
        (MISSED, Fail("ModelGatewayDown", MESSAGE)),
        (STOPPED, STOPPED),
        (EVICTED, EVICTED),
    ],
)
def test_no_agent_is_blamed_for_an_end_while_the_gateway_was_down(
    decision: PhaseDied | Fail | FailAttempt, expected: PhaseDied | Fail | FailAttempt
) -> None:
    assert unless_gateway_was_down(decision, status("Agent"), DOWN, 15.0) == expected
    assert unless_gateway_was_down(decision, status("Agent"), DOWN, 9.0) == decision
    assert unless_gateway_was_down(decision, status("Agent"), ModelReport(), 15.0) == decision
    assert unless_gateway_was_down(decision, status("Agent"), None, 15.0) == decision
    assert unless_gateway_was_down(decision, status("Verifier"), DOWN, 15.0) == decision
    assert unless_gateway_was_down(decision, TrialStatus(), DOWN, 15.0) == decision
