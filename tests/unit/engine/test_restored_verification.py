"""Test steps that are verified in a fresh pod with the restored files of the agent: spec.verifier.isolation Separate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from multistep.engine.journal.journal import AttemptLost
from multistep.engine.journal.operations import Checkpoint, Restore, Start, Upload
from tests.support.played import FAULT, THREE, plan, play
from tests.unit.engine.script_cases import EVERYTHING, FULL, SHARED, SINGLE

APART: dict[str, Any] = {
    "verifier": {"isolation": "Separate", "paths": ["/app"]},
    "checkpoints": {"exclude": ["/tmp"], "maxBytes": 9},
}
ENVIRONMENT = "the environment for the verifier"


def test_the_files_are_stored_before_the_verification_and_restored_in_its_pod() -> None:
    made = plan(EVERYTHING, APART, steps={"a": FULL}, root=SHARED, environment_files=True)
    played = play(made)
    first = [id for id in played.ids if id.startswith("a/")]
    verified = first[first.index("a/snapshot") :]
    assert verified == [
        "a/snapshot", "a/verifier/environment", "a/verifier/prepare", "a/verifier/restore", "a/verifier/verify",
        "a/verifier/tests", "a/verifier/step-tests", "a/verifier/verifier", "a/verifier/collect", "a/release", "a/end",
    ]  # fmt: skip
    assert played.operation("a/snapshot") == Checkpoint("1/a/snapshot", 0, ("/tmp",), 9, complete=False, alone=True)
    assert played.operation("a/verifier/restore") == Restore("1/a/verifier/restore", 0, ("/app",), where="verifier")
    assert [run.rewards for run in played.journal.steps] == [run.rewards for run in play(replace_none(made)).journal.steps]


def replace_none(made: Any) -> Any:
    """Return the plan, changed to verify all steps in the agent's environment."""
    steps = tuple(replace(each, verifier=each.verifier and replace(each.verifier, environment=None)) for each in made.steps)
    return replace(made, steps=steps)


def test_the_verifiers_environment_is_the_agents() -> None:
    made = plan(EVERYTHING, {**APART, "environment": {"image": "img"}}, steps={"a": FULL})
    verifier = made.steps[0].verifier
    assert verifier is not None and verifier.environment is not None
    assert (verifier.environment.image, verifier.environment.env) == ("img", made.environment_env)
    assert made.uses_checkpoints and made.separate and made.checkpoints is None
    assert not plan(THREE).uses_checkpoints


def test_a_single_step_task_is_verified_apart_too() -> None:
    assert "task/snapshot" in play(plan(SINGLE, APART, root=FULL)).ids


def test_a_step_whose_changes_are_too_large_has_no_verdict() -> None:
    run = play(plan(THREE, APART), {"a/snapshot": {"missing": "TooLarge: more than 9 bytes", "byAgent": True}}).journal.steps[0]
    assert run.exception is not None and run.rewards is None and run.lost is None
    assert (run.exception.message, run.exception.phase) == (f"storing {ENVIRONMENT}: TooLarge: more than 9 bytes", "verifier")


def test_a_checkpoint_that_is_not_possible_for_another_reason_ends_the_attempt() -> None:
    journal = play(plan(THREE, APART), {"a/snapshot": {"missing": "NoBase: x", "byAgent": False}}).journal
    assert journal.lost == AttemptLost("VerifierEnvironmentFailed", f"storing {ENVIRONMENT}: NoBase: x")
    assert journal.rewards is None and not journal.finished


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"a/verifier/restore": {"error": "Restore: x", "byAgent": True}}, f"restoring {ENVIRONMENT}: Restore: x"),
        ({"a/verifier/verify": FAULT}, "emptying /logs/verifier and /tests: no space left"),
        ({"a/verifier/resume-0": {"exitCode": 2}}, "resume.sh of step a exited with status 2"),
        ({"a/verifier/resume-0-files": FAULT}, "uploading workdir/ of step a: no space left"),
    ],
)
def test_an_environment_that_cannot_be_restored_is_an_exception_of_the_step(results: dict[str, Any], message: str) -> None:
    run = play(plan(THREE, APART, steps={"a": replace(FULL, resume=True)}), results).journal.steps[0]
    assert run.exception is not None and run.lost is None and run.rewards is None
    assert (run.exception.message, run.exception.phase) == (message, "verifier")


def test_a_verifiers_pod_with_another_image_ends_the_attempt() -> None:
    refused = {"error": "it was made in the image x", "byAgent": False}
    journal = play(plan(THREE, APART), {"a/verifier/restore": refused}).journal
    assert journal.lost == AttemptLost("VerifierEnvironmentFailed", "it was made in the image x")


def test_what_the_steps_left_running_is_started_again_for_the_verifier() -> None:
    played = play(plan(THREE, APART, steps={"a": replace(FULL, resume=True)}))
    ids = [id for id in played.ids if "resume" in id]
    assert ids == [f"{step}/verifier/resume-0{end}" for step in "abc" for end in ("-files", "")]
    files, run = played.operation(ids[0]), played.operation(ids[1])
    assert isinstance(files, Upload) and isinstance(run, Start)
    assert (files.where, run.where, run.cwd) == ("verifier", "verifier", "/judge")
    verifier = plan(THREE, APART).steps[0].verifier
    assert verifier is not None and run.timeout == verifier.timeout, "it may start programs that the agent changed"
