"""Trials that start from another trial's checkpoint, or from the reference state (docs/how-to/branching.md)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import joined
from multistep.api.trial.trial import KIND
from tests.support.fake_volume import FakeVolume, Results
from tests.support.played import rewarded
from tests.support.world import KEY, Source, World, manifest
from tests.unit.reconcile.scenarios import lose_pod
from tests.unit.reconcile.test_checkpoints import agents, at_step

KEEP: dict[str, Any] = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}}
DURATIONS = {f"{step}/agent": 100.0 for step in "abc"}
COMMAND: dict[str, Any] = {"agent": {"name": "command", "command": ["x"]}}


def after(step: str) -> dict[str, Any]:
    return {"from": {"trial": "source", "step": step}, **COMMAND}


async def source(spec: Mapping[str, Any] | None = None, **options: Any) -> Source:
    return await Source.ran(trial=manifest({**KEEP, **(spec or {})}), **options)


def results(world: World) -> Results:
    assert isinstance(world.volume, FakeVolume)
    return world.volume.results["source-uid"]


def damage(of: Results, id: tuple[int, int]) -> None:
    """Replace the layer of a checkpoint with one that no runner can restore."""
    commit, files = of.checkpoints[id]
    of.checkpoints[id] = (commit, {**files, "layer": b"[]"})


def delete_source(world: World, *, also_results: bool = False) -> None:
    world.cluster.remove(KIND, KEY[0], "source")
    if also_results:
        assert isinstance(world.volume, FakeVolume)
        del world.volume.results["source-uid"]


async def test_a_trial_continues_after_a_step_of_another_trial() -> None:
    of = await source()
    world = World(trial=manifest(after("a")), source=of)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 2 steps"), world.errors
    status = world.status
    assert [(step.name, step.trial, step.rewards) for step in status.steps] == [
        ("a", "source", {"reward": 1}),
        ("b", None, {"reward": 0.5, "style": 1}),
        ("c", None, {"reward": 0}),
    ]
    assert status.rewards == of.trial["status"]["rewards"], "the kept steps count as the task's strategy says"
    assert agents(world.cluster.runners) == ["1/b/agent", "1/c/agent"]
    assert status.resumed is not None and (status.resumed.after, status.resumed.attempts) == ("a", [0])
    start = status.started_from
    digest = of.trial["status"]["steps"][0]["checkpoint"]["digest"]
    assert start is not None and (start.trial, start.uid, start.step, start.digest) == ("source", "source-uid", "a", digest)
    assert world.kept.checkpoints == {}, "the copies are deleted with the pod"
    assert results(world) == pickle.loads(of.results), "the source is unchanged"


@pytest.mark.parametrize("deleted", [False, True], ids=["that exists", "that was deleted"])
async def test_a_trial_starts_from_one_whose_results_are_in_an_object_store(deleted: bool) -> None:
    world = World(trial=manifest(after("a")), source=await source(stored=True), stored=True)
    if deleted:
        delete_source(world)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 2 steps"), world.errors
    assert [step.trial for step in world.status.steps] == ["source", None, None]


async def test_a_step_of_a_branch_of_a_branch_has_the_name_of_the_trial_that_ran_it() -> None:
    first = World(trial=manifest({**after("a"), **KEEP, "toStep": "b"}), source=await source())
    await first.run()
    of = first.object
    of["metadata"] |= {"name": "first", "uid": "first-uid"}
    world = World(trial=manifest({"from": {"trial": "first", "step": "b"}, **COMMAND}))
    world.cluster.put(of)
    assert isinstance(world.volume, FakeVolume)
    world.volume.results["first-uid"] = first.kept
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 1 step"), world.errors
    assert [(step.name, step.trial) for step in world.status.steps] == [("a", "source"), ("b", "first"), ("c", None)]


async def test_results_and_evidence_name_the_source_and_have_no_files_of_kept_steps() -> None:
    world = World(trial=manifest(after("a")), source=await source())
    await world.run()
    result = json.loads(world.kept.files["result.json"])
    start = joined(TrialStatus, world.object["status"])["startedFrom"]
    assert result["started_from"] == start
    assert [(each["step_name"], each.get("trial")) for each in result["step_results"]] == [
        ("a", "source"),
        ("b", None),
        ("c", None),
    ]
    assert "steps/a/agent" not in world.kept.directories and "a" not in world.kept.steps
    assert world.kept.evidence is not None
    found = world.kept.evidence["predicate"]
    assert found["startedFrom"] == {
        "trial": "source", "uid": "source-uid", "step": "a", "checkpoint": {"digest": {"sha256": start["digest"]}}
    }  # fmt: skip
    assert [(each["trial"], len(each["tests"])) for each in found["steps"]] == [("source", 0), (None, 2), (None, 2)]


async def test_an_agent_of_harbor_is_set_up_and_starts_at_the_first_own_step() -> None:
    from tests.unit.reconcile.scenarios import HOSTED, HOSTED_OPTIONS

    world = World(trial=manifest({**after("a"), **HOSTED, "toStep": "b"}), source=await source(), **HOSTED_OPTIONS)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete"), world.errors
    status = world.status
    assert [step.usage is not None for step in status.steps] == [False, True]
    assert status.usage is not None and status.usage.input_tokens == 200


async def test_the_usage_of_kept_steps_is_the_sources() -> None:
    from tests.unit.reconcile.scenarios import HOSTED, HOSTED_OPTIONS

    of = await source(HOSTED, **HOSTED_OPTIONS)
    assert joined(TrialStatus, of.trial["status"])["steps"][0]["usage"]["inputTokens"] == 100
    world = World(trial=manifest(after("a")), source=of)
    await world.run()
    assert (world.status.usage, [step.usage for step in world.status.steps]) == (None, [None, None, None])


@pytest.mark.parametrize("isolation", ["Separate", "Both"])
async def test_the_changes_of_kept_steps_do_not_count_in_what_the_verifiers_pod_gets(isolation: str) -> None:
    """Otherwise changes that another trial made could exceed maxBytes, which scores this trial's step 0."""
    world = World(trial=manifest({**after("a"), "verifier": {"isolation": isolation}}), source=await source())
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 2 steps"), world.errors
    own, *verifiers = world.cluster.runners.values()
    assert [each["full"] for each in own.requests if each["op"] == "checkpoint"] == [False, False]
    restored = [[id for id in each.restored if id.endswith("/agent")] for each in verifiers]
    assert restored == [["1/a/agent", "1/b/agent"], ["1/a/agent", "1/b/agent", "1/c/agent"]]
    assert world.kept.checkpoints == {}


