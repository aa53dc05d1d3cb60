"""Checkpoints in a trial's script, and scripts that continue after the steps of earlier attempts."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.trial_status import CheckpointStatus
from multistep.engine.journal import AttemptLost
from multistep.engine.operations import Checkpoint
from multistep.engine.scope import KeptStep
from tests.support.played import THREE, Played, plan, play, rewarded
from tests.unit.engine.script_cases import EVERYTHING, FULL, GATED, SHARED, SINGLE

SPEC: dict[str, Any] = {"checkpoints": {"policy": "AfterStep", "exclude": ["/root/.cache"], "maxBytes": 7}}


def kept(*attempts: int) -> tuple[KeptStep, ...]:
    return tuple(KeptStep(each, CheckpointStatus(digest=f"kept {index}")) for index, each in enumerate(attempts))


def continued(first: Played, made: Any, attempts: tuple[int, ...], results: Any = None) -> Played:
    """Return a trial that continues in attempt 2 after its first steps, with the records of these steps from ``first``."""
    names = [step.name for step in made.steps[: len(attempts)]]
    records = {id: each for id, each in first.records.items() if id.startswith(tuple(f"1/{name}/" for name in names))}
    return play(made, results, attempt=2, kept=kept(*attempts), records=records)


def test_each_step_but_the_last_has_a_checkpoint_after_its_gate() -> None:
    played = play(plan(THREE, SPEC))
    made = [each for each in played.operations if isinstance(each, Checkpoint)]
    assert [(each.id, each.step, each.exclude, each.max_bytes) for each in made] == [
        ("1/a/checkpoint", 0, ("/root/.cache",), 7),
        ("1/b/checkpoint", 1, ("/root/.cache",), 7),
    ]
    assert played.ids[played.ids.index("a/checkpoint") - 1 :][:3] == ["a/end", "a/checkpoint", "b/begin"]
    assert [run.checkpoint for run in played.journal.steps] == [
        CheckpointStatus(digest="digest of a/checkpoint", bytes=5, entries=2),
        CheckpointStatus(digest="digest of b/checkpoint", bytes=5, entries=2),
        None,
    ]


@pytest.mark.parametrize(("toml", "spec"), [(THREE, {}), (THREE, {"checkpoints": {"policy": "Never"}}), (SINGLE, SPEC)])
def test_without_the_policy_or_a_second_step_there_is_none(toml: str, spec: dict[str, Any]) -> None:
    assert not any(isinstance(each, Checkpoint) for each in play(plan(toml, spec)).operations)


def test_a_step_that_ends_the_trial_has_no_checkpoint() -> None:
    played = play(plan(GATED, SPEC), {"b/verifier": rewarded(txt="0.1")})
    assert [each.id for each in played.operations if isinstance(each, Checkpoint)] == ["1/a/checkpoint"]


def test_a_checkpoint_that_is_not_possible_does_not_end_the_trial() -> None:
    played = play(plan(THREE, SPEC), {"a/checkpoint": {"missing": "TooLarge: more than 7 bytes"}})
    assert played.journal.steps[0].checkpoint == CheckpointStatus(missing="TooLarge: more than 7 bytes")
    assert played.journal.finished and len(played.journal.steps) == 3


def test_an_attempt_that_continues_restores_first_and_repeats_no_kept_step() -> None:
    made = plan(EVERYTHING, SPEC, steps={"a": FULL}, root=SHARED, environment_files=True)
    first = play(made)
    second = continued(first, made, (1,))
    assert second.ids[:3] == ["/restore", "/prepare", "/healthcheck"], "the environment's files are in the checkpoint"
    assert all(each.id.startswith("2//") or each.id.startswith("2/b/") for each in second.operations)
    assert [run.rewards for run in second.journal.steps] == [run.rewards for run in first.journal.steps]
    assert second.journal.steps[0].checkpoint == CheckpointStatus(digest="kept 0")
    assert second.journal.rewards == first.journal.rewards


def test_a_checkpoint_that_cannot_be_restored_costs_the_attempt_and_is_nobodys_failure() -> None:
    made = plan(THREE, SPEC)
    lost = continued(play(made), made, (1, 1), {"/restore": {"error": "Damaged: not what its manifest describes"}})
    assert lost.ids == ["/restore"]
    assert lost.journal.lost == AttemptLost("RestoreFailed", "Damaged: not what its manifest describes")
    assert not lost.journal.finished and lost.journal.steps == []
