"""Test decisions about lost pods, restarted containers, killed exec sessions and runners that violate the protocol."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.trial.status import StepStatus, VerifierStatus
from multistep.engine.lifecycle import pod_start
from multistep.engine.lifecycle.decisions import (
    Drive,
    DriveWithoutVerifier,
    Fail,
    FailAttempt,
    PhaseDied,
    ProtocolViolation,
    Situation,
)
from multistep.engine.lifecycle.next_decision import decide
from tests.unit.engine.lifecycle_cases import NOW, began, pod, starting


def test_a_pod_that_is_lost_fails_its_attempt_whatever_its_runner_reports() -> None:
    output = ProtocolViolation("gibberish", NOW - 1000, times=50)
    decision = decide(Situation(began(), pod(disruption="EvictionByEvictionAPI"), "t-1", NOW, 60.0, violation=output))
    assert isinstance(decision, FailAttempt)


@pytest.mark.parametrize(
    ("changes", "still"),
    [
        ({}, False),
        ({"waiting_reason": "ContainerCreating"}, False),
        ({"unschedulable": "0/1 nodes are available"}, True),
        ({"waiting_reason": "ImagePullBackOff"}, True),
    ],
)
def test_a_pod_stands_still_when_it_waits_for_more_than_its_node(changes: dict[str, str], still: bool) -> None:
    assert pod_start.is_stuck(starting(**changes)) is still


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"waiting_reason": "PodInitializing"}, True),
        ({"waiting_reason": "ImagePullBackOff"}, False),
        ({"unschedulable": "0/1 nodes are available"}, False),
        ({"gates": ("kueue.x-k8s.io/admission",)}, False),
        ({"running": True}, False),
        ({"terminated": True}, False),
        ({"deleting": True}, False),
        ({"phase": "Failed"}, False),
    ],
)
def test_a_pod_is_on_its_way_while_there_is_nothing_to_decide_about_it(changes: dict[str, Any], waits: bool) -> None:
    assert pod_start.is_starting(starting(**changes)) is waits


@pytest.mark.parametrize(("times", "seconds", "ends"), [(4, 1000, False), (5, 89, False), (5, 90, True)])
def test_exec_sessions_that_the_container_kills_end_the_trial_after_90_seconds(times: int, seconds: float, ends: bool) -> None:
    output = ProtocolViolation("exit code 137", NOW - seconds, times=times, reason="ExecSessionsKilled")
    decision = decide(Situation(began(), pod(), "t-1", NOW, 60.0, violation=output))
    assert (decision != Drive()) is ends
    if ends:
        message = "a process in the container killed the exec session 5 times in a row; last: exit code 137"
        assert decision == Fail("ExecSessionsKilled", message)


@pytest.mark.parametrize(
    ("times", "seconds", "compares", "named", "ends"),
    [
        (5, 1000, True, True, False),
        (9, 1000, True, True, False),
        (10, 179, True, True, False),
        (10, 180, True, True, True),
        (5, 90, False, True, True),
        (5, 90, True, False, True),
    ],
)
def test_a_second_verification_that_may_cause_violations_is_given_up_before_the_trial_fails(
    times: int, seconds: float, compares: bool, named: bool, ends: bool
) -> None:
    output = ProtocolViolation("exit code 137", NOW - seconds, times=times, reason="ExecSessionsKilled")
    verifier = VerifierStatus(pod_name="t-1-v0", pod_uid="uid-v") if named else None
    now = Situation(
        began(verifier=verifier, current_step="a", steps=[StepStatus(name="a")]), pod(), "t-1", NOW, 60.0,
        verifier=pod(name="t-1-v0", uid="uid-v") if named else None, violation=output, compares_verdicts=compares,
    )  # fmt: skip
    message = f"a process in the container killed the exec session {times} times in a row; last: exit code 137"
    without = DriveWithoutVerifier(f"the verifier of step a: {message}")
    assert decide(now) == (Fail("ExecSessionsKilled", message) if ends else without)


def test_contradictory_records_end_the_trial_as_tampered() -> None:
    output = ProtocolViolation("no records", NOW - 60, times=5, reason="Tampered")
    decision = decide(Situation(began(container_id="c"), pod(container_id="c"), "t-1", NOW, 60.0, violation=output))
    assert decision == Fail("Tampered", "the runner's records contradicted the status 5 times in a row; last: no records")


@pytest.mark.parametrize("retried", [True, False])
def test_refused_switches_of_the_network_end_the_attempt_and_rejected_hosts_the_trial(retried: bool) -> None:
    output = ProtocolViolation("no", NOW - 60, times=5, reason="EgressRefused" if retried else "InvalidSpec")
    decision = decide(Situation(began(), pod(), "t-1", NOW, 60.0, violation=output))
    if retried:
        assert decision == FailAttempt("EgressRefused", "the switch of the network failed 5 times in a row; last: no")
    else:
        assert decision == Fail("InvalidSpec", "the egress sidecar rejected the task's allowed_hosts 5 times in a row; last: no")


def test_another_container_in_the_pod_is_a_restart_whatever_its_runner_reports() -> None:
    output = ProtocolViolation("no records", NOW - 1000, times=50, reason="Tampered")
    decision = decide(Situation(began(container_id="c"), pod(container_id="d"), "t-1", NOW, 60.0, violation=output))
    assert decision == FailAttempt("ContainerRestarted", "pod t-1 runs container d, not c")


@pytest.mark.parametrize(("known", "seen"), [(None, "d"), ("c", ""), ("c", "c")])
def test_a_container_that_is_not_known_to_be_another_is_the_same(known: str | None, seen: str) -> None:
    assert decide(Situation(began(container_id=known), pod(container_id=seen), "t-1", NOW, 60.0)) == Drive()


@pytest.mark.parametrize(
    ("agents", "verifiers", "charged"),
    [({"terminated": True, "exit_code": 2}, {}, "agent"), ({}, {"terminated": True, "exit_code": 2}, None)],
)
def test_the_end_of_the_agents_container_while_another_pod_verifies_is_charged_to_the_agent(
    agents: dict[str, Any], verifiers: dict[str, Any], charged: str | None
) -> None:
    verified = began(current_step="a", container_id="c", verifier=VerifierStatus(pod_name="t-1-v0", pod_uid="v"))
    verifier = pod(name="t-1-v0", uid="v", container_id="d", **verifiers)
    decision = decide(Situation(verified, pod(container_id="c", **agents), "t-1", NOW, 60.0, verifier=verifier))
    assert isinstance(decision, PhaseDied) and decision.phase == charged


@pytest.mark.parametrize(
    ("phase", "apart", "charged"), [("Verifier", True, "agent"), ("Verifier", False, None), ("Setup", True, None)]
)
def test_the_end_of_the_agents_container_before_or_after_another_pod_verifies_is_charged_to_the_agent(
    phase: str, apart: bool, charged: str | None
) -> None:
    verified = began(current_step="a", container_id="c", steps=[StepStatus(name="a", phase=phase)])
    ended = pod(container_id="c", terminated=True, exit_code=2)
    decision = decide(Situation(verified, ended, "t-1", NOW, 60.0, verified_apart=apart))
    assert isinstance(decision, PhaseDied) and decision.phase == charged
