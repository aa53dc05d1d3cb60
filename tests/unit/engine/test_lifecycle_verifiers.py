"""Test decisions about the pod of a separate verifier."""

from __future__ import annotations

import pytest

from multistep.api.trial.status import StepStatus
from multistep.engine.lifecycle.decisions import FailAttempt, PhaseDied
from tests.unit.engine.lifecycle_cases import GONE, after, ended, judge, judging, near, pod, trial
from tests.unit.engine.verifier_table import COMPARED, NO_POD, VERIFIERS


@pytest.mark.parametrize("name", VERIFIERS)
def test_what_is_decided_of_a_verifiers_pod(name: str) -> None:
    """The agent's pod runs in all situations except "complete", in which it does not exist."""
    situation, facts, wanted = VERIFIERS[name]
    agents = NO_POD if name == "complete" else pod()
    decision = after(situation, agents, verifier=facts)
    assert decision == near(decision, wanted)


@pytest.mark.parametrize("name", COMPARED)
def test_no_failure_of_a_verifier_whose_verdict_is_only_compared_ends_anything(name: str) -> None:
    situation, facts, wanted = COMPARED[name]
    agents = NO_POD if name == "complete" else pod()
    decision = after(situation, agents, verifier=facts, compares_verdicts=True)
    assert decision == near(decision, wanted)


def test_a_failure_of_the_agents_pod_ends_the_attempt_also_while_verdicts_are_compared() -> None:
    assert after(judging(), None, verifier=None, compares_verdicts=True) == GONE


def test_the_agents_pod_matters_more_than_the_verifiers() -> None:
    assert after(judging(), None, verifier=None) == GONE


REGRADE = {"agent": {"name": "nop"}, "regrade": {"trial": "source"}}
OUT_OF_MEMORY = (
    "the trial's container ended with status 137 (OOMKilled): it used more than its memory limit (phase verifier of step a)"
)


@pytest.mark.parametrize(("exit_code", "reason"), [(137, "OOMKilled"), (1, "Error")])
def test_the_end_of_a_regrades_own_pod_is_an_infrastructure_failure(exit_code: int, reason: str) -> None:
    regraded = trial(REGRADE).model_copy(update={"status": judging(steps=[StepStatus(name="a", phase="Verifier")]).status})
    decision = after(regraded, ended(exit_code, reason), verifier=judge())
    assert isinstance(decision, FailAttempt) and decision.reason == "ContainerEnded"


def test_the_end_of_a_regrades_verifier_is_the_steps_exception() -> None:
    regraded = trial(REGRADE).model_copy(update={"status": judging(steps=[StepStatus(name="a", phase="Verifier")]).status})
    verifier = ended(137, "OOMKilled", name="t-1-v0", uid="v")
    decision = after(regraded, pod(), verifier=verifier)
    assert decision == PhaseDied("OutOfMemoryError", f"the verifier of step a: {OUT_OF_MEMORY}")
