"""Decisions about the pod of a separate verifier."""

from __future__ import annotations

import pytest

from tests.unit.engine.lifecycle_cases import GONE, after, judging, near, pod
from tests.unit.engine.verifier_table import COMPARED, NO_POD, VERIFIERS


@pytest.mark.parametrize("name", VERIFIERS)
def test_what_is_decided_of_a_verifiers_pod(name: str) -> None:
    """For each situation in VERIFIERS, the decision is the expected one. The agent's pod runs, except in situation "complete"."""
    situation, facts, wanted = VERIFIERS[name]
    agents = NO_POD if name == "complete" else pod()
    decision = after(situation, agents, verifier=facts)
    assert decision == near(decision, wanted)


@pytest.mark.parametrize("name", COMPARED)
def test_no_failure_of_a_verifier_whose_verdict_is_only_compared_ends_anything(name: str) -> None:
    situation, facts, wanted = COMPARED[name]
    agents = NO_POD if name == "complete" else pod()
    decision = after(situation, agents, verifier=facts, compared=True)
    assert decision == near(decision, wanted)


def test_a_failure_of_the_agents_pod_ends_the_attempt_also_while_verdicts_are_compared() -> None:
    assert after(judging(), None, verifier=None, compared=True) == GONE


def test_the_agents_pod_matters_more_than_the_verifiers() -> None:
    assert after(judging(), None, verifier=None) == GONE
