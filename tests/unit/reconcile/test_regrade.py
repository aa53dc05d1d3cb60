"""Regrades: the steps of another trial are verified again, on its checkpoints, without an agent."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import joined
from multistep.api.trial.trial import KIND
from multistep.engine.journal.operations import place_of
from multistep.pods import pod_identity
from tests.support.fake_models import FakeModels, counted
from tests.support.fake_volume import FakeVolume
from tests.support.played import rewarded
from tests.support.world import CONFIG, FILES, KEY, MIXED, REWARDS, Source, World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, end_container, lose_pod

KEEP: dict[str, Any] = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}}
REGRADE: dict[str, Any] = {"regrade": {"trial": "source"}, "agent": {"name": "nop"}}
SINGLE: Any = {"environment": {"docker_image": "img"}}
ONE_STEP = {"instruction.md": "do it\n", "tests/test.sh": "true\n", "solution/solve.sh": "true\n"}
APART = {f"{step}/verifier/verifier": result for step, result in REWARDS.items()}


async def source(spec: Mapping[str, Any] | None = None, config: Any = None, **options: Any) -> Source:
    return await Source.ran(trial=manifest({**KEEP, **(spec or {})}, config=config, files={**FILES, **ONE_STEP}), **options)


async def regraded(of: Source, spec: Mapping[str, Any] | None = None, config: Any = None, **options: Any) -> World:
    made = manifest({**REGRADE, **(spec or {})}, config=config, files={**FILES, **ONE_STEP})
    world = World(trial=made, source=of, **options)
    await world.run()
    return world


def ended(found: Mapping[str, Any]) -> Any:
    """Return the parts of a trial's status that a verification determines."""
    found = joined(TrialStatus, found)
    steps = [{key: each.get(key) for key in ("name", "rewards", "gate", "exception")} for each in found["steps"]]
    return steps, *(found.get(key) for key in ("rewards", "exception", "failure", "score", "passed", "outcome"))


def result_of(world_results: Any) -> Any:
    found = json.loads(world_results.files["result.json"])
    steps = [(each["step_name"], each["verifier_result"]) for each in found["step_results"] or []]
    return found["verifier_result"], steps


SOURCES: Mapping[str, Any] = {
    "all steps": {},
    "a gate that is not met": {"results": {"a/verifier": rewarded(txt="0.25")}},
    "an agent at its timeout": {
        "spec": {"onAgentError": "Continue"},
        "results": {"b/agent": {"timedOut": True, "exitCode": None}},
    },
    "an agent that failed": {
        "spec": {"agent": {"name": "command", "command": ["x"]}, "onAgentError": "Abort"},
        "results": {"b/agent": {"exitCode": 3}},
    },
    "a setup that failed": {"results": {"a/setup": {"exitCode": 1}}},
    "a verifier that failed": {"results": {"b/verifier": rewarded()}},
    "a reward that is no number of 64 bits": {
        "results": {"a/verifier": rewarded(json='{"reward": 0.1, "x": 0.30000000000000004}')}
    },
    "a single step": {"config": SINGLE, "results": {"task/verifier": rewarded(txt="0.1")}},
    "a single step at its timeout": {
        "config": SINGLE,
        "results": {"task/agent": {"timedOut": True, "exitCode": None}, "task/verifier": rewarded(txt="1")},
    },
    "verified in restored environments": {"spec": {"verifier": {"isolation": "Separate", "paths": ["/app"]}}},
}


def true_condition(found: Mapping[str, Any]) -> tuple[str, str, str]:
    each = next(each for each in found["status"]["conditions"] if each["status"] == "True" and each["type"] != "Ready")
    return each["type"], each["reason"], each["message"]


async def source_and_regrade(made: Mapping[str, Any], **options: Any) -> tuple[Source, World]:
    """Run a source trial, and regrade it with the same tests. made: arguments of ``source``, by name."""
    given = dict(made)
    config, spec = given.pop("config", CONFIG), given.pop("spec", {})
    of = await source(spec, config, **given)
    results = {id.replace("/verifier", "/verifier/verifier"): each for id, each in given.get("results", {}).items()}
    kept = {key: each for key, each in spec.items() if key != "agent"}
    return of, await regraded(of, kept, config, results=results, **options)