async def test_a_trial_can_end_after_a_step() -> None:
    world = World(trial=manifest({"toStep": "b"}))
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 2 steps")
    assert world.status.rewards == {"reward": 0.75, "style": 0.5}


async def test_the_trial_waits_until_an_active_source_has_finished_the_step() -> None:
    of = await source({"checkpoints": {"policy": "AfterStep"}}, durations=DURATIONS, until=lambda it: it.status.current_step == "b")
    world = World(trial=manifest(after("b")), source=of)
    await world.run(until=lambda: len(world.waits) > 3)
    waiting = next(each for each in world.status.conditions if each.type == "Reconciling")
    assert (waiting.reason, waiting.message) == ("SourceNotReady", "trial source has not finished step b yet")
    assert (world.pods, world.status.attempt) == ([], None)
    done = await source(
        {"checkpoints": {"policy": "AfterStep"}}, durations=DURATIONS, until=lambda it: it.status.current_step == "c"
    )
    done.put_into(world)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 1 step")
    assert agents(world.cluster.runners) == ["1/c/agent"]


@pytest.mark.parametrize(
    ("spec", "until", "message"),
    [
        ({}, None, "trial source has no checkpoint after step a"),
        ({}, "b", "trial source has no checkpoint after step a"),
        ({"checkpoints": {"policy": "AfterStep"}}, None, "after step a was deleted or changed"),
    ],
    ids=["no checkpoints", "none is made", "not kept"],
)
async def test_a_source_that_never_has_the_checkpoint_fails_the_trial(spec: Any, until: str | None, message: str) -> None:
    made = manifest(spec)
    active = None if until is None else lambda it: it.status.current_step == until
    of = await Source.ran(trial=made, durations=DURATIONS, until=active)
    world = World(trial=manifest(after("a")), source=of)
    await world.run()
    type_, reason, text = world.condition
    assert (type_, reason) == ("Failed", "SourceCheckpointMissing")
    assert message in text and "run it with spec.checkpoints: {policy: AfterStep, keep: WithResults}" in text
    assert world.status.failure is not None and (world.status.failure.class_, world.status.score) == ("Configuration", None)
    assert world.pods == []


