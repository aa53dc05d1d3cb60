"""A sweep whose budget is spent is suspended until the budget is raised."""

from __future__ import annotations

from typing import Any

from multistep.api.sweep.sweep import SweepStatus
from multistep.engine.sweep.next_trials import TrialFacts
from tests.unit.engine.test_sweep_status import NOW, done, holding, next_of, started, sweep, why

BUDGET: dict[str, Any] = {"budget": {"costUSD": 1}}


def refused(number: int, at: float, **more: Any) -> TrialFacts:
    """Return an active trial. In its step that started ``at`` seconds after NOW, the sweep's budget refused a request."""
    return TrialFacts(number, "Active", phase="Running", cost_usd=0.4, refused_at=NOW + at, **more)


def reached(status: SweepStatus, **spec: Any) -> Any:
    """Return the sweep with this status and spec."""
    return sweep(status, **spec)


def test_a_sweep_with_a_budget_shows_what_it_used() -> None:
    found = next_of(started(**BUDGET), [TrialFacts(0, "Complete", 1.0, cost_usd=0.25), TrialFacts(1, "Active", cost_usd=0.5)])
    assert (found.status.cost_usd, found.status.phase) == (0.75, "Running")
    assert found.status.budget is not None
    assert (found.status.budget.cost_usd, found.status.budget.since.timestamp()) == (1, NOW)
    assert next_of(started(), done(0)).status.budget is None


def test_a_spent_budget_suspends_the_sweep() -> None:
    first = next_of(started(**BUDGET), []).status
    trials = [*done(0), refused(1, 5), TrialFacts(2, "Active", phase="Running", cost_usd=0.5)]
    found = next_of(reached(first, **BUDGET), trials, at=20)
    assert (found.create, found.suspend, found.resume, found.seconds) == (range(0), [1, 2], [], None)
    assert holding(found.status) == {"Suspended", "Reconciling"}
    assert why(found.status) == (
        "Suspended",
        "CostBudgetSpent",
        "the trials used 0.9 of 1 US dollars, and a model request could cost more than the rest; "
        "raise spec.budget.costUSD to continue",
    )


def test_a_sweep_whose_budget_is_spent_names_the_budget_with_which_the_refused_request_has_room() -> None:
    first = next_of(started(**BUDGET), []).status
    trials = [refused(0, 4, refused_usd=0.7), refused(1, 5, refused_usd=1.284)]
    _, _, message = why(next_of(reached(first, **BUDGET), trials, at=20).status)
    assert message == (
        "the trials used 0.8 of 1 US dollars, and a model request could have cost 1.284; "
        "raise spec.budget.costUSD to 2.09 or more to continue"
    )


def test_an_unknown_cost_is_not_reported_as_0() -> None:
    first = next_of(started(**BUDGET), []).status
    trials = [TrialFacts(0, "Active", phase="Running", refused_at=NOW + 5, unpriced=True)]
    _, _, message = why(next_of(reached(first, **BUDGET), trials, at=20).status)
    assert message.startswith("the trials used an unknown part of 1 US dollars, and a model request could cost more than the rest")


def test_a_sweep_whose_known_costs_are_those_of_refused_requests_only_has_no_known_cost() -> None:
    """A refused request costs nothing, also without a price."""
    zero = TrialFacts(0, "Complete", 1.0, cost_usd=0.0)
    assert next_of(started(), [zero, TrialFacts(1, "Complete", 1.0, unpriced=True)]).status.cost_usd is None
    assert next_of(started(), [zero, TrialFacts(1, "Complete", 1.0)]).status.cost_usd == 0.0
    assert next_of(started(), [zero, TrialFacts(1, "Complete", 1.0, cost_usd=0.5, unpriced=True)]).status.cost_usd == 0.5


def test_a_raised_budget_resumes_the_sweep_until_it_is_spent_too() -> None:
    first = next_of(started(**BUDGET), []).status
    spent = next_of(reached(first, **BUDGET), [refused(0, 5)], at=20).status
    raised = {"budget": {"costUSD": 2}}
    suspended = refused(0, 5, suspend=True, by_sweep=True)
    found = next_of(reached(spent, **raised), [suspended], at=100)
    assert (found.resume, found.status.phase) == ([0], "Running")
    assert found.status.budget is not None
    assert found.status.budget.cost_usd == 2
    late = next_of(reached(found.status, **raised), [refused(0, 99)], at=110)
    assert late.status.phase == "Running", "a step that started before the raise had the former budget"
    same = next_of(reached(found.status, **raised), [refused(0, 100)], at=110)
    assert same.status.phase == "Running", "times have whole seconds, so a step of the same second may have had the former budget"
    again = next_of(reached(found.status, **raised), [refused(0, 105)], at=120)
    assert why(again.status)[:2] == ("Suspended", "CostBudgetSpent")


def test_a_halted_sweep_names_its_spent_budget() -> None:
    spec: dict[str, Any] = {**BUDGET, "stopWhen": {"podHours": 0.01}}
    first = next_of(started(**spec), []).status
    found = next_of(reached(first, **spec), [refused(0, 5, pod_seconds=3600.0)], at=20)
    assert why(found.status)[:2] == ("Halting", "BudgetSpent")
    assert why(found.status)[2].endswith("raise spec.budget.costUSD to continue")


def test_a_sweep_without_a_budget_any_more_continues() -> None:
    first = next_of(started(**BUDGET), []).status
    found = next_of(reached(first), [refused(0, 5, suspend=True, by_sweep=True)], at=20)
    assert (found.resume, found.status.budget) == ([0], None)


def test_a_sweep_whose_trials_all_finished_is_complete_whatever_its_budget() -> None:
    first = next_of(started(**BUDGET), []).status
    trials = [*done(0, 1, 2), TrialFacts(3, "Complete", 1.0, refused_at=NOW + 5)]
    assert next_of(reached(first, **BUDGET), trials, at=20).status.phase == "Complete"