@pytest.mark.parametrize("made", SOURCES.values(), ids=SOURCES)
async def test_unchanged_tests_give_the_same_results(made: Mapping[str, Any]) -> None:
    of, world = await source_and_regrade(made)
    assert world.condition == true_condition(of.trial) and world.errors == []
    assert ended(world.object["status"]) == ended(of.trial["status"])
    assert result_of(world.kept) == result_of(pickle.loads(of.results))


async def test_no_agent_runs_and_each_step_is_verified_on_the_files_that_the_agent_left() -> None:
    _, world = await source_and_regrade({})
    keeper, *verifiers = world.cluster.runners.values()
    assert {each["op"] for each in keeper.requests} <= {"hello", "note", "ack"}
    assert [[id for id in each.restored if id.endswith("/agent")] for each in verifiers] == [
        ["1/a/agent"],
        ["1/a/agent", "1/b/agent"],
        ["1/a/agent", "1/b/agent", "1/c/agent"],
    ]
    started = [[id for id in each.starts if place_of(id) != "verifier" or id.endswith("/verifier/verifier")] for each in verifiers]
    assert started == [[f"1/{step}/verifier/verifier"] for step in "abc"]


def judged_by(model: str) -> dict[str, Any]:
    judge = {"model": model, "credentials": [{"name": "OPENAI_API_KEY", "value": "sk"}]}
    return {"models": {"judge": judge}, "verifier": {"env": [{"name": "MODEL_NAME", "value": model}]}}


async def test_another_judge_grades_the_files_that_the_agent_left() -> None:
    former, models = FakeModels(), FakeModels({"1/a/verifier/judge": counted((100, 10, 5))})
    of = await source(judged_by("openai/former"), CONFIG, settings=GATEWAY_SETTINGS, models=former)
    results = {**APART, "b/verifier/verifier": rewarded(txt="0.25")}
    world = await regraded(of, judged_by("openai/other"), CONFIG, results=results, settings=GATEWAY_SETTINGS, models=models)
    assert (former.judged, models.judged) == (["a", "b", "c"], ["a/verifier", "b/verifier", "c/verifier"])
    assert world.status.steps[1].rewards == {"reward": 0.25}
    assert world.status.judge_usage is not None and world.status.judge_usage.input_tokens == 100
    starts = [each for runner in world.cluster.runners.values() for each in runner.requests if each["op"] == "start"]
    asked = [each["env"]["MODEL_NAME"] for each in starts if "OPENAI_API_KEY" in each["env"]]
    assert asked == ["openai/other"] * 3


async def test_an_outage_of_the_other_judges_provider_is_no_verdict() -> None:
    of = await source(judged_by("openai/former"), CONFIG, settings=GATEWAY_SETTINGS, models=FakeModels())
    outage = {**counted((100, 10, 5)), "unanswered": {"cause": "Outage", "message": "503 from the provider"}}
    runs = ["a/verifier", *(f"a/verifier/{number}" for number in range(2, 7))]
    models = FakeModels({f"1/{name}/judge": outage for name in runs})
    world = await regraded(of, judged_by("openai/other"), CONFIG, results=APART, settings=GATEWAY_SETTINGS, models=models)
    assert world.condition[:2] == ("Failed", "ProviderFailed")
    assert (models.judged, world.status.outcome, world.status.score) == (runs, "Excluded", None)


