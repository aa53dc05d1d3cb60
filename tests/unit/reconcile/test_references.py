"""Test reference trials, which run a task's solutions once for all trials that start from the reference state."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from multistep.api.common import labels
from multistep.api.trial.task_source import TaskSourceStatus
from multistep.api.trial.trial import KIND, parse_trial
from multistep.engine.plan.plan import TrialPlan
from multistep.reconcile.trial import start_from_checkpoint as reference_trials
from multistep.sources.load.load_trial import LoadedTrial
from tests.support.played import plan, rewarded
from tests.support.world import CONFIG, KEY, Source, World, manifest

NOP: dict[str, Any] = {"agent": {"name": "nop"}}


def loaded(made: TrialPlan | None = None, **more: Any) -> LoadedTrial:
    return LoadedTrial(task=None, plan=made or plan(), env=None, **more)  # type: ignore[arg-type]


def reference(spec: Any = None, of: LoadedTrial | None = None, **metadata: Any) -> dict[str, Any]:
    made = manifest({"fromStep": "b", **NOP, **(spec or {})})
    return reference_trials.manifest(parse_trial({**made, "metadata": {**made["metadata"], **metadata}}), of or loaded())


def name(*arguments: Any, **more: Any) -> str:
    return str(reference(*arguments, **more)["metadata"]["name"])


def test_a_reference_trial_plays_all_solutions_and_keeps_its_checkpoints() -> None:
    made = reference({"infrastructureRetries": 0, "toStep": "b", "timeoutMultiplier": 2})
    spec = parse_trial(made).spec
    assert (spec.agent.name, spec.checkpoints.policy, spec.checkpoints.keep) == ("oracle", "AfterStep", "WithResults")
    assert (spec.from_step, spec.to_step, spec.timeout_multiplier, spec.infrastructure_retries) == (None, None, 2, 10)
    assert spec.task.inline == parse_trial(manifest()).spec.task.inline
    assert "ownerReferences" not in made["metadata"], "the trial that caused it does not delete it"


def test_trials_that_differ_in_agent_start_and_name_share_a_reference_trial() -> None:
    assert name({"agent": {"name": "oracle"}, "fromStep": "c", "suspend": False}, name="other", uid="u") == name()


@pytest.mark.parametrize(
    "spec",
    [
        {"task": manifest(config={**CONFIG, "artifacts": []})["spec"]["task"]},
        {"environment": {"image": "other"}},
        {"variables": [{"name": "A", "value": "b"}]},
        {"verifier": {"disable": True}},
    ],
    ids=["task", "environment", "variables", "verifier"],
)
def test_another_task_or_environment_has_another_reference_trial(spec: Any) -> None:
    assert name(spec) != name()


def test_another_shard_has_another_reference_trial_with_its_label() -> None:
    """A reference trial's checkpoints are on the volume of its shard's operator, so other shards cannot use them."""
    made = reference(labels={labels.SHARD: "s", "kueue.x-k8s.io/queue-name": "q", "other": "o"})
    assert made["metadata"]["name"] != name()
    assert set(made["metadata"]["labels"]) == {labels.SHARD, labels.REFERENCE, "kueue.x-k8s.io/queue-name"}
    assert name(labels={"kueue.x-k8s.io/queue-name": "q"}) == name()


@pytest.mark.parametrize(
    ("task", "pinned"),
    [
        ({"git": {"url": "https://h/r", "ref": "main", "path": "p"}}, {"url": "https://h/r", "ref": "rev", "path": "p"}),
        ({"oci": {"image": "h:1/r/i:tag"}}, {"image": "h:1/r/i@rev"}),
        (
            {"url": {"url": "https://h/t", "digest": f"sha256:{'0' * 64}"}},
            {"url": "https://h/t", "digest": f"sha256:{'0' * 64}"},
        ),
    ],
    ids=["git", "oci", "url"],
)
def test_a_remote_task_is_pinned_to_the_resolved_revision(task: Any, pinned: Any) -> None:
    source = TaskSourceStatus(revision="rev", digest="sha256:d")
    made = reference({"task": {**task, "name": "n"}}, loaded(source=source))
    ((kind, _),) = task.items()
    assert made["spec"]["task"][kind] == pinned
    other = TaskSourceStatus(revision="rev", digest="sha256:e")
    assert made["metadata"]["name"] != name({"task": {**task, "name": "n"}}, loaded(source=other))


def test_bundles_with_the_same_content_share_a_reference_trial() -> None:
    bundle = {"digest": f"sha256:{'0' * 64}"}
    names = {name({"task": {"bundle": {**bundle, "configMaps": [each]}}}) for each in ("one", "two")}
    assert len(names) == 1


# -- the trial that requests the reference trial


def reference_of(world: World) -> str:
    (found,) = [name for kind, _, name in world.cluster.objects if kind == KIND and name != KEY[1]]
    return found


async def waiting(spec: Any = None, **options: Any) -> World:
    """Return a world with a trial that waits for its reference trial."""
    world = World(trial=manifest({"fromStep": "b", **NOP, **(spec or {})}), **options)
    await world.run(until=lambda: world.waits)
    return world


async def played(world: World, **options: Any) -> Source:
    """Run the reference trial in a separate world, and return it as the source of other trials."""
    found = world.cluster.objects[KIND, KEY[0], reference_of(world)]
    made = copy.deepcopy(found)
    made["metadata"] |= {"name": KEY[1], "uid": "trial-uid"}
    of = await Source.ran(reference_of(world), trial=made, **options)
    of.trial["metadata"]["labels"] = found["metadata"]["labels"]
    return of


async def test_a_trial_waits_for_the_reference_trial_and_starts_from_it() -> None:
    world = await waiting()
    held = next(each for each in world.status.conditions if each.type == "Reconciling")
    ref = reference_of(world)
    assert (held.reason, held.message) == ("SourceNotReady", f"the reference trial {ref} has not finished step a yet")
    assert world.pods == []
    (await played(world)).put_into(world)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 2 steps"), world.errors
    assert [step.trial for step in world.status.steps] == [ref, None, None]
    assert world.status.started_from is not None and world.status.started_from.trial == ref
    assert [each for each in world.cluster.writes if each.startswith("create MultiStepTrial")] != []


async def test_a_reference_trial_whose_task_was_deleted_with_another_trial_is_created_again() -> None:
    """The ConfigMaps of a packed task are deleted with the trial for which they were created."""
    world = await waiting()
    ref = world.cluster.objects[KIND, KEY[0], reference_of(world)]
    held = {"type": "Reconciling", "status": "True", "reason": "TaskNotFound", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    task = {"name": "t", "bundle": {"digest": f"sha256:{'0' * 64}", "configMaps": ["of-a-deleted-trial"]}}
    lost = {**ref, "spec": {**ref["spec"], "task": task}, "status": {"conditions": [{**held, "message": "ConfigMap"}]}}
    world.cluster.put(lost)
    key = (KIND, KEY[0], reference_of(world))
    await world.run(until=lambda: world.cluster.objects.get(key, lost)["spec"] != lost["spec"])
    again = world.cluster.objects[key]
    assert again["spec"] == ref["spec"] and "status" not in again
    (await played(world)).put_into(world)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 2 steps"), world.errors


async def test_the_wait_shows_the_reference_trials_own_state() -> None:
    world = await waiting()
    ref = world.cluster.objects[KIND, KEY[0], reference_of(world)]
    held = {"type": "Reconciling", "status": "True", "reason": "Unschedulable", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    world.cluster.put({**ref, "status": {"conditions": [{**held, "message": "no node fits"}]}})
    await world.run(first=1.0, until=lambda: len(world.waits) > 2)
    assert next(each.message for each in world.status.conditions if each.type == "Reconciling").endswith("yet (no node fits)")


async def test_two_trials_share_one_reference_trial() -> None:
    world = await waiting()
    other = World(trial=manifest({"fromStep": "c", "agent": {"name": "command", "command": ["x"]}}))
    other.cluster.put(copy.deepcopy(world.cluster.objects[KIND, KEY[0], reference_of(world)]))
    await other.run(until=lambda: other.waits)
    assert reference_of(other) == reference_of(world)
    assert not [each for each in other.cluster.writes if each.startswith("create MultiStepTrial")]


async def test_a_deleted_reference_trial_is_used_from_its_results() -> None:
    world = await waiting()
    (await played(world)).put_into(world)
    world.cluster.remove(KIND, KEY[0], reference_of(world))
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 2 steps")


async def test_a_deleted_reference_trial_without_the_checkpoint_is_played_again() -> None:
    world = await waiting()
    of = await played(world, results={"a/verifier": {"exitCode": 1}})
    of.put_into(world)
    ref = reference_of(world)
    world.cluster.remove(KIND, KEY[0], ref)
    await world.run(until=lambda: (KIND, KEY[0], ref) in world.cluster.objects)
    assert world.cluster.objects[KIND, KEY[0], ref]["metadata"]["uid"] != of.trial["metadata"]["uid"]
    assert world.status.phase == "Pending"


@pytest.mark.parametrize(
    ("options", "spec", "reason", "class_"),
    [
        ({"results": {"a/verifier": rewarded(txt="0.25")}}, {}, "ReferenceFailed", "Task"),
        ({"results": {"/healthcheck": {"healthy": False}}}, {}, "ReferenceFailed", "Task"),
        ({}, {"stop": True}, "ReferenceLost", "Infrastructure"),
    ],
    ids=["a step failed", "the environment failed", "stopped"],
)
async def test_a_reference_trial_that_ended_before_the_step_fails_the_trial(
    options: Any, spec: Any, reason: str, class_: str
) -> None:
    world = await waiting({"fromStep": "c"})
    ref = world.cluster.objects[KIND, KEY[0], reference_of(world)]
    ref["spec"] |= spec
    (await played(world, **options)).put_into(world)
    await world.run()
    assert world.condition[:2] == ("Failed", reason)
    assert f"the reference trial {reference_of(world)}, which runs the task's solutions: " in world.condition[2]
    assert world.pods == []
    assert world.status.failure is not None and world.status.failure.class_ == class_


async def test_a_solution_after_which_no_step_follows_fails_the_trial() -> None:
    world = await waiting()
    (await played(world, results={"a/verifier": rewarded(txt="0.25")})).put_into(world)
    await world.run()
    assert world.condition[:2] == ("Failed", "ReferenceFailed")
    assert "the task's own solutions do not lead there: the checkpoint of trial reference-" in world.condition[2]
    assert "no step follows step a: " in world.condition[2]


async def test_a_trial_that_is_no_reference_is_not_started_from() -> None:
    world = await waiting()
    ref = world.cluster.objects[KIND, KEY[0], reference_of(world)]
    del ref["metadata"]["labels"]
    await world.run()
    assert world.condition[:2] == ("Failed", "SourceUnusable") and "delete it" in world.condition[2]


async def test_the_first_step_needs_no_reference_trial() -> None:
    world = World(trial=manifest({"fromStep": "a"}))
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert [name for kind, _, name in world.cluster.objects if kind == KIND] == [KEY[1]]
