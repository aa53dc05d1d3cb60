"""Test how many seconds a trial waits before the next reconcile, a retry, its failure or its cleanup."""

from __future__ import annotations

import pytest

from multistep.api.trial.status import (
    AttemptStatus,
    Condition,
)
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle import next_decision
from multistep.engine.lifecycle.decisions import (
    CleanUp,
    CreatePod,
    Fail,
    Wait,
)
from multistep.engine.lifecycle.stop_and_suspend import next_deadline
from tests.unit.engine.lifecycle_cases import (
    AGAIN,
    NOW,
    ON_ITS_WAY,
    PAUSED,
    QUEUED,
    START,
    SUSPEND,
    WITH_DEADLINE,
    after,
    at,
    began,
    starting,
    trial,
)

FORBIDDEN = Wait("PodForbidden", "a policy", 10.0)


def refused_before(reason: str) -> MultiStepTrial:
    output = Condition(type="Reconciling", status="True", last_transition_time=at(START), reason=reason)
    return trial(conditions=[output])


@pytest.mark.parametrize(
    ("before", "refused", "since", "gives_up"),
    [
        ("PodForbidden", FORBIDDEN, NOW - 60, True),
        ("PodForbidden", FORBIDDEN, None, True),
        ("PodForbidden", FORBIDDEN, NOW - 59, False),
        ("QuotaExceeded", FORBIDDEN, NOW - 9999, False),
        ("QuotaExceeded", Wait("QuotaExceeded", "full", 10.0), NOW - 9999, False),
    ],
)
def test_what_is_forbidden_is_given_up_after_a_while_but_a_quota_is_waited_for(
    before: str, refused: Wait, since: float | None, gives_up: bool
) -> None:
    decision = next_decision.after_rejection(refused_before(before), refused, None if since is None else at(since), NOW)
    assert decision == (Fail("PodForbidden", "a policy") if gives_up else refused)


def test_waiting_for_a_slow_start_never_becomes_a_busy_loop() -> None:
    decision = after(began(), starting(scheduled_at=NOW - 59.9))
    assert isinstance(decision, Wait) and decision.seconds == 1.0


def test_a_start_without_a_limit_waits_for_ever() -> None:
    assert after(began(), starting(scheduled_at=0.0), start_timeout=float("inf")) == Wait("PodStarting", ON_ITS_WAY, 30.0)


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1), (2, 2), (3, 4), (7, 60), (100, 60)])
def test_attempts_wait_longer_each_time(attempts: int, seconds: float) -> None:
    lost = [AttemptStatus(number=number, reason="x", completion_time=at(NOW)) for number in range(1, attempts + 1)]
    decision = after(began(**AGAIN, attempts=lost), None)
    assert isinstance(decision, Wait) and decision.seconds == seconds


def test_a_leader_whose_clock_is_behind_does_not_wait_longer() -> None:
    lost = [AttemptStatus(number=1, reason="x", completion_time=at(NOW + 600))]
    assert after(began(**AGAIN, attempts=lost), None) == CreatePod()


@pytest.mark.parametrize(
    ("due", "wanted"),
    [
        (CleanUp(None, None), None),
        (CleanUp(0.0, None), None),
        (CleanUp(5.0, None), 5.0),
        (CleanUp(0.0, 7.0), 7.0),
        (CleanUp(5.0, 7.0), 5.0),
        (CleanUp(9.0, 7.0), 7.0),
    ],
)
def test_clean_up_is_requeued_when_the_next_deletion_is_due(due: CleanUp, wanted: float | None) -> None:
    assert due.next == wanted


@pytest.mark.parametrize(
    ("situation", "wanted"),
    [
        (began(), None),
        (trial(WITH_DEADLINE), None),
        (began(WITH_DEADLINE, start_time=at(NOW - 30)), 70.0),
        (began(WITH_DEADLINE, start_time=at(NOW - 300)), 0.0),
        (began(WITH_DEADLINE, start_time=at(NOW - 300), suspended_seconds=250), 50.0),
        (began({**WITH_DEADLINE, **SUSPEND}, start_time=at(NOW - 30), conditions=PAUSED), None),
        (began(WITH_DEADLINE, start_time=at(NOW - 30), conditions=QUEUED), None),
    ],
)
def test_the_next_deadline(situation: MultiStepTrial, wanted: float | None) -> None:
    assert next_deadline(situation, NOW) == wanted


def test_a_suspension_makes_no_later_wait_longer() -> None:
    lost = [AttemptStatus(number=n, reason=each, completion_time=at(NOW)) for n, each in enumerate(("x", "Suspended", "x"), 1)]
    decision = after(began(**AGAIN, attempts=lost), None)
    assert isinstance(decision, Wait) and decision.seconds == 2
