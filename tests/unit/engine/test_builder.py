"""Test the next decision of an image build for each state of the registry, the builder's pod and the records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from multistep.api.trial.runner_records import Record
from multistep.engine.builds.next_build_action import (
    BUILD_FAILED,
    BUILD_LIMIT,
    BUILD_LOST,
    START_SECONDS,
    VERIFY_SECONDS,
    BuildBroken,
    BuilderLost,
    BuilderRetries,
    BuildLimits,
    BuildPause,
    BuildState,
    CreateBuilder,
    Decision,
    ImageBuilt,
    StartBuild,
    StartPush,
    has_pushed,
    last_lines,
    next_build_action,
)
from multistep.engine.lifecycle.decisions import PodFacts
from tests.support.phase_results import DEFAULTS

NOW = 1_000_000.0
LIMITS = BuildLimits(60.0, "1Gi", "20Gi")
RUNS = PodFacts("p", "uid", "", "Running", NOW - 10, scheduled_at=NOW - 9, running=True)
STARTS = replace(RUNS, phase="Pending", running=False)


def phase(id: str, *, ended: float | None = NOW, **result: Any) -> Record:
    done = ended is not None
    return Record(
        id, "start", "done" if done else "running", NOW - 5, ended, True, {**DEFAULTS["start"], **result} if done else None
    )


def seen(*records: Record, pod: PodFacts | None = RUNS, **fields: Any) -> BuildState:
    return BuildState(NOW, pod=pod, records={each.id: each for each in records}, **fields)


def decided(*records: Record, **fields: Any) -> Decision:
    return next_build_action(seen(*records, **fields), LIMITS)


BUILT = phase("build")


def test_an_image_in_the_registry_ends_the_build() -> None:
    assert decided(image="sha256:1") == next_build_action(BuildState(NOW, image="sha256:1"), LIMITS) == ImageBuilt("sha256:1")


def test_a_pod_is_created_only_if_the_registry_says_that_there_is_no_image() -> None:
    assert next_build_action(BuildState(NOW), LIMITS) == CreateBuilder()
    assert next_build_action(BuildState(NOW, unreachable="away"), LIMITS) == BuildPause("away", failing=True)


def test_a_pod_that_is_being_deleted_is_waited_for() -> None:
    assert isinstance(decided(pod=replace(RUNS, deleting=True)), BuildPause)


@pytest.mark.parametrize(
    ("pod", "failing"),
    [
        (STARTS, False),
        (replace(STARTS, unschedulable="no node"), True),
        (replace(STARTS, waiting_reason="ErrImagePull", waiting_message="not found"), True),
    ],
)
def test_a_starting_pod_is_waited_for(pod: PodFacts, failing: bool) -> None:
    decision = next_build_action(BuildState(NOW, pod=pod), LIMITS)
    assert isinstance(decision, BuildPause) and decision.failing == failing


def test_a_pod_that_does_not_start_is_lost() -> None:
    late = replace(STARTS, scheduled_at=NOW - START_SECONDS - 1)
    assert next_build_action(BuildState(NOW, pod=late), LIMITS) == BuilderLost("pod p did not start within 300 s: no reason given")
    named = replace(late, waiting_reason="ErrImagePull", waiting_message="not found")
    assert next_build_action(BuildState(NOW, pod=named), LIMITS) == BuilderLost(
        "pod p did not start within 300 s: ErrImagePull not found"
    )


@pytest.mark.parametrize(
    ("pod", "push_ended"),
    [
        (replace(RUNS, terminated=True, exit_code=137), ""),
        (replace(RUNS, phase="Failed", reason="NodeLost"), ""),
        (replace(RUNS, disruption="DeletionByTaintManager"), ""),
        (RUNS, "the container push ended"),
    ],
)
def test_a_pod_that_ended_is_lost(pod: PodFacts, push_ended: str) -> None:
    assert isinstance(decided(BUILT, pod=pod, push_ended=push_ended), BuilderLost)


def test_a_pod_that_used_too_much_is_the_tasks_failure() -> None:
    out_of_memory = replace(RUNS, terminated=True, exit_reason="OOMKilled")
    evicted = replace(RUNS, phase="Failed", reason="Evicted", message='Usage of EmptyDir volume "work" exceeds the limit "20Gi".')
    for pod, limit in ((out_of_memory, "1Gi"), (evicted, "20Gi")):
        decision = decided(pod=pod)
        assert isinstance(decision, BuildBroken) and decision.reason == BUILD_LIMIT and limit in decision.message


def test_a_running_pod_builds_then_pushes() -> None:
    assert decided() == StartBuild()
    assert decided(phase("build", ended=None)) == BuildPause("is being built in pod p")
    assert decided(BUILT) == StartPush("push/1")
    assert decided(BUILT, phase("push/1", ended=None)) == BuildPause("is being pushed")


def test_a_context_that_cannot_be_uploaded_is_the_tasks_failure() -> None:
    failed = Record("context", "note", "done", NOW, NOW, True, {"error": {"code": "DiskFull", "message": "no space"}})
    assert decided(failed) == BuildBroken(BUILD_LIMIT, "the build context could not be uploaded: no space")
    assert decided(replace(failed, result={"error": None})) == StartBuild()


@pytest.mark.parametrize(
    ("result", "reason", "text"),
    [
        ({"exitCode": 1, "tail": "x\nError: building at STEP"}, BUILD_FAILED, "Error: building at STEP"),
        ({"exitCode": None, "timedOut": True, "tail": "slow"}, BUILD_LIMIT, "builds.timeoutSeconds = 60; its last lines:\nslow"),
        ({"exitCode": 1, "oomKills": 1}, BUILD_LIMIT, "builds.resources allows (1Gi)"),
        (
            {"exitCode": 1, "tail": "Error: creating build container: reading manifest x: manifest unknown"},
            BUILD_FAILED,
            "manifest unknown",
        ),
        ({"exitCode": 1, "tail": "connection refused\nError: while running runtime: exit status 1"}, BUILD_FAILED, "exit status 1"),
        ({"exitCode": 1, "tail": ""}, BUILD_FAILED, "the build failed"),
        ({"exitCode": 1, "tail": "dd: no space left on device\nError: exit status 1"}, BUILD_FAILED, "the build failed"),
    ],
)
def test_a_build_that_failed_is_the_tasks_failure(result: dict[str, Any], reason: str, text: str) -> None:
    decision = decided(phase("build", **result))
    assert isinstance(decision, BuildBroken) and decision.reason == reason and text in decision.message


@pytest.mark.parametrize(
    "result",
    [
        {"exitCode": 125, "tail": "Error: creating build container: pinging container registry r: dial tcp: connection refused"},
        {"exitCode": 125, "tail": "Error: creating build container: initializing source docker://x: toomanyrequests: rate limit\n"},
        {"exitCode": 125, "tail": "STEP 2/2: COPY . /x\nError: building at STEP: write /x: no space left on device"},
        {"exitCode": None, "error": {"code": "Internal", "message": "fork"}},
    ],
)
def test_a_build_that_a_registry_or_the_node_ended_is_no_failure_of_the_task(result: dict[str, Any]) -> None:
    assert isinstance(decided(phase("build", **result)), BuilderLost)


def test_a_failed_push_is_retried_without_a_build() -> None:
    failed = phase("push/1", exitCode=1, tail="connection refused")
    decision = decided(BUILT, failed)
    assert isinstance(decision, BuildPause) and decision.failing and "connection refused" in decision.message
    assert decided(BUILT, replace(failed, ended_at=NOW - 2)) == StartPush("push/2")
    second = replace(failed, id="push/2", ended_at=NOW - 3)
    assert isinstance(decided(BUILT, failed, second), BuildPause), "the pause doubles"
    many = [replace(failed, id=f"push/{number}", ended_at=NOW - 61) for number in range(1, 20)]
    assert decided(BUILT, *many) == StartPush("push/20")


def test_the_registry_is_asked_only_after_a_push_has_ended() -> None:
    tried = [(), (BUILT,), (BUILT, phase("push/1", ended=None)), (BUILT, phase("push/1", exitCode=1))]
    assert [has_pushed({each.id: each for each in records}) for records in tried] == [False, False, False, True]


def test_a_pushed_image_has_to_be_in_the_registry() -> None:
    assert isinstance(decided(BUILT, phase("push/1")), BuildPause)
    assert decided(BUILT, phase("push/1"), unreachable="away") == BuildPause("away", failing=True)
    assert isinstance(decided(BUILT, phase("push/1", ended=NOW - VERIFY_SECONDS - 1)), BuilderLost)


@pytest.mark.parametrize(
    ("records", "last"),
    [([BUILT], "nothing was pushed"), ([BUILT, phase("push/1", exitCode=1, tail="denied")], "denied")],
)
def test_a_pod_that_never_pushes_is_given_up(records: list[Record], last: str) -> None:
    decision = decided(*records, pod=replace(RUNS, created_at=NOW - LIMITS.pod_seconds - 1))
    assert isinstance(decision, BuilderLost) and last in decision.message


def test_lost_pods_are_replaced_with_back_off_until_too_many_are_lost() -> None:
    retries = BuilderRetries(most=2)
    first, second = retries.lost(BuilderLost("x")), retries.lost(BuilderLost("x"))
    assert isinstance(first, BuildPause) and isinstance(second, BuildPause) and (first.seconds, second.seconds) == (5.0, 10.0)
    assert retries.lost(BuilderLost("gone")) == BuildBroken(BUILD_LOST, "3 pods in a row were lost; the last one: gone")


def test_a_message_has_the_last_lines_of_a_log() -> None:
    log = "\n".join(f"{'x' * 500} line {number}" for number in range(50))
    shown = last_lines(log)
    assert len(shown) <= 1500 and shown.endswith("x line 49")
    assert last_lines("a \nb\n") == "a\nb"