async def test_the_trials_own_pod_has_no_resources_of_the_task_and_no_agent_host() -> None:
    config = {**CONFIG, "environment": {**CONFIG["environment"], "cpus": 4, "memory_mb": 9000}}
    of = await source({}, config)
    made = World(trial=manifest(REGRADE, config=config), source=of, durations={"a/verifier/verifier": 9.0})
    await made.run(until=lambda: len(made.pods) == 2)
    own, verifier = (made.cluster.objects["Pod", "default", name] for name in ("t-1", "t-1-v0"))
    assert [each["name"] for each in own["spec"]["containers"]] == ["main"]
    assert own["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "10m", "memory": "16Mi"}}
    assert own["metadata"]["labels"][pod_identity.LABEL_ROLE] == "records"
    assert "--checkpoints" not in own["spec"]["containers"][0]["command"]
    assert verifier["spec"]["containers"][0]["resources"]["limits"]["memory"] == "9000Mi"


async def test_the_source_stays_as_it_is_and_the_copies_are_deleted() -> None:
    of, world = await source_and_regrade({})
    assert isinstance(world.volume, FakeVolume)
    assert pickle.dumps(world.volume.results["source-uid"].checkpoints) == pickle.dumps(pickle.loads(of.results).checkpoints)
    assert world.cluster.objects[KIND, "default", "source"]["status"] == of.trial["status"]
    assert world.kept.checkpoints == {} and not world.kept.retained


async def test_the_new_results_name_both_trials_and_their_digests() -> None:
    of = await source()
    files = {**FILES, **ONE_STEP, "steps/b/tests/test.sh": "exit 1\n"}
    world = World(trial=manifest(REGRADE, files=files), source=of)
    await world.run()
    status, former = world.status, of.trial["status"]
    assert status.regraded is not None and (status.regraded.trial, status.regraded.uid) == ("source", "source-uid")
    stored = [each["checkpoint"]["digest"] for each in former["steps"]]
    assert [each.checkpoint for each in status.regraded.steps] == stored
    assert [each.checkpoint and each.checkpoint.digest for each in status.steps] == stored
    before, now = pickle.loads(of.results).evidence["predicate"], world.kept.evidence["predicate"]
    assert now["regraded"]["task"] == {"digest": before["task"]["digest"]} != {"digest": now["task"]["digest"]}
    changed = [a["tests"] != b["tests"] for a, b in zip(now["regraded"]["steps"], now["steps"], strict=True)]
    assert changed == [False, True, False]
    assert [each["tests"] for each in now["regraded"]["steps"]] == [each["tests"] for each in before["steps"]]
    result = json.loads(world.kept.files["result.json"])
    assert result["regraded"]["uid"] == "source-uid" and result["agent_info"] == {
        **json.loads(pickle.loads(of.results).files["result.json"])["agent_info"],
    }


async def test_changed_tests_give_other_rewards() -> None:
    of = await source()
    world = await regraded(of, results={**APART, "c/verifier/verifier": rewarded(txt="1")})
    assert [each.rewards for each in world.status.steps] == [{"reward": 1.0}, {"reward": 0.5, "style": 1}, {"reward": 1.0}]
    assert world.status.rewards != of.trial["status"]["rewards"]


async def test_a_regrade_that_continues_where_its_source_stopped_has_no_reward() -> None:
    of = await source(results={"a/verifier": rewarded(txt="0.25")})
    world = await regraded(of, results={"a/verifier/verifier": rewarded(txt="1")})
    why = "step a lets the trial continue, but trial source ended before step b: it has no files of that step to verify"
    assert world.condition == ("Failed", "RegradeIncomplete", why)
    assert [(each.name, each.rewards) for each in world.status.steps] == [("a", {"reward": 1.0})]
    assert world.status.rewards is None and world.status.failure is not None
    assert (world.status.failure.class_, world.status.score) == ("Configuration", None)


async def test_a_deleted_source_is_regraded_from_its_results() -> None:
    options: Any = {
        "spec": {"onAgentError": "Continue"},
        "results": {"b/agent": {"timedOut": True, "exitCode": None}},
    }
    of = await source(options["spec"], results=options["results"])
    world = World(trial=manifest({**REGRADE, **options["spec"]}, files={**FILES, **ONE_STEP}), source=of)
    world.cluster.remove(KIND, "default", "source")
    await world.run()
    assert world.condition[0] == "Complete" and world.status.rewards == of.trial["status"]["rewards"]
    exceptions = [each.exception and (each.exception.type, each.exception.phase) for each in world.status.steps]
    assert exceptions == [None, ("AgentTimeoutError", "agent"), None]


async def test_a_source_that_is_deleted_during_the_regrade_does_no_harm() -> None:
    of = await source()
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of, durations={"a/verifier/verifier": 9.0})
    await world.run(until=lambda: len(world.pods) == 2)
    world.cluster.remove(KIND, "default", "source")
    assert isinstance(world.volume, FakeVolume)
    del world.volume.results["source-uid"]
    await world.run()
    assert world.condition[0] == "Complete" and world.status.rewards == of.trial["status"]["rewards"]


