"""Test trials with a simulated user: the tokens of agent and user, and their usage apart, also of an interrupted step."""

from __future__ import annotations

import json
from typing import Any

from multistep.engine.plan.task_steps import SINGLE_STEP as STEP
from tests.support.fake_models import FakeModels, counted, failed
from tests.support.played import ONE, outcome
from tests.support.world import World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, lose_pod

KEY = [{"name": "OPENAI_API_KEY", "value": "sk-agent"}]
SPEC = {
    "agent": {"name": "codex", "model": "openai/m", "credentials": KEY},
    "models": {"user": {"name": "terminus-2", "model": "openai/u", "credentials": [{**KEY[0], "value": "sk-user"}]}},
}
TASK = {"environment": {"docker_image": "img"}}
FILES = {"instruction.md": "help\n", "tests/test.sh": "true\n"}


def talking(models: FakeModels, result: Any = None, seconds: float = 100.0, spec: Any = None, **options: Any) -> World:
    results = {"/host/agent-setup": outcome(), f"{STEP}/host/agent": result or outcome(), f"{STEP}/verifier": ONE}
    durations = {f"{STEP}/host/agent": seconds}
    trial = manifest({**SPEC, "infrastructureRetries": 1, **(spec or {})}, TASK, FILES)
    return World(trial=trial, settings=GATEWAY_SETTINGS, models=models, results=results, durations=durations, **options)


async def test_each_role_has_a_token_of_its_own_and_its_usage_is_apart() -> None:
    models = FakeModels({f"1/{STEP}": counted((100, 10, 5)), f"1/{STEP}/user": counted((7, 0, 3))})
    world = talking(models)
    await world.run()
    assert world.condition[0] == "Complete", world.condition
    sent = [json.loads(each["stdin"]) for each in world.runner.requests if "stdin" in each]
    given = [(each["env"]["OPENAI_API_KEY"], each["user"]["env"]["OPENAI_API_KEY"]) for each in sent]
    assert given == [("token of /setup", f"user token of {STEP}"), (f"token of {STEP}", f"user token of {STEP}")]
    assert "sk-user" not in str(sent)
    assert models.closed == ["1//setup", f"1/{STEP}", f"1/{STEP}/user"]
    status = world.status
    assert status.usage is not None and status.user_usage is not None and status.user_usage == status.steps[0].user_usage
    assert (status.usage.input_tokens, status.user_usage.input_tokens, status.judge_usage) == (100, 7, None)


async def test_a_failure_of_the_users_provider_loses_the_attempt_and_its_usage_is_counted() -> None:
    models = FakeModels({f"1/{STEP}/user": failed("Provider"), f"2/{STEP}/user": counted((7, 0, 3))})
    world = talking(models, outcome(error=("NonZeroAgentExitCodeError", "1")))
    await world.run()
    (lost,) = world.status.attempts
    assert lost.reason == "ProviderFailed"
    assert [each.user_usage and each.user_usage.input_tokens for each in (lost.steps[0], world.status.steps[0])] == [1, 7]


async def test_a_conversation_that_loses_its_pod_blocks_both_tokens_and_its_usage_is_counted() -> None:
    models = FakeModels({f"1/{STEP}": counted((100, 10, 5)), f"1/{STEP}/user": counted((7, 0, 3))})
    world = talking(models, happens={50.0: lose_pod})
    await world.run()
    assert world.condition[0] == "Complete", world.condition
    step = world.status.attempts[0].steps[0]
    assert step.usage is not None and step.user_usage is not None
    assert (step.usage.input_tokens, step.user_usage.input_tokens) == (100, 7)
    assert models.closed[1:3] == [f"1/{STEP}", f"1/{STEP}/user"]


async def test_a_deadline_that_the_users_provider_used_up_is_the_providers() -> None:
    models = FakeModels({f"1/{STEP}": counted((100, 10, 5)), f"1/{STEP}/user": failed("Provider")})
    world = talking(models, seconds=5000.0, spec={"activeDeadlineSeconds": 1000})
    await world.run()
    assert world.condition[:2] == ("Failed", "ProviderFailed"), world.condition
    assert (world.status.outcome, world.status.score) == ("Excluded", None)
