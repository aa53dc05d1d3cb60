"""Test steps that are verified in the agent's environment and again in a fresh pod: spec.verifier.isolation Both."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.trial.status import StepStatus, Tampering, TrialStatus
from multistep.engine.journal.operations import Checkpoint, Restore
from multistep.engine.plan.plan import isolation
from multistep.engine.script.compare_verdicts import lost_pod, with_missed_comparison
from multistep.engine.status.tampering_findings import evidence, merged
from tests.support.played import FAULT, NO_SPACE, THREE, Played, plan, play, rewarded
from tests.unit.engine.script_cases import FULL, SINGLE
from tests.unit.engine.test_scoring import NOW

BOTH: dict[str, Any] = {"verifier": {"isolation": "Both", "paths": ["/app"]}}
APART = 'artifacts = ["/out"]\n' + THREE.replace('name = "a"', 'name = "a"\nverifier = {environment_mode = "separate"}')


def found(played: Played) -> list[tuple[str, str, str]]:
    return [(each.step, each.kind, each.detail) for each in merged(TrialStatus(), played.journal)]


def test_the_files_are_stored_before_the_first_verification_and_the_second_follows_the_collection() -> None:
    made = plan(THREE, BOTH, steps={"a": FULL})
    played = play(made)
    ids = [id for id in played.ids if id.startswith("a/")]
    assert ids[ids.index("a/snapshot") :] == [
        "a/snapshot", "a/inspect", "a/verify", "a/step-tests", "a/verifier", "a/collect",
        "a/verifier/environment", "a/verifier/prepare", "a/verifier/restore", "a/verifier/verify", "a/verifier/step-tests",
        "a/verifier/verifier", "a/release", "a/end",
    ]  # fmt: skip
    snapshot = Checkpoint("1/a/snapshot", 0, (), made.snapshots.max_bytes, complete=False, alone=True, temporary=True)
    assert played.operation("a/snapshot") == snapshot
    assert played.operation("a/verifier/restore") == Restore("1/a/verifier/restore", 0, ("/app",), where="verifier")
    assert found(played) == [] and made.uses_checkpoints and made.separate
    declared = play(plan(THREE, steps={"a": FULL}))
    assert played.journal.rewards == declared.journal.rewards
    assert isolation(made, "root") == "Shared", "the reward is that of the agent's environment"


def test_the_second_verification_adds_no_time_to_the_step() -> None:
    first, second = (play(plan(THREE, spec)).journal.steps[0].durations for spec in ({}, BOTH))
    assert first["verifier"] == second["verifier"]


@pytest.mark.parametrize(
    ("here", "there", "detail"),
    [
        ("1", "0", "reward: 1 in place, 0 in a fresh pod"),
        (
            "1",
            None,
            "reward: 1 in place, none in a fresh pod, in a fresh pod: the verifier wrote neither /logs/verifier/reward.json",
        ),
        (None, "0.5", "reward: none in place, 0.5 in a fresh pod"),
    ],
)
def test_verdicts_that_differ_are_evidence_of_tampering_in_each_step_and_change_no_reward(
    here: str | None, there: str | None, detail: str
) -> None:
    results = {f"{step}/verifier": rewarded(txt=here) for step in "ab"}
    results |= {f"{step}/verifier/verifier": rewarded(txt=there) for step in "ab"}
    played = play(plan(THREE, BOTH), results)
    alone = play(plan(THREE), results)
    shown = found(played)
    assert [(step, kind) for step, kind, _ in shown] == [(step, "VerdictsDiffer") for step in "ab"][: len(alone.journal.steps)]
    assert all(each.startswith(detail) for _, _, each in shown), shown
    assert evidence(kind for _, kind, _ in shown) == ["VerdictsDiffer"]
    assert [run.rewards for run in played.journal.steps] == [run.rewards for run in alone.journal.steps]
    assert [run.exception for run in played.journal.steps] == [run.exception for run in alone.journal.steps]
    assert played.journal.rewards == alone.journal.rewards


@pytest.mark.parametrize(
    ("here", "there"),
    [("1", "1.0"), (None, None), ("nan", "nan")],
)
def test_equal_verdicts_are_none(here: str | None, there: str | None) -> None:
    played = play(plan(THREE, BOTH), {"a/verifier": rewarded(txt=here), "a/verifier/verifier": rewarded(txt=there)})
    assert found(played) == []


def test_of_rewards_with_several_keys_those_that_differ_are_shown() -> None:
    one, other = (rewarded(json=f'{{"reward": 1, "style": {style}, {more}}}') for style, more in ((1, '"x": 2'), (0, '"y": 3')))
    played = play(plan(THREE, BOTH), {"a/verifier": one, "a/verifier/verifier": other})
    detail = "style: 1 in place, 0 in a fresh pod, x: 2 in place, none in a fresh pod, y: none in place, 3 in a fresh pod"
    assert found(played) == [("a", "VerdictsDiffer", detail)]


NO_FILES = "storing the environment for the verifier: "
NOT_RESTORED = "restoring the environment for the verifier: "


def test_files_that_no_program_makes_by_itself_and_that_prevent_the_second_verification_are_evidence() -> None:
    played = play(plan(THREE, BOTH), {"a/snapshot": {"missing": "Unusual: nested more than 800 levels deep", "byAgent": True}})
    ((step, kind, shown),) = found(played)
    assert (step, kind) == ("a", "ComparisonPrevented") and shown.endswith("800 levels deep")
    assert evidence([kind]) == ["ComparisonPrevented"]
    assert played.journal.rewards == play(plan(THREE)).journal.rewards, "a sweep's policy decides"


@pytest.mark.parametrize(
    ("results", "detail"),
    [
        ({"a/snapshot": {"missing": "TooLarge: x", "byAgent": True}}, f"{NO_FILES}TooLarge: x"),
        ({"a/snapshot": {"missing": "NoBase: x", "byAgent": False}}, f"{NO_FILES}NoBase: x"),
        ({"a/verifier/restore": {"error": "Restore: x", "byAgent": True}}, f"{NOT_RESTORED}Restore: x"),
        ({"a/verifier/restore": {"error": "TooSlow: x", "byAgent": False}}, "TooSlow: x"),
        ({"a/verifier/verify": FAULT}, "emptying /logs/verifier and /tests: no space left"),
        ({"a/verifier/environment": lost_pod("the verifier of step a: its pod was deleted")}, "its pod was deleted"),
        ({"a/verifier/verifier": lost_pod("the verifier of step a: out of memory")}, "out of memory"),
    ],
)
def test_what_prevents_the_second_verification_costs_nothing_and_is_reported(results: dict[str, Any], detail: str) -> None:
    played = play(plan(THREE, BOTH), results)
    ((step, kind, shown),) = found(played)
    assert (step, kind) == ("a", "ComparisonIncomplete") and shown.endswith(detail)
    assert evidence([kind]) == []
    assert played.journal.rewards == play(plan(THREE)).journal.rewards
    assert all(run.lost is None and run.exception is None for run in played.journal.steps)
    assert ("a/release" in played.ids) == ("a/snapshot" not in results), "what was stored and created is deleted"


def test_without_a_first_verdict_there_is_no_second_one() -> None:
    for results in ({"a/verify": NO_SPACE}, {"a/step-tests": FAULT}):
        played = play(plan(THREE, BOTH, steps={"a": FULL}), results)
        assert not any(id.startswith("a/verifier/") for id in played.ids) and "a/release" in played.ids
        assert found(played) == []


def test_a_reward_that_is_too_large_for_a_float_can_be_compared() -> None:
    huge = rewarded(json='{"reward": -' + "9" * 400 + ', "style": ' + "9" * 400 + "}")
    played = play(plan(SINGLE, BOTH), {"task/verifier": huge, "task/verifier/verifier": rewarded(txt="1")})
    assert found(played) == [
        ("task", "VerdictsDiffer", "reward: too small in place, 1 in a fresh pod, style: too large in place, none in a fresh pod")
    ]


def test_a_step_with_a_separate_environment_of_its_own_is_verified_only_there() -> None:
    ids = play(plan(APART, BOTH)).ids
    assert "a/snapshot" not in ids and "b/snapshot" in ids


def test_a_single_step_task_is_compared_too() -> None:
    played = play(plan(SINGLE, BOTH, root=FULL), {"task/verifier/verifier": rewarded(txt="0")})
    assert [kind for _, kind, _ in found(played)] == ["VerdictsDiffer"]


def test_what_the_inspection_found_is_reported_too() -> None:
    inspected = {"findings": [{"kind": "TestHook", "count": 1, "paths": ["/conftest.py"]}], "seconds": 0.1}
    played = play(plan(THREE, BOTH), {"a/inspect": inspected, "a/verifier/verifier": rewarded(txt="0")})
    assert [kind for _, kind, _ in found(played)] == ["TestHook", "VerdictsDiffer"]


def step(**fields: Any) -> StepStatus:
    return StepStatus(name="a", rewards={"reward": 1}, **fields)


@pytest.mark.parametrize(
    ("status", "spec", "reported"),
    [
        (TrialStatus(steps=[step()]), BOTH, True),
        (TrialStatus(steps=[step()]), {}, False),
        (TrialStatus(steps=[step(completion_time=NOW)]), BOTH, False),
        (TrialStatus(steps=[StepStatus(name="a")]), BOTH, False),
        (TrialStatus(), BOTH, False),
    ],
    ids=["rewarded", "not compared", "step ended", "no reward", "no step"],
)
def test_an_agent_that_ends_its_container_before_the_second_verdict_does_not_avoid_it_unseen(
    status: TrialStatus, spec: dict[str, Any], reported: bool
) -> None:
    other = Tampering(attempt=1, step="a", kind="TestHook", detail="x")
    before = status.model_copy(update={"tampering": [other]})
    after = with_missed_comparison(before, plan(THREE, spec))
    assert [each.kind for each in after] == ["TestHook", *["ComparisonIncomplete"] * reported]
    again = before.model_copy(update={"tampering": list(after)})
    assert with_missed_comparison(again, plan(THREE, spec)) == after