async def test_a_step_without_a_checkpoint_fails_the_trial_with_the_sources_reason() -> None:
    world = World(trial=manifest(KEEP), durations=DURATIONS)
    runner = await at_step(world, "a")
    runner.unpackable = "TooLarge"
    await at_step(world, "b")
    other = World(trial=manifest(after("a")))
    found = world.object
    found["metadata"] |= {"name": "source", "uid": "source-uid"}
    other.cluster.put(found)
    await other.run()
    assert other.condition[:2] == ("Failed", "SourceCheckpointMissing")
    assert "trial source has no checkpoint after step a: TooLarge: not possible" in other.condition[2]


async def test_a_missing_source_is_waited_for_shortly_and_then_fails_the_trial() -> None:
    made = manifest(after("a"))
    made["metadata"]["creationTimestamp"] = "2023-11-14T22:13:20Z"
    world = World(trial=made)
    await world.run(until=lambda: world.waits)
    assert next(each.reason for each in world.status.conditions if each.type == "Reconciling") == "SourceNotReady"
    await world.run(first=1.0)
    assert world.condition[:2] == ("Failed", "SourceCheckpointMissing")
    assert "neither trial source nor results of exactly one deleted trial of this name exist" in world.condition[2]


async def test_a_trial_cannot_start_from_itself() -> None:
    world = World(trial=manifest({"from": {"trial": KEY[1], "step": "a"}}))
    await world.run()
    assert world.condition == ("Failed", "InvalidSpec", "spec.from.trial: a trial cannot start from itself")


async def test_a_deleted_source_is_found_by_its_results() -> None:
    world = World(trial=manifest(after("b")), source=await source())
    delete_source(world)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 1 step")
    assert world.status.started_from is not None and world.status.started_from.uid == "source-uid"


@pytest.mark.parametrize("checkpoints", [{}, {"checkpoints": {"policy": "AfterStep"}}], ids=["Never", "AfterStep"])
async def test_a_later_attempt_starts_at_the_source_although_the_source_is_deleted(checkpoints: Any) -> None:
    world = World(trial=manifest({**after("a"), **checkpoints}), source=await source(), durations=DURATIONS)
    await at_step(world, "b")
    delete_source(world, also_results=True)
    lose_pod(world)
    await at_step(world, "b", attempt=2)
    assert world.status.resumed is not None and world.status.resumed.attempts == [0]
    await at_step(world, "c", attempt=2)
    lose_pod(world)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 2 steps")
    continued = ["1/b/agent", "2/b/agent", "2/c/agent", "3/c/agent"]
    assert agents(world.cluster.runners) == (continued if checkpoints else sorted([*continued, "3/b/agent"]))
    assert [step.trial for step in world.status.steps] == ["source", None, None]
    assert world.status.resumed.attempts == ([0, 2] if checkpoints else [0])


