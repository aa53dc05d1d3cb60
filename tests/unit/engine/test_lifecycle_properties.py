"""Test that a decision exists for every possible state of a trial and its pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.status import (
    AttemptStatus,
    Condition,
    TrialStatus,
)
from multistep.engine.lifecycle.decisions import (
    Decision,
    Drive,
    Fail,
    FailAttempt,
    PhaseDied,
    PodFacts,
    ProtocolViolation,
    Situation,
    Wait,
)
from multistep.engine.lifecycle.next_decision import decide
from tests.unit.engine.lifecycle_cases import FULL_DISK, NOW, START, at, began, pod, trial

TIMES = st.none() | st.floats(0, 2 * START)
DATES = st.none() | st.integers(0, 2 * int(START)).map(float).map(at)
REASONS = st.sampled_from(["", "Evicted", "OOMKilled", "ErrImagePull", "InvalidImageName"])
WORDS = st.sampled_from(["", "not found", FULL_DISK])
PODS = st.builds(
    PodFacts,
    name=st.just("t-1"),
    uid=st.sampled_from("pq"),
    owner_uid=st.sampled_from(["t", "", "x"]),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    created_at=st.floats(0, 2 * START),
    scheduled_at=TIMES,
    unschedulable=WORDS,
    gates=st.sampled_from([(), ("a",), ("a", "b")]),
    queue=st.sampled_from([None, "", "team"]),
    deleting=st.booleans(),
    disruption=REASONS,
    reason=REASONS,
    message=WORDS,
    waiting_reason=REASONS,
    waiting_message=WORDS,
    running=st.booleans(),
    ready=st.booleans(),
    terminated=st.booleans(),
    exit_code=st.none() | st.integers(0, 255),
    exit_reason=REASONS,
)
CONDITIONS = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(["Complete", "Failed", "Ready", "Suspended"]),
        status=st.sampled_from(["True", "False", "Unknown"]),
        last_transition_time=st.just(at(NOW)),
        reason=st.sampled_from(["x", "QueuedByKueue", "QueuedForModel"]),
    ),
    max_size=2,
)
STATUSES = st.builds(
    TrialStatus,
    conditions=CONDITIONS,
    attempt=st.none() | st.integers(1, 3),
    pod_name=st.just("t-1"),
    pod_uid=st.sampled_from([None, "p"]),
    start_time=DATES,
    completion_time=DATES,
    current_step=st.sampled_from([None, "a"]),
    attempts=st.lists(st.builds(AttemptStatus, number=st.integers(1, 3), completion_time=DATES), max_size=3),
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "suspend": st.booleans(),
        "suspendPolicy": st.sampled_from(["Pause", "ReleaseAfterStep", "Release"]),
        "stop": st.booleans(),
        "activeDeadlineSeconds": st.integers(1, 1000),
        "podCleanup": st.sampled_from(["Always", "OnSuccess", "Never"]),
        "podTTLSecondsAfterFinished": st.integers(0, 1000),
        "ttlSecondsAfterFinished": st.integers(0, 1000),
    },
)


@given(SPECS, STATUSES, st.none() | PODS, st.floats(0, 2 * START), st.floats(0, 1000) | st.just(float("inf")))
def test_decide_is_total(
    spec: Mapping[str, Any], status: TrialStatus, facts: PodFacts | None, now: float, start_timeout: float
) -> None:
    situation = Situation(trial(spec).model_copy(update={"status": status}), facts, "t-1", now, start_timeout)
    decision = decide(situation)
    assert isinstance(decision, get_args(Decision))
    assert decide(situation) == decision
    if isinstance(decision, Wait) and decision.seconds is not None:
        assert decision.seconds > 0
    if isinstance(decision, Fail | FailAttempt):
        assert decision.reason and " " not in decision.reason and decision.message
    if isinstance(decision, Drive):
        assert facts is not None and facts.running and facts.owner_uid == "t" and facts.uid == status.pod_uid
    if isinstance(decision, PhaseDied):
        assert status.current_step is not None


@pytest.mark.parametrize(
    ("times", "seconds", "ends"), [(1, 1000, False), (4, 1000, False), (5, 59, False), (5, 60, True), (50, 1000, True)]
)
def test_a_runner_that_makes_no_sense_for_good_ends_the_trial_without_a_reward(times: int, seconds: float, ends: bool) -> None:
    output = None
    for _ in range(times):
        output = ProtocolViolation.after(output, "gibberish", NOW - seconds)
    decision = decide(Situation(began(), pod(), "t-1", NOW, 60.0, violation=output))
    if not ends:
        assert decision == Drive()
    else:
        assert isinstance(decision, Fail)
        assert decision.reason == "RunnerBroken"
        assert "gibberish" in decision.message and str(times) in decision.message
