"""Test how trials end: each kind of failure, with a message that states what to do. A real runner runs the phases."""

from __future__ import annotations

import asyncio

from tests.e2e.given import Step, condition, holds, reward, trial
from tests.support.process_world import Trials as Given


async def test_a_trial_runs_its_steps_in_order_and_reports_their_rewards(given: Given) -> None:
    steps = [
        Step("one", solve="#!/bin/sh\necho 1 > /tmp/one\n", test=reward(0.5)),
        Step("two", test="#!/bin/sh\ntest -f /tmp/one && echo 1 > /logs/verifier/reward.txt\n"),
    ]
    done = await given.ended(trial(*steps))
    status = done["status"]
    assert holds(done, "Complete") and holds(done, "Ready") and not holds(done, "Reconciling")
    assert [(each["name"], each["rewards"]) for each in status["steps"]] == [("one", {"reward": 0.5}), ("two", {"reward": 1.0})]
    assert status["rewards"] == {"reward": 0.75}
    assert (status["phase"], status["attempt"], status["isolation"]) == ("Complete", 1, "Shared")
    assert status["startTime"] <= status["completionTime"]
    await given.without_pods(done["metadata"]["name"])


async def test_a_failing_healthcheck_reports_attempts_and_output(given: Given) -> None:
    check = {"command": "echo port closed; exit 1", "interval_sec": 0.1, "retries": 2}
    done = await given.ended(trial(Step("a", config={"healthcheck": check}), Step("b")))
    exception = done["status"]["steps"][0]["exception"]
    assert (
        exception["type"] == "HealthcheckError" and "2 attempts" in exception["message"] and "port closed" in exception["message"]
    )
    assert len(done["status"]["steps"]) == 1 and "rewards" not in done["status"]


async def test_an_agent_past_its_limit_is_stopped_verified_and_the_trial_aborted(given: Given) -> None:
    slow = Step("slow", solve="#!/bin/sh\nsleep 600\n", config={"agent": {"timeout_sec": 1.0}})
    done = await given.ended(trial(slow, Step("next")))
    step = done["status"]["steps"][0]
    assert step["exception"]["type"] == "AgentTimeoutError" and "1 s" in step["exception"]["message"]
    assert step["rewards"] == {"reward": 1.0} and len(done["status"]["steps"]) == 1


async def test_after_an_agent_error_the_trial_continues_with_on_agent_error_continue(given: Given) -> None:
    fails = {"name": "command", "command": ["sh", "-c", 'grep -q one "$MULTISTEP_INSTRUCTION_FILE" && exit 4; true']}
    done = await given.ended(trial(Step("one"), Step("two"), agent=fails, onAgentError="Continue"))
    steps = done["status"]["steps"]
    assert steps[0]["exception"]["type"] == "NonZeroAgentExitCodeError" and "status 4" in steps[0]["exception"]["message"]
    assert "exception" not in steps[1] and done["status"]["rewards"] == {"reward": 1.0}


async def test_a_gate_that_is_not_met_stops_the_trial_without_an_error(given: Given) -> None:
    done = await given.ended(trial(Step("a", test=reward(0.4), config={"min_reward": 0.5}), Step("b")))
    step = done["status"]["steps"][0]
    assert holds(done, "Complete") and step["gate"] is False and "exception" not in step
    assert "min_reward 0.5" in condition(done, "Complete")["message"] and done["status"]["rewards"] == {"reward": 0.4}


async def test_a_malformed_task_is_refused_naming_the_field(given: Given) -> None:
    done = await given.ended(trial(Step("a", config={"min_reward": [1]}), Step("b", config={"healthcheck": {}})))
    failed = condition(done, "Failed")
    assert failed["reason"] == "InvalidSpec" and holds(done, "Stalled")
    assert "steps[0].min_reward" in failed["message"] and "steps[1].healthcheck.command" in failed["message"]
    assert not await given.pods(done["metadata"]["name"])


async def test_no_failure_harms_another_trial(given: Given) -> None:
    bad = [
        trial(Step("a", setup="exit 1\n")),
        trial(Step("a", test=None)),
        trial(Step("a", solve="#!/bin/sh\nkill -9 -1; sleep 60\n", config={"agent": {"timeout_sec": 2.0}})),
    ]
    good = [trial(Step("a", test=reward(0.25))) for _ in range(3)]
    for manifest in bad:
        await given.applied(manifest)
    ended = await asyncio.gather(*(given.ended(manifest) for manifest in good))
    assert [each["status"]["rewards"] for each in ended] == [{"reward": 0.25}] * 3


async def test_whatever_a_task_prints_or_is_called_the_status_can_be_written(given: Given) -> None:
    loud = "#!/bin/bash\nprintf '\\xf0\\x9f\\x8e\\x89 \\x1b[31m \\xc2\\x85 \\xff\\xfe \\x7f' >&2; exit 3\n"
    keys = """#!/bin/sh\necho '{"\\ud83c\\udf89": 1, "\\ud800": 0.5, "reward": 1}' > /logs/verifier/reward.json\n"""
    done = await given.ended(trial(Step("party 🎉", test=keys), Step("loud", setup=loud)))
    steps = done["status"]["steps"]
    assert steps[0]["rewards"]["reward"] == 1 and steps[0]["rewards"]["🎉"] == 1
    assert steps[1]["exception"]["type"] == "RuntimeError" and "🎉" in steps[1]["exception"]["message"]
