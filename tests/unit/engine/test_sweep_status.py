"""Test a sweep's next actions and its status, which depend on its spec, its trials and the clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.sweep.sweep import SweepStatus, TrialSweep, parse_sweep
from multistep.api.trial.status import is_finished
from multistep.engine.sweep import sweep_status
from multistep.engine.sweep.next_sweep_action import (
    BUDGET_CHECK_SECONDS,
    SweepDecision,
    is_suspended_before_start,
    next_sweep_action,
)
from multistep.engine.sweep.next_trials import TrialFacts
from multistep.engine.sweep.sweep_status import (
    CreationError,
    to_json,
    urgent_fields,
)
from multistep.engine.sweep.trial_manifests import SweepPlan, plan_sweep

NOW = 1_700_000_000.0


def sweep(status: SweepStatus | None = None, generation: int = 1, renewal: str = "", **spec: Any) -> TrialSweep:
    tasks: list[Any] = [{"name": name, "inline": {"config": {}}} for name in ("t", "u")]
    agents = [{"name": name, "agent": {"name": "nop"}} for name in ("a", "b")]
    metadata: dict[str, Any] = {"name": "s", "namespace": "n", "uid": "sweep-uid", "generation": generation}
    metadata["annotations"] = {"multistep.dev/renewal": renewal} if renewal else {}
    made = parse_sweep({"metadata": metadata, "spec": {"tasks": tasks, "agents": agents, "parallelism": 3, **spec}})
    return made.model_copy(update={"status": status or SweepStatus()})


def plan_of(found: TrialSweep) -> SweepPlan:
    return plan_sweep(found, found.spec.tasks)


def started(**spec: Any) -> TrialSweep:
    """Return a sweep that started at NOW."""
    found = sweep(**spec)
    return sweep(sweep_status.started_status(found, plan_of(found), NOW), **spec)


def next_of(
    found: TrialSweep, trials: Sequence[TrialFacts] = (), at: float = 0.0, error: CreationError | None = None
) -> SweepDecision:
    return next_sweep_action(found, plan_of(found), found.status.trials.created, trials, NOW + at, error)


def holding(status: SweepStatus) -> set[str]:
    return {each.type for each in status.conditions if each.status == "True"}


def why(status: SweepStatus) -> tuple[str | None, str, str]:
    return status.phase, status.conditions[0].reason, status.conditions[0].message


def done(*numbers: int, reward: float = 1.0) -> list[TrialFacts]:
    return [TrialFacts(number, "Complete", reward, pod_seconds=3600.0) for number in numbers]


def test_a_sweep_that_starts_shows_how_much_it_will_be() -> None:
    status = started().status
    assert why(status) == ("Pending", "SweepStarted", "2 tasks, 2 agents, 4 trials")
    assert (status.trials.total, status.start_time is not None, holding(status)) == (4, True, {"Reconciling"})


def test_a_sweep_of_tasks_elsewhere_that_is_suspended_from_its_start_has_not_started() -> None:
    elsewhere: dict[str, Any] = {"tasks": None, "tasksFrom": {"git": {"url": "https://git.example/r"}}}
    found = sweep(**elsewhere, suspend=True)
    status = sweep_status.suspended_before_start(found, NOW)
    assert why(status) == ("Suspended", "Suspended", "spec.suspend is true; set it to false to start")
    assert (holding(status), status.start_time) == ({"Reconciling", "Suspended"}, None)
    waits = [is_suspended_before_start(each) for each in (found, sweep(**elsewhere), sweep(suspend=True), started(suspend=True))]
    assert waits == [True, False, False, False]


def test_it_makes_trials_while_there_is_room() -> None:
    assert next_of(started()).create == range(3)
    found = next_of(started(), [*done(0), TrialFacts(1, "Active", phase="Running"), TrialFacts(2, "Active")])
    assert found.create == range(3, 4)
    trials = found.status.trials
    assert (trials.created, trials.active, trials.running, trials.pending, trials.finished, trials.counted) == (3, 2, 1, 1, 1, 1)
    assert why(found.status) == ("Running", "Running", "3 of 4 trials were created")
    assert found.seconds is None


def test_at_its_end_it_reports_each_agents_mean_and_what_did_not_count() -> None:
    ended = [
        *done(0),
        TrialFacts(1, "Complete", 0.25),
        TrialFacts(2, "Failed", failure_class="Infrastructure"),
        *done(3, reward=0.5),
    ]
    status = next_of(started(), ended).status
    assert why(status) == ("Complete", "SweepComplete", "3 of 4 trials count")
    assert holding(status) == {"Complete", "Ready"}
    assert [(each.name, each.counted, each.mean) for each in status.agents] == [("a", 1, 1.0), ("b", 2, 0.375)]
    assert (status.score, status.excluded, status.pod_hours) == ("a 1 (1 of 2), b 0.375", {"Infrastructure": 1}, 2.0)
    assert status.completion_time is not None and is_finished(status)


def test_of_a_single_agent_the_column_shows_the_mean_alone_and_never_too_much() -> None:
    alone = started(agents=[{"name": "a", "agent": {"name": "nop"}}])
    assert next_of(alone, done(0)).status.score == "1"
    assert next_of(alone).status.score is None
    many = started(agents=[{"name": f"agent-{number}", "agent": {"name": "nop"}} for number in range(9)])
    text = next_of(many, done(*range(9))).status.score
    assert text is not None and len(text) == 60 and text.endswith("...")


def test_a_suspended_sweep_creates_no_trial_and_suspends_active_ones() -> None:
    trials = [*done(0), TrialFacts(1, "Active", phase="Running"), TrialFacts(2, "Active", suspend=True)]
    found = next_of(started(suspend=True), trials)
    assert (found.create, found.suspend, found.resume) == (range(0), [1], [])
    assert why(found.status) == ("Suspended", "Suspended", "spec.suspend is true; 1 trial is finishing its step")
    assert holding(found.status) == {"Suspended", "Reconciling"}


def test_a_resumed_sweep_resumes_only_trials_that_it_suspended() -> None:
    trials = [TrialFacts(0, "Active", suspend=True, by_sweep=True), TrialFacts(1, "Active", suspend=True)]
    found = next_of(started(), trials)
    assert (found.suspend, found.resume, found.create) == ([], [0], range(2, 3))


def test_beyond_its_parallelism_it_creates_suspended_trials() -> None:
    found = next_of(started(prestart=2, attempts=2))
    assert (found.create, found.early, found.resume) == (range(5), 3, [])
    ready = [TrialFacts(number, "Active", suspend=True, by_sweep=True) for number in (4, 3)]
    found = next_of(started(prestart=2, attempts=2), [*done(0), TrialFacts(1, "Active"), TrialFacts(2, "Active"), *ready])
    assert (found.resume, found.create, found.early) == ([3], range(5, 6), 5)
    found = next_of(started(prestart=1, attempts=2), [*done(0, 1), TrialFacts(2, "Active"), *ready[:1]])
    assert (found.resume, found.create, found.early) == ([4], range(5, 7), 6)


def test_a_spent_budget_lets_active_trials_finish() -> None:
    busy = started(stopWhen={"podHours": 1})
    active = [*done(0), TrialFacts(1, "Active", since=NOW)]
    found = next_of(busy, active)
    assert (found.create, found.stop, found.seconds) == (range(0), [], BUDGET_CHECK_SECONDS)
    assert why(found.status)[:2] == ("Halting", "BudgetSpent")
    assert "1 trial is still active" in why(found.status)[2]
    ended = next_of(busy, done(0, 1)).status
    assert why(ended)[:2] == ("Failed", "BudgetSpent") and holding(ended) == {"Failed", "Stalled"}
    assert "; 2 of 4 trials were created" in why(ended)[2]


def test_pods_that_keep_working_are_counted_now_and_then_where_there_is_a_budget() -> None:
    active = [TrialFacts(0, "Active", since=NOW, phase="Running")]
    assert next_of(started(stopWhen={"podHours": 1}), active, at=60).seconds == BUDGET_CHECK_SECONDS
    assert why(next_of(started(stopWhen={"podHours": 1}), active, at=3600).status)[0] == "Halting"
    assert next_of(started(stopWhen={"podHours": 1})).seconds is None


def test_too_many_failures_of_a_class_end_it() -> None:
    found = started(stopWhen={"failures": {"Infrastructure": 0}})
    assert why(next_of(found, [TrialFacts(0, "Failed", failure_class="Infrastructure")]).status)[:2] == (
        "Failed",
        "TooManyFailures",
    )
    assert why(next_of(found, [TrialFacts(0, "Failed", failure_class="Verifier")]).status)[0] == "Running"


def test_at_the_deadline_active_trials_are_stopped() -> None:
    found = started(activeDeadlineSeconds=60)
    active = [TrialFacts(0, "Active"), TrialFacts(1, "Active", stop=True)]
    assert next_of(found, active, at=59).seconds == 1
    due = next_of(found, active, at=60)
    assert (due.stop, due.create, due.seconds) == ([0], range(0), None)
    assert why(due.status)[:2] == ("Halting", "DeadlineExceeded")
    stopped = [TrialFacts(number, "Failed", failure_class="User", stop=True) for number in range(2)]
    assert why(next_of(found, stopped, at=61).status)[:2] == ("Failed", "DeadlineExceeded")


def test_a_sweep_whose_last_trials_were_stopped_at_the_deadline_is_not_complete() -> None:
    found = started(activeDeadlineSeconds=60)
    assert why(next_of(found, done(0, 1, 2, 3), at=61).status)[0] == "Complete"
    stopped = [*done(0, 1, 2), TrialFacts(3, "Failed", failure_class="User", stop=True)]
    assert why(next_of(found, stopped, at=61).status)[:2] == ("Failed", "DeadlineExceeded")
    # before the deadline, only a user can have stopped the trial, so the sweep is Complete
    assert why(next_of(found, stopped, at=59).status)[0] == "Complete"


def test_a_sweep_whose_lease_is_not_renewed_stops_what_is_active() -> None:
    found = started(lease={"seconds": 30})
    active = [TrialFacts(0, "Active"), TrialFacts(1, "Active", stop=True)]
    held = next_of(found, active, at=29)
    assert (held.stop, held.seconds, why(held.status)[0]) == ([], 1, "Running")
    due = next_of(found, active, at=30)
    assert (due.stop, due.create, due.seconds) == ([0], range(0), None)
    assert why(due.status)[:2] == ("Halting", "LeaseExpired")
    stopped = [TrialFacts(number, "Failed", failure_class="User", stop=True) for number in range(2)]
    assert why(next_of(found, stopped, at=31).status)[:2] == ("Failed", "LeaseExpired")
    assert next_of(started(), active, at=31).status.lease is None


def test_a_new_renewal_extends_the_lease_from_when_the_operator_sees_it() -> None:
    options: dict[str, Any] = {"lease": {"seconds": 30}}
    renewed = next_of(sweep(started(**options).status, renewal="1", **options), at=20)
    assert renewed.seconds == 30
    same = sweep(renewed.status, renewal="1", **options)
    assert next_of(same, at=49).seconds == 1
    assert why(next_of(same, at=50).status)[:2] == ("Failed", "LeaseExpired")
    # no operator ran until 5000 s, so no operator saw the new renewal earlier
    assert why(next_of(sweep(renewed.status, renewal="2", **options), at=5000).status)[0] == "Running"


def test_a_long_renewal_is_new_if_only_its_end_is() -> None:
    options: dict[str, Any] = {"lease": {"seconds": 30}}
    first, second = ("{'holder': 'training-job-of-the-week-on-the-large-cluster', 'time': " + each for each in "12")
    renewed = next_of(sweep(started(**options).status, renewal=first, **options), at=20).status
    assert renewed.lease is not None and len(renewed.lease.renewal) == 64
    assert why(next_of(sweep(renewed, renewal=second, **options), at=60).status)[0] == "Running"
    assert why(next_of(sweep(renewed, renewal=first, **options), at=60).status)[0] == "Failed"


def test_a_lease_expires_also_while_the_sweep_is_suspended() -> None:
    options: dict[str, Any] = {"lease": {"seconds": 30}, "suspend": True}
    found = started(**options)
    assert next_of(found, at=10).seconds == 20
    assert why(next_of(found, at=30).status)[:2] == ("Failed", "LeaseExpired")


def test_the_deadline_does_not_come_nearer_while_it_is_suspended() -> None:
    options: dict[str, Any] = {"activeDeadlineSeconds": 60}
    held = next_of(started(**options, suspend=True), at=10)
    assert held.seconds is None
    later = sweep(held.status, **options, suspend=True)
    assert why(next_of(later, at=1000).status)[0] == "Suspended"
    resumed = next_of(sweep(held.status, **options), at=1000)
    assert why(resumed.status)[0] == "Running" and resumed.seconds == 50
    assert resumed.status.suspended_seconds == 990
    assert why(next_of(sweep(resumed.status, **options), at=1051).status)[0] == "Failed"


def test_a_trial_that_cannot_be_created_is_reported_as_long_as_nothing_else_ends_the_sweep() -> None:
    error = CreationError("NameTaken", "another owner has it")
    status = next_of(started(), error=error).status
    assert why(status) == ("Running", "NameTaken", "another owner has it")
    assert holding(status) == {"Reconciling", "Stalled"}
    assert why(next_of(started(suspend=True), error=error).status)[1] == "Suspended"
    assert holding(next_of(started(suspend=True), error=error).status) == {"Reconciling", "Suspended"}


def test_an_error_of_a_reconcile_is_shown_in_the_phase_that_the_sweep_has() -> None:
    assert why(sweep_status.error_status(sweep(), "ReconcileFailed", "why", NOW)) == ("Pending", "ReconcileFailed", "why")
    running = sweep(next_of(started()).status)
    assert sweep_status.error_status(running, "ReconcileFailed", "why", NOW).phase == "Running"


def test_one_that_cannot_start_or_be_run_reports_why() -> None:
    assert why(sweep_status.waiting_status(sweep(), "TaskFetching", "soon", NOW)) == ("Pending", "TaskFetching", "soon")
    status = sweep_status.failed_status(sweep(), "InvalidSpec", "spec.x: wrong", NOW)
    assert why(status) == ("Failed", "InvalidSpec", "spec.x: wrong") and holding(status) == {"Failed", "Stalled"}
    assert status.completion_time is not None


def test_a_change_of_a_finished_sweep_is_noted_and_changes_nothing_else() -> None:
    ended = next_of(started(), done(0, 1, 2, 3)).status
    status = sweep_status.observed_status(sweep(ended, generation=7))
    assert status.observed_generation == 7 and status.model_copy(update={"observed_generation": 1}) == ended


def test_numbers_alone_may_wait_to_be_written_and_nothing_else() -> None:
    first, second = next_of(started(), done(0)).status, next_of(started(), done(0, 1)).status
    assert first != second and urgent_fields(first) == urgent_fields(second)
    assert urgent_fields(next_of(started(suspend=True)).status) != urgent_fields(first)


@pytest.mark.parametrize("attempts", [1, 1000])
def test_a_status_stays_small_however_many_trials_there_are(attempts: int) -> None:
    found = started(attempts=attempts)
    assert len(str(to_json(next_of(found, done(*range(len(plan_of(found).grid)))).status))) < 4000


FACTS = st.builds(
    TrialFacts,
    st.integers(0, 11),
    st.sampled_from(["Active", "Complete", "Failed"]),
    st.none() | st.floats(0, 1),
    st.none() | st.sampled_from(["Agent", "Verifier", "Task", "Infrastructure", "User"]),
    st.floats(0, 1e5),
    st.none(),
    st.sampled_from(["Pending", "Running", "Suspended"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(
    st.lists(FACTS, unique_by=lambda each: each.number),
    st.integers(0, 12),
    st.booleans(),
    st.sampled_from([{}, {"podHours": 5}, {"failures": {"Task": 1}}]),
    st.none() | st.integers(1, 100),
    st.floats(0, 200),
    st.integers(0, 3),
)
def test_no_trial_is_created_twice_or_beyond_the_limit_and_a_finished_sweep_has_none_active(
    trials: list[TrialFacts], made: int, suspend: bool, stop_when: Any, deadline: int | None, at: float, prestart: int
) -> None:
    found = started(attempts=3, suspend=suspend, stopWhen=stop_when, activeDeadlineSeconds=deadline, prestart=prestart)
    due = next_sweep_action(found, plan_of(found), made, trials, NOW + at)
    active = {each.number for each in trials if each.state == "Active"}
    assert not {each.number for each in trials} & set(due.create) and min(due.create, default=made) >= made
    assert len(active) + len(due.create) <= max(3 + prestart, len(active))
    ready = {each.number for each in trials if each.state == "Active" and each.suspend and each.by_sweep}
    begin = {*due.resume, *(number for number in due.create if number < due.early)}
    assert len(active - ready) + len(begin) <= max(3, len(active - ready))
    assert {*due.suspend, *due.resume, *due.stop} <= active
    assert not (suspend and (due.create or due.resume))
    assert not (is_finished(due.status) and (active or due.create))
    counts = due.status.trials
    assert counts.created == counts.active + counts.finished + counts.deleted
    assert counts.finished == counts.counted + sum(due.status.excluded.values())
    assert len(holding(due.status) & {"Complete", "Failed", "Reconciling"}) == 1
