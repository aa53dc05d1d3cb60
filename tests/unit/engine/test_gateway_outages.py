"""The end of an agent's phase that the script does not see, while the model gateway was down."""

from __future__ import annotations

import pytest

from multistep.api.trial.status import StepStatus, TrialStatus
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.lifecycle.decisions import Fail, FailAttempt, PhaseDied
from multistep.engine.lifecycle.failure_causes import unless_model_failed
from multistep.engine.score.usage_totals import Downtime, ModelFailure, ModelReport

DIED, MISSED, STOPPED = PhaseDied("OutOfMemoryError", "why"), Fail("DeadlineExceeded", "why"), Fail("Stopped", "why")
EVICTED = FailAttempt("PodDeleted", "why")
DOWN, MESSAGE = ModelReport(downtimes=(Downtime(10.0, 20.0),)), "the model gateway was down while the agent ran; why"


def trial(phase: str | None) -> MultiStepTrial:
    steps = [StepStatus(name="a", phase=phase)] if phase else []
    spec = {"task": {"inline": {"config": {}}}, "activeDeadlineSeconds": 1000}
    made = parse_trial({"metadata": {"name": "t", "uid": "u"}, "spec": spec})
    return made.model_copy(update={"status": TrialStatus(steps=steps)})


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
    assert unless_model_failed(decision, trial("Agent"), DOWN, 15.0) == expected
    assert unless_model_failed(decision, trial("Agent"), DOWN, 9.0) == decision
    assert unless_model_failed(decision, trial("Agent"), ModelReport(), 15.0) == decision
    assert unless_model_failed(decision, trial("Agent"), None, 15.0) == decision
    assert unless_model_failed(decision, trial("Verifier"), DOWN, 15.0) == decision
    assert unless_model_failed(decision, trial(None), DOWN, 15.0) == decision


FAILED = ModelFailure("Provider", "500")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ModelReport(failure=FAILED), Fail("ProviderFailed", "500; why")),
        (ModelReport(failure=ModelFailure("Configuration", "401")), Fail("ModelAccessDenied", "401; why")),
        (ModelReport(failure=ModelFailure("Budget", "spent")), MISSED),
        (ModelReport(fault=FAILED), Fail("ProviderFailed", "500; why")),
        (ModelReport(silent_seconds=500), Fail("ProviderFailed", "the provider sent nothing for 500 s until the agent left; why")),
        (ModelReport(silent_seconds=499), MISSED),
        (ModelReport(), MISSED),
    ],
)
def test_no_agent_is_blamed_for_a_deadline_that_the_provider_let_pass(found: ModelReport, expected: Fail) -> None:
    assert unless_model_failed(MISSED, trial("Agent"), found, 15.0) == expected
    assert unless_model_failed(MISSED, trial("Verifier"), found, 15.0) == MISSED
    for other in (DIED, STOPPED, EVICTED):
        assert unless_model_failed(other, trial("Agent"), found, 15.0) == other
