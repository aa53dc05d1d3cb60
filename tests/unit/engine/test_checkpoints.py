"""Test checkpoints in a trial's script, and scripts that resume after the steps of earlier attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from multistep.agents import script_of
from multistep.api.trial.content_references import Content
from multistep.api.trial.status import CheckpointStatus
from multistep.engine.journal.journal import AttemptLost
from multistep.engine.journal.operations import Checkpoint, Start, Upload
from multistep.engine.script.operation_scope import KeptStep
from multistep.engine.script.trial_script import AgentScript
from tests.support.played import THREE, Played, plan, play, rewarded
from tests.unit.engine.script_cases import EVERYTHING, FULL, GATED, SHARED, SINGLE, failing_setup

SPEC: dict[str, Any] = {"checkpoints": {"policy": "AfterStep", "exclude": ["/root/.cache"], "maxBytes": 7}}


def kept(*attempts: int) -> tuple[KeptStep, ...]:
    return tuple(KeptStep(each, CheckpointStatus(digest=f"kept {index}")) for index, each in enumerate(attempts))


def continued(first: Played, made: Any, attempts: tuple[int, ...], results: Any = None) -> Played:
    """Play attempt 2 of a trial, which resumes after its first steps, with the records of these steps from ``first``. attempts: for
    each kept step, the attempt that ran it."""
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


KEPT: dict[str, Any] = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}}


@pytest.mark.parametrize(
    ("toml", "results", "made"),
    [
        (THREE, {}, [("1/a/checkpoint", False), ("1/b/checkpoint", False), ("1/c/checkpoint", True)]),
        (GATED, {"b/verifier": rewarded(txt="0")}, [("1/a/checkpoint", False), ("1/b/checkpoint", True)]),
        (THREE, {"a/agent": {"exitCode": None, "timedOut": True}}, [("1/a/checkpoint", True)]),
        (SINGLE, {}, [("1/task/checkpoint", True)]),
    ],
    ids=["all steps", "a gate that is not met", "an agent's failure", "a single step"],
)
def test_checkpoints_that_are_kept_with_the_results_include_that_after_the_last_step(
    toml: str, results: dict[str, Any], made: list[tuple[str, bool]]
) -> None:
    played = play(plan(toml, {**KEPT, "onAgentError": "Abort"}), results)
    assert [(each.id, each.final) for each in played.operations if isinstance(each, Checkpoint)] == made
    assert played.journal.finished and played.journal.steps[-1].checkpoint is not None


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
    assert not lost.journal.finished
    assert [run.name for run in lost.journal.steps] == ["a", "b"], "the steps stay kept, whatever happens to the restore"


@pytest.mark.parametrize(
    ("toml", "results", "message"),
    [
        (EVERYTHING, {"/healthcheck": {"healthy": False, "exitCode": 7}}, "environment.healthcheck: 'up' failed after"),
        (
            THREE,
            {"/prepare": {"error": {"code": "Reset", "message": "no directory"}}},
            "creating /logs: no directory",
        ),
    ],
)
def test_a_failure_between_a_restore_and_the_next_step_is_the_checkpoints(toml: str, results: dict[str, Any], message: str) -> None:
    made = plan(toml, SPEC, steps={"a": FULL}, root=SHARED)
    lost = continued(play(made), made, (1,), results).journal
    assert lost.lost is not None and lost.lost.reason == "RestoreFailed"
    assert lost.lost.message.startswith(f"after the restore: {message}")
    assert not lost.finished and not lost.broken and lost.exception is None
    first = play(made, results).journal
    assert first.broken and first.lost is None, "at the first start it is the task's"


@pytest.mark.parametrize("reason", ["AgentSetupFailed", "ProviderRejected"])
def test_a_failed_setup_of_the_agent_after_a_restore_is_not_the_checkpoints_by_itself(reason: str) -> None:
    made = plan(THREE, SPEC)
    records = {id: each for id, each in play(made).records.items() if id.startswith("1/a/")}
    played = play(made, attempt=2, kept=kept(1), records=records, script=AgentScript(script_of(made).run, failing_setup(reason)))
    assert played.journal.lost == AttemptLost(reason, "no network")


WITH_RESUME = replace(FULL, resume=True)


def test_resume_sh_of_each_kept_step_runs_after_the_restore_from_a_copy_that_no_agent_can_change() -> None:
    made = plan(THREE, SPEC, steps={"a": WITH_RESUME, "b": FULL})
    second = continued(play(made), made, (1, 1))
    assert second.ids[:5] == ["/restore", "/prepare", "/resume-0-files", "/resume-0", "c/begin"]
    files, run = second.operations[2], second.operations[3]
    assert isinstance(files, Upload) and isinstance(run, Start)
    assert (files.target, files.content) == ("/run/multistep/resume-0", Content("workdir", "a"))
    assert (run.argv, run.cwd) == (("bash", "/run/multistep/resume-0/resume.sh"), "/app")
    assert not any("resume" in id for id in play(made).ids)


def test_a_resume_sh_that_fails_ends_the_attempt() -> None:
    made = plan(THREE, SPEC, steps={"a": WITH_RESUME})
    lost = continued(play(made), made, (1,), {"/resume-0": {"exitCode": 3, "tail": "no port"}}).journal.lost
    assert lost == AttemptLost("RestoreFailed", "after the restore: resume.sh of step a exited with status 3: no port")


def test_what_a_restore_loses_is_shown() -> None:
    results: dict[str, Any] = {"a/checkpoint": {"processes": 2}, "b/checkpoint": {"sharedMemory": True}}
    shown = [run.checkpoint for run in play(plan(THREE, SPEC), results).journal.steps[:2]]
    assert [(each.processes, each.shared_memory) for each in shown if each] == [(2, None), (None, True)]
