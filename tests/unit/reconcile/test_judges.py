"""Test trials whose verifiers call a judge: the tokens of their phases, and the usage of an interrupted verification."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.fake_models import FakeModels, counted
from tests.support.world import CONFIG, SEPARATE, World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, lose_pod

SPEC = {"models": {"judge": {"model": "openai/m", "credentials": [{"name": "OPENAI_API_KEY", "value": "sk-judge"}]}}}


def judged(models: FakeModels, config: Any = CONFIG, **options: Any) -> World:
    return World(trial=manifest({**SPEC, "podCleanup": "Never"}, config), settings=GATEWAY_SETTINGS, models=models, **options)


@pytest.mark.parametrize(("config", "names"), [(CONFIG, "a b c"), (SEPARATE, "a/verifier b/verifier c/verifier")])
async def test_each_verifier_gets_a_token_instead_of_the_key_and_the_usage_is_in_the_status(config: Any, names: str) -> None:
    models = FakeModels({f"1/{name}/judge": counted((100, 10, 5)) for name in names.split()[:2]})
    world = judged(models, config)
    await world.run()
    assert world.condition[0] == "Complete", world.condition
    starts = [each for each in world.runner.requests if each["op"] == "start"]
    given = [each["env"]["OPENAI_API_KEY"] for each in starts if "OPENAI_API_KEY" in each["env"]]
    assert given[-1] == f"OPENAI_API_KEY of {names.split()[-1]}"
    assert models.judged == names.split()
    pods = [each for key, each in world.cluster.objects.items() if key[0] == "Pod"]
    assert pods and "sk-judge" not in str(world.runner.requests) + str(pods)
    assert (models.known[0], models.closed) == ("OPENAI_API_KEY", [f"1/{name}/judge" for name in names.split()])
    used = [each.judge_usage and each.judge_usage.requests for each in world.status.steps]
    assert (used, world.status.usage) == ([1, 1, None], None)
    assert world.status.judge_usage is not None and world.status.judge_usage.cost_usd == 0.5


async def test_without_a_gateway_the_trial_says_what_is_missing() -> None:
    world = World(trial=manifest(SPEC))
    await world.run()
    assert world.condition[:2] == ("Failed", "InvalidSpec")
    assert "spec.models.judge needs the chart's model gateway" in world.condition[2]


async def test_a_lost_verification_blocks_its_token_and_its_usage_is_counted() -> None:
    models = FakeModels({"1/a/judge": counted((100, 10, 5)), "2/a/judge": counted((7, 0, 1))})
    world = judged(models, durations={"a/verifier": 100.0}, happens={50.0: lose_pod})
    await world.run()
    assert world.condition[0] == "Complete", world.condition
    (lost,) = world.status.attempts
    assert [each.judge_usage and each.judge_usage.input_tokens for each in (lost.steps[0], world.status.steps[0])] == [100, 7]
    assert models.closed.index("1/a/judge") < models.closed.index("2/a/judge")


async def test_a_trial_waits_between_two_runs_of_a_verification_and_says_why() -> None:
    unanswered = {"unanswered": {"cause": "Outage", "message": "503 from the provider"}, "at": time.time() + 10**6}
    models = FakeModels({"1/a/judge": {**counted((100, 10, 5)), **unanswered}})
    world = judged(models)
    await world.run(until=lambda: any(each.reason == "JudgeUnanswered" for each in world.status.conditions))
    (shown,) = [each.message for each in world.status.conditions if each.type == "Reconciling"]
    assert shown == "the judge got no answer: 503 from the provider"
    assert (models.judged, world.status.steps[0].phase, world.status.steps[0].rewards) == (["a"], "Verifier", None)
    assert world.status.steps[0].judge_usage is not None


async def test_a_provider_that_fails_in_each_run_excludes_the_trial_and_the_agent_runs_once() -> None:
    failed = {**counted((100, 10, 5)), "unanswered": {"cause": "Outage", "message": "503 from the provider"}}
    names = ["a", *(f"a/{number}" for number in range(2, 7))]
    models = FakeModels({f"1/{name}/judge": failed for name in names})
    world = judged(models)
    await world.run()
    assert world.condition[:2] == ("Failed", "ProviderFailed")
    assert (world.status.outcome, world.status.score, world.status.attempts) == ("Excluded", None, [])
    assert world.status.failure is not None and world.status.failure.class_ == "Provider"
    assert (models.judged, models.lost[5]) == (names, tuple(names[:5]))
    assert world.status.steps[0].judge_usage is not None and world.status.steps[0].judge_usage.requests == 6


@pytest.mark.parametrize(("cause", "outcome"), [("Outage", "Excluded"), ("Left", "AgentError")])
async def test_a_deadline_that_passes_in_an_outage_of_the_judge_excludes_the_trial(cause: str, outcome: str) -> None:
    unanswered = {"unanswered": {"cause": cause, "message": "503 from the provider"}, "at": time.time() + 10**9}
    models = FakeModels({"1/a/judge": {**counted((100, 10, 5)), **unanswered}})
    spec = {**SPEC, "activeDeadlineSeconds": 150}
    world = World(trial=manifest(spec), settings=GATEWAY_SETTINGS, models=models, durations={"a/verifier": 100.0})
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert world.status.outcome == outcome