async def test_a_pod_lost_before_its_image_is_known_starts_at_the_source_again() -> None:
    world = World(trial=manifest(after("a")), source=await source(), pods_run=False)
    await world.run(until=lambda: world.status.pod_uid)
    world.cluster.remove("Pod", *KEY[:1], world.pods[0])
    await world.run(until=lambda: world.status.attempt == 2)
    assert world.status.resumed is not None and world.status.resumed.attempts == [0]


async def test_a_source_that_cannot_be_restored_is_tried_twice_and_fails_the_trial_never_starting_at_step_1() -> None:
    of = await source()
    world = World(trial=manifest(after("a")), source=of)
    damage(results(world), (1, 0))
    await world.run()
    assert world.condition[:2] == ("Failed", "SourceUnusable")
    assert "the checkpoint after step 1 of the other trial is not used: it could not be restored" in world.condition[2]
    assert [each.reason for each in world.status.attempts] == ["RestoreFailed", "RestoreFailed"]
    assert world.status.failure is not None and (world.status.failure.class_, world.status.score) == ("Configuration", None)
    assert agents(world.cluster.runners) == []


async def test_a_source_of_another_image_fails_the_trial_at_once() -> None:
    of = await source()
    world = World(trial=manifest(after("a")), source=of)
    commit, files = results(world).checkpoints[1, 0]
    other = commit.model_copy(update={"image_id": "img@sha256:other"}).sealed()
    results(world).checkpoints[1, 0] = (other, files)
    found = world.cluster.objects[KIND, KEY[0], "source"]
    found["status"]["steps"][0]["checkpoint"]["digest"] = other.digest
    await world.run()
    assert world.condition[:2] == ("Failed", "SourceUnusable")
    assert "it was made in the image img@sha256:other, and the attempt had" in world.condition[2]
    assert [each.reason for each in world.status.attempts] == ["RestoreFailed"]


async def test_own_checkpoints_that_cannot_be_restored_lead_back_to_the_source() -> None:
    """The trial's agent can make the trial's own checkpoints useless; the source must not be blamed for that."""
    world = World(
        trial=manifest({**after("a"), "checkpoints": {"policy": "AfterStep"}}), source=await source(), durations=DURATIONS
    )
    await at_step(world, "c")
    damage(world.kept, (1, 1))
    lose_pod(world)
    await world.run()
    assert world.condition[0] == "Complete"
    assert [each.reason for each in world.status.attempts] == ["PodDeleted", "RestoreFailed"]
    assert agents(world.cluster.runners) == ["1/b/agent", "1/c/agent", "3/b/agent", "3/c/agent"]


@pytest.mark.parametrize(
    ("options", "spec", "message"),
    [
        ({"results": {"a/verifier": rewarded(txt="0.25")}}, {}, "no step follows step a: "),
        ({"results": {"a/agent": {"timedOut": True, "exitCode": None}}}, {}, "no step follows step a: AgentTimeoutError"),
    ],
    ids=["gate", "exception"],
)
async def test_a_step_after_which_the_source_ended_cannot_be_continued(options: Any, spec: Any, message: str) -> None:
    world = World(trial=manifest({**after("a"), **spec}), source=await source(**options))
    await world.run()
    assert world.condition[:2] == ("Failed", "SourceUnusable") and message in world.condition[2]


async def test_the_copies_of_a_trial_that_is_stopped_before_its_start_is_written_are_deleted() -> None:
    world = World(trial=manifest(after("a")), source=await source())
    assert isinstance(world.volume, FakeVolume)
    checkpoints, copies = world.volume.checkpoints, list[int]()
    adopt = checkpoints.adopt

    async def adopt_and_stop(*given: Any) -> Any:
        made = await adopt(*given)
        copies.append(len(made))
        world.change_trial(stop=True)
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(checkpoints), "adopt", lambda _, *given: adopt_and_stop(*given))
        await world.run()
    assert world.condition[1] == "Stopped" and copies == [1] and world.status.started_from is None
    assert world.kept.checkpoints == {}
