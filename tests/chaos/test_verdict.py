"""Test that the verdict reports each kind of problem."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from multistep.engine.lifecycle.decisions import FailAttempt
from tests.chaos.injector import DeletedPod
from tests.chaos.outside import Line, OutsideLog
from tests.chaos.trials import FIRST_TARGET, NAMES, PHASES, RETRIES
from tests.chaos.verdict import Evidence, problems_of
from tests.e2e.given import Object
from tests.unit.engine.lifecycle_cases import after, began, ended

NAME = "chaos-7"


def steps(count: int = 3) -> list[Object]:
    return [{"name": name, "completionTime": "2026", "rewards": {"reward": 7.0}} for name in NAMES[:count]]


def failed_attempt(number: int, reached: list[Object] | None = None, reason: str = "PodDeleted") -> Object:
    return {"number": number, "reason": reason, "message": "it went", "steps": reached or []}


def install_failed(exit_code: int, exit_reason: str) -> Object:
    decision = after(began(), ended(exit_code, exit_reason, init_failed=True))
    assert isinstance(decision, FailAttempt) and decision.reason == "RunnerInstallFailed"
    return {**failed_attempt(1, reason=decision.reason), "message": decision.message}


def complete(**changes: Any) -> Object:
    status = {"conditions": [{"type": "Complete", "status": "True"}], "attempt": 1, "rewards": {"reward": 7.0}, "steps": steps()}
    return {"metadata": {"name": NAME}, "status": {**status, **changes}}


def failed(attempts: list[Object], name: str = NAME, **changes: Any) -> Object:
    conditions = [{"type": "Failed", "status": "True", "reason": attempts[-1]["reason"], "message": ""}]
    status = {"conditions": conditions, "attempt": len(attempts), "attempts": attempts, "steps": []}
    return {"metadata": {"name": name}, "status": {**status, **changes}}


def logged(pod: str, count: int = len(PHASES)) -> list[Line]:
    return [Line(pod, step, phase) for step, phase in PHASES[:count]]


def judged(found: Object, lines: list[Line], *deleted: int, killed: str = "") -> str:
    name = found["metadata"]["name"]
    return "\n".join(problems_of(found, Evidence(OutsideLog(lines), {DeletedPod(name, number) for number in deleted}, {killed})))


def test_a_trial_that_ran_once_is_right() -> None:
    assert judged(complete(), logged("chaos-7-1")) == ""


def test_so_is_one_that_was_verified_apart() -> None:
    lines = [Line(f"chaos-7-1-v{NAMES.index(s)}" if p == "verifier" else "chaos-7-1", s, p) for s, p in PHASES]
    assert judged(complete(), lines) == ""


def test_so_is_one_that_lost_an_attempt_whose_pod_was_deleted() -> None:
    running = [*steps(1), {"name": "two", "phase": "Agent"}]
    found = complete(attempt=2, attempts=[failed_attempt(1, running)])
    assert judged(found, logged("chaos-7-1", 5) + logged("chaos-7-2"), 1) == ""
    assert (
        judged(found, logged("chaos-7-1", 4) + logged("chaos-7-2"), 1) == ""
    )  # no problem: the status showed the phase, but the pod was deleted before the phase could log its line


def test_so_is_one_that_failed_because_all_its_pods_were_deleted() -> None:
    assert judged(failed([failed_attempt(number) for number in range(1, RETRIES + 2)]), [], *range(1, RETRIES + 2)) == ""
    assert judged(failed([failed_attempt(1), failed_attempt(2)], name=FIRST_TARGET), [], 1, 2) == ""


def resumed(*attempts: int) -> Object:
    return {"resumed": {"after": NAMES[len(attempts) - 1], "attempts": list(attempts), "digest": "d"}}


def test_so_is_one_that_continued_after_checkpoints() -> None:
    former = [failed_attempt(1, steps(1)), {**failed_attempt(2, steps(2)), **resumed(1)}]
    found = complete(attempt=3, attempts=former, **resumed(1, 2))
    lines = logged("chaos-7-1", 3) + logged("chaos-7-2")[3:7] + logged("chaos-7-3")[6:]
    assert judged(found, lines, 1, 2) == ""


def test_a_kept_step_that_ran_again_or_never_finished_is_found() -> None:
    found = complete(attempt=2, attempts=[failed_attempt(1, steps(1))], **resumed(1))
    assert "attempt 2 logged" in judged(found, logged("chaos-7-1", 3) + logged("chaos-7-2"), 1)
    lines = logged("chaos-7-1", 2) + logged("chaos-7-2")[3:]
    assert "attempt 2 kept step one, which attempt 1 did not finish" in judged(found, lines, 1)


@pytest.mark.parametrize("rewards", [None, {"reward": -1.0}, {"reward": 0.0}, {"reward": 7.0, "more": 1.0}])
def test_a_wrong_reward_is_found(rewards: Any) -> None:
    assert "not {'reward': 7.0}" in judged(complete(rewards=rewards), logged("chaos-7-1"))


def test_a_missing_or_wrong_step_is_found() -> None:
    assert "Complete with steps" in judged(complete(steps=steps(2)), logged("chaos-7-1"))
    wrong = steps()
    wrong[1]["rewards"] = {"reward": -1.0}
    assert "Complete with steps" in judged(complete(steps=wrong), logged("chaos-7-1"))


def test_a_phase_that_started_twice_in_an_attempt_is_found() -> None:
    for at in range(len(PHASES)):
        lines = logged("chaos-7-1")
        assert "attempt 1 logged" in judged(complete(), [*lines, lines[at]])


def test_a_phase_that_never_started_is_found() -> None:
    for at in range(len(PHASES)):
        lines = logged("chaos-7-1")
        del lines[at]
        assert "attempt 1 logged" in judged(complete(), lines)


def test_a_lost_attempt_whose_log_has_less_than_its_status_is_found() -> None:
    found = complete(attempt=2, attempts=[failed_attempt(1, steps(1))])
    assert "logged only" in judged(found, logged("chaos-7-1", 2) + logged("chaos-7-2"), 1)
    verifying = [*steps(1), {"name": "two", "phase": "Verifier"}]
    found = complete(attempt=2, attempts=[failed_attempt(1, verifying)])
    assert "logged only" in judged(found, logged("chaos-7-1", 4) + logged("chaos-7-2"), 1)


def test_an_attempt_that_was_lost_although_no_pod_was_deleted_is_found() -> None:
    found = complete(attempt=2, attempts=[failed_attempt(1)])
    assert "none of its pods was deleted" in judged(found, logged("chaos-7-2"))
    assert "none of its pods was deleted" in judged(found, logged("chaos-7-2"), 2)


def test_an_untrue_reason_of_a_loss_is_found() -> None:
    found = complete(attempt=2, attempts=[failed_attempt(1, reason="ContainerEnded")])
    assert "the kubelet ended none of its pods" in judged(found, logged("chaos-7-2"), 1, killed="chaos-7-2")
    assert judged(found, logged("chaos-7-2"), killed="chaos-7-1") == judged(found, logged("chaos-7-2"), killed="chaos-7-1-v2") == ""
    found = complete(attempt=2, attempts=[failed_attempt(1, reason="Evicted")])
    assert "without a cause" in judged(found, logged("chaos-7-2"), 1, killed="chaos-7-1")


def test_an_init_container_with_an_unknown_end_is_a_cause_and_one_that_failed_is_none() -> None:
    """The verdict reads the exit status from a failure's message, so the test takes messages from the operator's own code."""
    unseen, broken = (install_failed(code, reason) for code, reason in ((255, "Unknown"), (1, "Error")))
    assert judged(complete(attempt=2, attempts=[unseen]), logged("chaos-7-2")) == ""
    assert "without a cause" in judged(complete(attempt=2, attempts=[broken]), logged("chaos-7-2"))


def test_a_failure_with_a_retry_left_is_found() -> None:
    assert "Failed with PodDeleted" in judged(
        failed([failed_attempt(number) for number in range(1, RETRIES + 1)]), [], *range(1, RETRIES + 1)
    )


def test_a_failure_for_another_reason_than_its_losses_is_found() -> None:
    found = failed([failed_attempt(1), failed_attempt(2)], name=FIRST_TARGET)
    found["status"]["conditions"][0]["reason"] = "EnvironmentFailed"
    assert "Failed with EnvironmentFailed" in judged(found, [], 1, 2)


def test_a_failed_trial_with_a_reward_is_found() -> None:
    attempts = [failed_attempt(number) for number in range(1, RETRIES + 2)]
    rewards: list[dict[str, Any]] = [{"rewards": {}}, {"rewards": {"reward": 0.0}}]
    for reward in rewards:
        assert "has rewards" in judged(failed(copy.deepcopy(attempts), **reward), [], *range(1, RETRIES + 2))


def test_a_failed_trial_without_any_attempt_on_record_is_found() -> None:
    found = failed([failed_attempt(1)])
    del found["status"]["attempts"]
    assert "after []" in judged(found, [])


def test_a_pod_that_no_attempt_had_is_found() -> None:
    assert "pods of no attempt" in judged(complete(), logged("chaos-7-1") + logged("chaos-7-2", 1))


def test_another_trial_of_a_similar_name_is_not_mistaken_for_it() -> None:
    assert judged(complete(), logged("chaos-7-1") + logged("chaos-77-1") + logged("chaos-77-2")) == ""
