"""Test sources of regrades: with results in an object store, with evidence of another program, not created yet, of another sweep,
or started from another trial's checkpoint."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from multistep.api.common.base_model import API_VERSION
from multistep.api.sweep.sweep import SWEEP_KIND, Scoring
from multistep.api.trial.trial import KIND, parse_status
from multistep.engine.score.score_in_sweep import scored
from tests.support.fake_volume import FakeResultsStore
from tests.support.world import FILES, START, Source, World, manifest
from tests.unit.reconcile.scenarios import end_container
from tests.unit.reconcile.test_regrade import KEEP, ONE_STEP, REGRADE, ended, source, true_condition


@pytest.mark.parametrize("deleted", [False, True], ids=["that exists", "that was deleted"])
async def test_a_source_whose_results_are_in_an_object_store_is_regraded(deleted: bool) -> None:
    of = await source(stored=True)
    assert of.trial["status"]["resultsStore"] and pickle.loads(of.results).files == {}, "the volume has its checkpoints only"
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of, stored=True)
    if deleted:
        world.cluster.remove(KIND, "default", "source")
    await world.run()
    assert world.condition[0] == "Complete" and ended(world.object["status"]) == ended(of.trial["status"]), world.errors
    stated = pickle.loads(of.shipped).evidence["predicate"]
    assert world.status.regraded is not None
    assert [each.tests for each in world.status.regraded.steps] == [
        {made["name"]: made["digest"]["sha256"] for made in each["tests"]} for each in stated["steps"]
    ]
    assert "trial-uid" not in world.volume.results, "the regrade keeps no checkpoints"  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["{", "[]", '{"predicate": {"steps": [{"name": "a"}]}}', '{"predicate": {"steps": 1}}'])
async def test_results_whose_evidence_another_program_wrote_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def part(*_: object, **__: object) -> bytes:
        return text.encode()

    monkeypatch.setattr(FakeResultsStore, "part", part)
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=await source())
    world.cluster.remove(KIND, "default", "source")
    await world.run()
    assert world.condition[:2] == ("Failed", "RegradeImpossible") and world.errors == []
    assert "no kept results with evidence of exactly one deleted trial of this name" in world.condition[2]


async def test_a_source_that_is_created_later_is_awaited() -> None:
    """A manifest file may contain the regrade before its source, so the regrade may exist first."""
    made = manifest(REGRADE, files={**FILES, **ONE_STEP})
    made["metadata"]["creationTimestamp"] = datetime.fromtimestamp(START, UTC).isoformat()
    world = World(trial=made)
    await world.run(until=lambda: len(world.waits) > 1)
    assert world.condition[:2] == ("Reconciling", "SourceActive") and "trial source does not exist" in world.condition[2]
    (await source()).put_into(world)
    await world.run()
    assert world.condition[0] == "Complete"


@pytest.mark.parametrize("later", ["exists", "is deleted", "is orphaned"])
@pytest.mark.parametrize(("owner", "refused"), [("nightly-2", False), ("nightly-1", True), (None, True)])
async def test_a_trial_of_another_sweep_of_the_sources_name_is_refused(owner: str | None, refused: bool, later: str) -> None:
    made = manifest(KEEP, files={**FILES, **ONE_STEP})
    sweep = {"apiVersion": API_VERSION, "kind": SWEEP_KIND, "name": "nightly", "uid": owner, "controller": True}
    of = await Source.ran(trial={**made, "metadata": {**made["metadata"], "ownerReferences": [sweep] if owner else []}})
    regrade = {**REGRADE, "regrade": {"trial": "source", "sweepUID": "nightly-2"}}
    world = World(trial=manifest(regrade, files={**FILES, **ONE_STEP}), source=of)
    if later == "is deleted":
        world.cluster.remove(KIND, "default", "source")
    elif later == "is orphaned":
        del world.cluster.objects[KIND, "default", "source"]["metadata"]["ownerReferences"]
    await world.run()
    why = "trial source is not of the sweep to regrade, which has the UID nightly-2 (spec.regrade.sweepUID)"
    assert world.condition == (("Failed", "RegradeImpossible", why) if refused else true_condition(of.trial))


async def test_a_deleted_source_of_an_earlier_release_which_states_no_sweep_is_regraded() -> None:
    of = await source()
    results = pickle.loads(of.results)
    del results.evidence["predicate"]["trial"]["sweepUID"]
    regrade = {**REGRADE, "regrade": {"trial": "source", "sweepUID": "nightly-2"}}
    world = World(trial=manifest(regrade, files={**FILES, **ONE_STEP}), source=replace(of, results=pickle.dumps(results)))
    world.cluster.remove(KIND, "default", "source")
    await world.run()
    assert world.condition == true_condition(of.trial)


async def branch(**options: Any) -> Source:
    """Return a trial that ran steps b and c, and started from the checkpoint after step a of another trial."""
    files = {**FILES, **ONE_STEP, "steps/b/workdir/setup.sh": "true\n"}
    made = manifest({**KEEP, "from": {"trial": "source", "step": "a"}}, files=files)
    return await Source.ran("branch", trial=made, source=await source(), **options)


@pytest.mark.parametrize("deleted", [False, True], ids=["that exists", "that was deleted"])
async def test_steps_that_a_third_trial_ran_do_not_count_in_the_score_either(deleted: bool) -> None:
    of = await branch()
    world = World(trial=manifest({**REGRADE, "regrade": {"trial": "branch"}}, files={**FILES, **ONE_STEP}), source=of)
    if deleted:
        world.cluster.remove(KIND, "default", "branch")
    await world.run()
    assert world.condition == true_condition(of.trial) and world.errors == []
    assert ended(world.object["status"]) == ended(of.trial["status"])
    assert [each.trial for each in world.status.steps] == ["source", None, None]
    stated = world.kept.evidence["predicate"]["steps"]
    assert [(each["trial"], len(each["tests"])) for each in stated] == [("source", 2), (None, 2), (None, 2)]


@pytest.mark.parametrize("deleted", [False, True], ids=["that exists", "that was deleted"])
async def test_a_source_that_its_agent_ended_between_two_steps_keeps_its_score(deleted: bool) -> None:
    """Every step that the source started has a checkpoint, but no verification shows that the agent ended the trial."""

    def suspend(world: World) -> None:
        world.change_trial(suspend=True)

    of = await source(durations={"b/agent": 100.0}, happens={50.0: suspend, 500.0: end_container})
    former = of.trial["status"]
    assert (former["failure"]["class"], former["score"], len(former["steps"])) == ("Agent", 0.5, 2)
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of)
    if deleted:
        world.cluster.remove(KIND, "default", "source")
    await world.run()
    why = "the agent of trial source ended the trial before step c (ContainerKilledError), which no verification shows"
    assert world.condition == ("Failed", "RegradeImpossible", why) and world.status.failure is not None
    assert (world.status.failure.class_, world.status.score, world.status.outcome) == ("Agent", 0.5, "AgentError")


@pytest.mark.parametrize(
    ("start", "score"), [({"from": {"trial": "source", "step": "a"}}, 0), ({"fromStep": "b"}, None)], ids=["agent", "reference"]
)
async def test_a_setup_that_fails_after_the_reference_state_is_no_agents_failure(start: Any, score: float | None) -> None:
    """Only after steps of another trial's agent, which may have broken the environment, such a failure scores 0."""
    of = await branch(results={"b/setup": {"exitCode": 1}})
    spec = {key: value for key, value in of.trial["spec"].items() if key != "from"}
    of.trial["spec"] = {**spec, **start}
    world = World(trial=manifest({**REGRADE, "regrade": {"trial": "branch"}}, files={**FILES, **ONE_STEP}), source=of)
    await world.run()
    assert world.condition[0] == "Complete" and world.status.failure is not None
    assert (world.status.failure.step, world.status.score) == ("b", score)


@pytest.mark.parametrize("scoring", [{}, {"pass": 0.4}, {"key": "style"}, {"strategy": "AsTask"}], ids=str)
async def test_a_kept_score_is_that_of_the_source_under_every_scoring(scoring: Any) -> None:
    of = await source(durations={"c/agent": 100.0}, happens={50.0: end_container})
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of)
    await world.run()
    assert world.condition[1] == "RegradeImpossible"
    rules = Scoring.model_validate(scoring)
    assert scored(world.status, rules) == scored(parse_status(of.trial), rules)
