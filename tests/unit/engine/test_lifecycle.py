"""Test the decision for each situation in the tables of situations."""

from __future__ import annotations

from typing import get_args

import pytest

from multistep.api.trial.status import AttemptStatus
from multistep.engine.lifecycle import next_decision
from multistep.engine.lifecycle.decisions import (
    Decision,
    Rule,
    Situation,
)
from tests.unit.engine.lifecycle_cases import NOW, after, near
from tests.unit.engine.lifecycle_table import ROWS
from tests.unit.engine.verifier_table import COMPARED, VERIFIERS


@pytest.mark.parametrize("name", ROWS)
def test_what_is_decided(name: str) -> None:
    situation, facts, wanted = ROWS[name]
    decision = after(situation, facts)
    assert decision == near(decision, wanted)


def test_every_decision_and_every_rule_is_in_the_table() -> None:
    assert {type(wanted) for _, _, wanted in (*ROWS.values(), *VERIFIERS.values(), *COMPARED.values())} == set(get_args(Decision))
    deciding = set()
    for situation, facts, _ in ROWS.values():
        here = Situation(situation, facts, "t-1", NOW, 60.0)
        deciding.add(next((rule for rule in next_decision.RULES if rule(here) is not None), None))
    # The last two rules are tested in test_lifecycle_verifiers.py and test_lifecycle_violations.py.
    assert deciding == {None, *next_decision.RULES} - set(next_decision.RULES[-2:])


@pytest.mark.parametrize("rule", next_decision.RULES[:-2], ids=lambda rule: rule.__name__)
def test_a_rule_can_be_asked_about_any_situation(rule: Rule) -> None:
    answers = [rule(Situation(situation, facts, "t-1", NOW, 60.0)) for situation, facts, _ in ROWS.values()]
    assert None in answers and any(answers)


def test_suspensions_and_spent_budgets_of_the_sweep_use_no_retry() -> None:
    reasons = ("Evicted", "Suspended", "SweepBudgetSpent", "ProviderFailed")
    assert next_decision.count_failed_attempts([AttemptStatus(number=1, reason=reason) for reason in reasons]) == 2