async def test_a_regrade_waits_until_its_source_is_finished() -> None:
    of = await Source.ran(trial=manifest(KEEP), durations={"b/agent": 100.0}, until=lambda world: world.status.current_step == "b")
    world = World(trial=manifest(REGRADE), source=of)
    await world.run(until=lambda: len(world.waits) > 3)
    assert world.condition == ("Reconciling", "SourceActive", "trial source is to be regraded and is not finished")
    assert world.pods == [] and set(world.waits) == {10.0}
    (await source()).put_into(world)
    await world.run()
    assert world.condition[0] == "Complete"


def without_checkpoint(found: Any) -> None:
    del found["status"]["steps"][1]["checkpoint"]


def too_large(found: Any) -> None:
    found["status"]["steps"][1]["checkpoint"] = {"missing": "TooLarge: more than 7 bytes"}


def edited(found: Any) -> None:
    found["status"]["steps"][1]["checkpoint"]["digest"] = "0" * 64


def is_a_regrade(found: Any) -> None:
    found["spec"]["regrade"] = {"trial": "first"}


def has_failed(found: Any) -> None:
    now = found["status"]["conditions"][0]
    found["status"]["conditions"] = [{**now, "type": "Failed", "status": "True", "reason": "NodeLost"}]


def other_steps(found: Any) -> None:
    found["status"]["steps"][1]["name"] = "x"


def ran_nothing(found: Any) -> None:
    found["status"]["steps"] = []


HINT = "; only a trial that ran with `checkpoints: {policy: AfterStep, keep: WithResults}` can be regraded"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_checkpoint, f"trial source has no checkpoint after step b{HINT}"),
        (too_large, f"trial source has no checkpoint after step b: TooLarge: more than 7 bytes{HINT}"),
        (edited, f"the checkpoint of trial source after step b was deleted or changed{HINT}"),
        (is_a_regrade, "trial source is itself a regrade, of trial first: regrade that one"),
        (has_failed, "trial source is Failed (NodeLost), so there is no result to regrade"),
        (other_steps, "trial source ran the steps a, x, c, and the task has a, b, c"),
        (ran_nothing, "trial source ran no step"),
    ],
)
async def test_a_trial_that_cannot_be_regraded_is_refused_by_name_before_any_pod(change: Any, message: str) -> None:
    of = await source()
    change(of.trial)
    world = await regraded(of)
    assert world.condition == ("Failed", "RegradeImpossible", message)
    assert world.cluster.runners == {} and world.status.failure is not None
    assert (world.status.failure.class_, world.status.score) == ("Configuration", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "other",
            "trial other does not exist, and there are no kept results with evidence of exactly one deleted trial of this name",
        ),
        ("t", "a trial cannot regrade itself"),
    ],
)
async def test_a_source_that_cannot_be_one_is_refused_by_name(name: str, message: str) -> None:
    world = await regraded(await source(), {"regrade": {"trial": name}})
    assert world.condition == ("Failed", "RegradeImpossible", message)


async def test_a_source_that_is_scored_although_its_container_was_killed_keeps_its_score() -> None:
    of = await source(durations={"b/agent": 100.0}, happens={50.0: end_container})
    former = of.trial["status"]
    assert former["failure"]["reason"] == "ContainerKilledError" and former["score"] is not None
    world = await regraded(of)
    assert world.condition == ("Failed", "RegradeImpossible", f"trial source has no checkpoint after step b{HINT}")
    now = world.status.failure
    assert now is not None and (now.class_, now.step) == ("Agent", "b")
    assert (world.status.score, world.status.passed, world.status.outcome) == (former["score"], False, "AgentError")
    assert [each.exception and each.exception.type for each in world.status.steps] == [None, "ContainerKilledError"]


