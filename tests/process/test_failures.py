"""What a phase does to itself is its own failure (docs/reference/failures.md)."""

from __future__ import annotations

import pytest

from tests.e2e.given import Step, holds, trial
from tests.support.process_world import Trials as Given

STOP = "#!/bin/sh\nkill -SEGV 1; sleep 30\n"  # the kernel ignores SIGKILL from inside a container to its PID 1

STEPS: dict[str, tuple[Step, str, str, str, str]] = {  # failing step; failure class, exception type, phase, part of the message
    "setup": (Step("b", setup="echo no database >&2; exit 3\n"), "Task", "RuntimeError", "setup", "no database"),
    "healthcheck": (
        Step("b", config={"healthcheck": {"command": "echo closed; exit 1", "interval_sec": 0.1, "retries": 2}}),
        "Task", "HealthcheckError", "healthcheck", "closed",
    ),
    "agent's limit": (
        Step("b", solve="#!/bin/sh\nsleep 600\n", config={"agent": {"timeout_sec": 1.0}}),
        "Agent", "AgentTimeoutError", "agent", "1 s",
    ),
    "agent stops process 1": (Step("b", solve=STOP), "Agent", "ContainerKilledError", "agent", "stopped process 1"),
    "no reward": (Step("b", test="#!/bin/sh\necho forgot\n"), "Verifier", "RewardFileNotFoundError", "verifier", "forgot"),
    "verifier's limit": (
        Step("b", test="#!/bin/sh\nsleep 600\n", config={"verifier": {"timeout_sec": 1.0}}),
        "Verifier", "VerifierTimeoutError", "verifier", "1 s",
    ),
    "verifier stops process 1": (Step("b", test=STOP), "Verifier", "ContainerKilledError", "verifier", "stopped process 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
async def test_what_a_phase_does_to_itself_is_its_own_failure_and_is_not_tried_again(given: Given, name: str) -> None:
    step, failure_class, type_, phase, output = STEPS[name]
    done = await given.ended(trial(Step("a"), step, Step("c")))
    status = done["status"]
    verdicts = 2 if type_ == "AgentTimeoutError" else 1  # steps with reward 1: a, and b if its agent timed out
    wanted = {"class": failure_class, "reason": type_, "step": "b"}
    assert holds(done, "Complete") and status["failure"] == wanted, status
    assert status["score"] == pytest.approx(verdicts / 3), status
    exception = status["steps"][-1]["exception"]
    assert (exception["type"], exception["phase"]) == (type_, phase) and output in exception["message"], exception
    assert [each["name"] for each in status["steps"]] == ["a", "b"] and status["steps"][0]["rewards"] == {"reward": 1.0}
    assert status["attempt"] == 1 and not status.get("attempts")