@pytest.mark.parametrize("deleted", [False, True], ids=["that exists", "that was deleted"])
async def test_a_source_that_failed_by_its_agent_keeps_its_class_and_score(deleted: bool) -> None:
    def kill_sessions(world: World) -> None:
        world.runner.killed = 10**6

    of = await source(durations={"b/agent": 100.0}, happens={50.0: kill_sessions})
    former = of.trial["status"]
    assert (former["failure"]["reason"], former["failure"]["class"], former["score"]) == ("ExecSessionsKilled", "Agent", 0)
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of)
    if deleted:
        world.cluster.remove(KIND, "default", "source")
    await world.run()
    assert world.condition[1] == "RegradeImpossible" and world.status.failure is not None
    assert (world.status.failure.class_, world.status.failure.step) == ("Agent", former["failure"]["step"])
    assert (world.status.score, world.status.passed, world.status.outcome) == (0, False, "AgentError")
    assert [each.kind for each in world.status.tampering] == ["ExecSessionsKilled"]


async def test_a_step_that_declares_a_separate_environment_is_refused_by_name() -> None:
    world = await regraded(await source({}, MIXED), config=MIXED)
    assert world.condition[:2] == ("Failed", "InvalidSpec")
    assert world.condition[2].endswith("step a is verified on artifacts, not on a checkpoint")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"agent": {"name": "oracle"}}, "regrade runs no agent: agent.name must be nop"),
        ({"verifier": {"disable": True}}, "verifier.disable must not be true with regrade, which only verifies"),
        ({"fromStep": "b"}, "from and fromStep must not be set with regrade"),
        ({"from": {"trial": "other", "step": "a"}}, "from and fromStep must not be set with regrade"),
    ],
)
async def test_a_regrade_with_an_agent_a_start_or_without_verification_is_rejected(spec: Any, message: str) -> None:
    world = await regraded(await source(), spec)
    assert world.condition[1] == "InvalidSpec" and message in world.condition[2]


async def test_what_was_found_in_the_sources_environment_stays_known() -> None:
    of = await source()
    found = {"attempt": 1, "step": "a", "kind": "SystemFileChanged", "detail": "/bin/sh"}
    of.trial["status"]["tampering"] = [found]
    world = await regraded(of)
    assert [each.model_dump() for each in world.status.tampering] == [found]
    assert json.loads(world.kept.files["result.json"])["tampering"] == [found]


async def test_a_lost_pod_is_an_infrastructure_failure_and_the_next_attempt_verifies_all_steps() -> None:
    of = await source()
    durations = {f"{step}/verifier/verifier": 9.0 for step in "abc"}
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of, durations=durations)
    await world.run(until=lambda: "t-1-v1" in world.pods)
    lose_pod(world)
    await world.run()
    assert world.condition[0] == "Complete" and world.status.rewards == of.trial["status"]["rewards"]
    assert [each.reason for each in world.status.attempts] == ["PodDeleted"] and world.status.resumed is None


async def test_the_end_of_the_trials_own_container_is_nobodys_failure() -> None:
    of = await source()
    durations = {f"{step}/verifier/verifier": 9.0 for step in "abc"}
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of, durations=durations)
    await world.run(until=lambda: "t-1-v1" in world.pods)
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    killed = [{"name": "main", "state": {"terminated": ended}}]
    world.cluster.set_pod_status(KEY[0], "t-1", phase="Failed", containerStatuses=killed)
    await world.run()
    assert world.condition[0] == "Complete" and world.status.rewards == of.trial["status"]["rewards"]
    assert [each.reason for each in world.status.attempts] == ["ContainerEnded"]


async def test_another_trial_of_the_sources_name_is_not_mixed_in() -> None:
    of, other = await source(), await source()
    other.trial["metadata"]["uid"] = "another-uid"
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of)
    assert isinstance(world.volume, FakeVolume)
    results = world.volume.results

    def replace_source() -> None:
        if "source-uid" in results and "regraded" in joined(TrialStatus, world.cluster.objects[KIND, *KEY].get("status", {})):
            del results["source-uid"]
            other.put_into(world)

    world.faults.at_point = replace_source
    await world.run()
    why = f"the checkpoint of trial source after step a was deleted or changed{HINT}"
    assert world.condition == ("Failed", "RegradeImpossible", why) and "another-uid" in results
