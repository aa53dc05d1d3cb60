"""Test which steps a trial runs by spec.from, spec.fromStep and spec.toStep, and from which checkpoints such a trial can start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from multistep.agents import script_of
from multistep.api.task.layout import StepLayout
from multistep.api.trial.status import ANOTHER_TRIAL, AttemptStatus, CheckpointStatus, StepStatus
from multistep.api.trial.values import AGENT_SETUP
from multistep.engine.journal.journal import AttemptLost, Journal, StepException
from multistep.engine.journal.operations import Note, Script
from multistep.engine.plan.task_steps import TaskPart
from multistep.engine.score.failure_class import class_of_failure as failed
from multistep.engine.script.choose_checkpoint import CheckpointChoice, choose_checkpoint, unfit_start
from multistep.engine.script.operation_scope import KeptStep, Scope, TrialError
from multistep.engine.script.trial_script import AgentScript
from multistep.engine.status.trial_status import complete
from multistep.errors import InvalidSpec
from tests.support.played import IMAGE, THREE, plan, play, rewarded
from tests.support.status_cases import NOW, trial
from tests.unit.engine.script_cases import failing_setup
from tests.unit.engine.test_resuming import Made, On, after, attempt, resumed, steps


def starting(step: str) -> dict[str, Any]:
    return {"from": {"trial": "base", "step": step}}


@pytest.mark.parametrize(
    ("spec", "branch", "steps"),
    [
        ({}, TaskPart(), "abc"),
        (starting("a"), TaskPart(1), "abc"),
        (starting("b"), TaskPart(2), "abc"),
        ({"fromStep": "a"}, TaskPart(), "abc"),
        ({"fromStep": "c"}, TaskPart(2), "abc"),
        ({"toStep": "a"}, TaskPart(0, 1), "a"),
        ({"toStep": "c"}, TaskPart(0, 3), "abc"),
        ({"fromStep": "b", "toStep": "b"}, TaskPart(1, 2), "ab"),
        ({**starting("a"), "toStep": "b"}, TaskPart(1, 2), "ab"),
    ],
)
def test_a_trial_has_the_steps_that_it_keeps_and_none_after_its_last_one(
    spec: Mapping[str, Any], branch: TaskPart, steps: str
) -> None:
    made = plan(spec=spec)
    assert (made.branch, "".join(step.name for step in made.steps)) == (branch, steps)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (starting("x"), "spec.from.step: the task has no step 'x'. Its steps are a, b, c"),
        ({"fromStep": "x"}, "spec.fromStep: the task has no step 'x'. Its steps are a, b, c"),
        ({"toStep": "x"}, "spec.toStep: the task has no step 'x'. Its steps are a, b, c"),
        (starting("c"), "spec.from.step: 'c' is the task's last step: none is left to run. Its steps are a, b, c"),
        (
            {**starting("b"), "toStep": "b"},
            "spec.toStep: 'b' is before the trial's first step, by spec.from.step. Its steps are a, b, c",
        ),
        (
            {"fromStep": "b", "toStep": "a"},
            "spec.toStep: 'a' is before the trial's first step, by spec.fromStep. Its steps are a, b, c",
        ),
    ],
)
def test_an_unknown_step_and_an_empty_part_of_the_task_are_refused(spec: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        plan(spec=spec)
    assert str(error.value) == message


@pytest.mark.parametrize("spec", [starting("task"), {"fromStep": "task"}, {"toStep": "task"}])
def test_a_task_without_steps_has_none_to_start_from(spec: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=r"the task has no step 'task'\. It has no \[\[steps\]\]"):
        plan(IMAGE, spec)


def test_the_runner_restores_files_also_for_a_trial_that_makes_no_checkpoints() -> None:
    assert plan(spec=starting("a")).uses_checkpoints
    assert not plan(spec={"fromStep": "a"}).uses_checkpoints


# -- steps that another trial ran


def reported(name: str, **fields: Any) -> StepStatus:
    done = {"completionTime": "2026-01-01T00:00:00Z", "phase": "Complete", "rewards": {"reward": 0.5}, "trial": "base"}
    return StepStatus.model_validate({"name": name, **done, **fields})


def kept(*steps: StepStatus) -> tuple[KeptStep, ...]:
    return tuple(KeptStep(ANOTHER_TRIAL, CheckpointStatus(digest=f"copy of {each.name}"), each) for each in steps)


def test_steps_of_another_trial_are_taken_as_it_reported_them_and_none_of_their_operations_is_repeated() -> None:
    made = plan(spec=starting("b"))
    played = play(made, kept=kept(reported("a", gate=True), reported("b")))
    assert played.ids[:3] == ["/restore", "/prepare", "c/begin"]
    assert {id.split("/")[0] for id in played.ids} == {"", "c"}
    a, b, c = played.journal.steps
    assert [(run.name, run.trial, run.checkpoint and run.checkpoint.digest) for run in (a, b, c)] == [
        ("a", "base", "copy of a"),
        ("b", "base", "copy of b"),
        ("c", None, None),
    ]
    assert (a.gate_passed, a.rewards, a.completed_at) == (True, {"reward": 0.5}, 1767225600.0)
    assert played.journal.finished and played.journal.all_steps
    assert played.journal.rewards == {"reward": 2 / 3}, "the mean contains the kept steps"


@pytest.mark.parametrize(
    ("fields", "emptied"),
    [
        ({"seconds": {"verifier": 1.0}}, ["/logs/agent", "/logs/verifier", "/tests"]),
        ({"seconds": {"verifier": 1.0}, "verifierImageID": "img"}, ["/logs/agent"]),
        ({"seconds": {"agent": 1.0}}, ["/logs/agent"]),
        ({"durations": {"agent": 1.0}}, ["/logs/agent", "/logs/verifier", "/tests"]),
        ({"verifierImageID": "img"}, ["/logs/agent"]),
    ],
    ids=["verified in place", "verified apart", "not verified", "unknown", "unknown, apart"],
)
def test_what_a_verifier_of_another_trial_left_is_deleted_before_the_first_own_step(
    fields: Mapping[str, Any], emptied: list[str]
) -> None:
    played = play(plan(spec=starting("a")), kept=kept(reported("a", **fields)))
    assert [each.path for each in played.operation("b/begin").directories] == emptied


def raising_setup(scope: Scope, journal: Journal) -> Script[None]:
    yield Note(scope.id("agent-setup"))
    raise TrialError(StepException("RuntimeError", "on purpose", AGENT_SETUP))


def test_another_trials_files_excuse_no_failure_of_the_agents_setup() -> None:
    """The setup of a custom agent class may fail on purpose. That must not count as a failure of the other trial's checkpoint."""
    made = plan(spec=starting("a"))
    run = script_of(made).run
    lost = play(made, kept=kept(reported("a")), script=AgentScript(run, failing_setup("AgentSetupFailed"))).journal.lost
    assert lost == AttemptLost("AgentSetupFailed", "no network")
    broken = play(made, kept=kept(reported("a")), script=AgentScript(run, raising_setup)).journal
    assert broken.broken and broken.lost is None and failed("AgentSetupFailed", broken) == "Agent"
    own = KeptStep(1, CheckpointStatus(digest="own"))
    records = {id: each for id, each in play(plan()).records.items() if id.startswith("1/b/")}
    made_own = play(made, attempt=2, kept=(*kept(reported("a")), own), records=records, script=AgentScript(run, raising_setup))
    assert made_own.journal.lost is not None and made_own.journal.lost.reason == "RestoreFailed", "its own agent may be the cause"


def test_an_environment_that_another_trials_files_broke_is_nobodys_failure() -> None:
    toml = IMAGE + '[environment.healthcheck]\ncommand = "x"\n' + THREE.removeprefix(IMAGE)
    results = {"/healthcheck": {"healthy": False, "exitCode": 7}}
    found = play(plan(toml, starting("a")), results, kept=kept(reported("a"))).journal
    assert found.lost is not None and found.lost.reason == "RestoreFailed" and not found.finished


@pytest.mark.parametrize(
    ("spec", "id", "own", "score"),
    [
        ({"fromStep": "b"}, "b/healthcheck", (), None),
        ({"fromStep": "b"}, "b/verifier", (), 0.0),
        ({"fromStep": "b"}, "c/healthcheck", ("b",), 0.0),
        (starting("a"), "b/healthcheck", (), 0.0),
    ],
    ids=["reference state", "after its agent", "after its own step", "state of another agent"],
)
def test_a_step_that_fails_before_its_agent_has_no_score_if_only_the_task_made_its_files(
    spec: Mapping[str, Any], id: str, own: Sequence[str], score: float | None
) -> None:
    toml = THREE.replace('name = "b"', 'name = "b"\nhealthcheck.command = "x"') + 'healthcheck.command = "x"\n'
    result = {"healthy": False, "exitCode": 7} if id.endswith("healthcheck") else rewarded()
    verdict = {f"{each}/verifier": rewarded(txt="0") for each in own}
    journal = play(plan(toml, spec), {id: result, **verdict}, kept=kept(reported("a"))).journal
    ended = complete(trial(**spec), journal, None, NOW)
    assert (ended.failure is not None, ended.score) == (True, score)


# -- whether a trial can start from a checkpoint

RESUMES = {
    "a": StepLayout(instruction="x", workdir=True, resume=True, tests=True, test_script=True, solution=True, solve_script=True)
}


def test_a_checkpoint_with_the_tasks_steps_can_be_used() -> None:
    assert unfit_start(plan(spec=starting("b")), [reported("a"), reported("b")], Made("d")) == ""


@pytest.mark.parametrize(
    ("steps", "layer", "message"),
    [
        ([], Made("d"), "it has the steps , and those of this trial's task are a"),
        ([reported("x")], Made("d"), "it has the steps x, and those of this trial's task are a"),
        (
            [reported("a", exception={"type": "VerifierTimeoutError", "phase": "verifier"}, rewards=None)],
            Made("d"),
            "no step follows step a: VerifierTimeoutError",
        ),
        ([reported("a")], Made("d", processes=2), "a restore loses 2 processes that the step left running"),
        ([reported("a")], Made("d", shared_memory=True), "a restore loses files in /dev/shm"),
    ],
)
def test_a_checkpoint_from_which_no_step_can_start_is_refused(steps: list[StepStatus], layer: Made, message: str) -> None:
    assert message in unfit_start(plan(spec=starting("a")), steps, layer)


def test_a_gate_that_was_not_met_is_named() -> None:
    gated = IMAGE + '[[steps]]\nname = "a"\nmin_reward = 0.75\n[[steps]]\nname = "b"\n'
    assert "no step follows step a: reward" in unfit_start(plan(gated, starting("a")), [reported("a")], Made("d"))


def test_resume_sh_starts_again_what_a_restore_loses() -> None:
    assert unfit_start(plan(spec=starting("a"), steps=RESUMES), [reported("a")], Made("d", processes=2)) == ""


# -- later attempts

BRANCHED = plan(spec={**starting("b"), "checkpoints": {"policy": "AfterStep"}})
COPIES = {(0, 0): Made("c0"), (0, 1): Made("c1", base=On((0, 0), "c0"))}
OWN = {**COPIES, (1, 2): Made("own", base=On((0, 1), "c1"))}
FOUR = plan(IMAGE + "".join(f'[[steps]]\nname = "{name}"\n' for name in "abcd"), starting("b"))


def failed_attempt(number: int, *kept: int, digest: str = "c1", reason: str = "PodDeleted", **more: Any) -> AttemptStatus:
    return attempt(number, steps(), reason, resumed=resumed(*(kept or (0, 0)), digest=digest), **more)


def test_a_later_attempt_starts_where_the_first_one_did() -> None:
    assert choose_checkpoint(after(failed_attempt(1)), BRANCHED, COPIES, {}) == CheckpointChoice(((0, 0), (0, 1)), ())
    assert choose_checkpoint(after(failed_attempt(1, image_id=None)), BRANCHED, COPIES, {}).chain == ((0, 0), (0, 1)), (
        "its pod never ran"
    )


def test_a_later_attempt_continues_after_the_last_own_step() -> None:
    assert choose_checkpoint(after(failed_attempt(1)), FOUR, OWN, {}).chain == ((0, 0), (0, 1), (1, 2))


def test_a_start_that_could_not_be_restored_is_tried_once_more_and_never_replaced_by_an_earlier_step() -> None:
    once = failed_attempt(1, reason="RestoreFailed")
    assert choose_checkpoint(after(once), BRANCHED, COPIES, {}).chain == ((0, 0), (0, 1))
    name = "the checkpoint after step 2 of the other trial is not used:"
    assert choose_checkpoint(after(once, failed_attempt(2, reason="RestoreFailed")), BRANCHED, COPIES, {}) == CheckpointChoice(
        (), (f"{name} it could not be restored",)
    )
    gone = choose_checkpoint(after(failed_attempt(1)), BRANCHED, {(0, 0): COPIES[0, 0]}, {})
    assert gone == CheckpointChoice((), (f"{name} the layer of step 2 of the other trial is missing",))
    image = choose_checkpoint(after(failed_attempt(1, image_id="other")), BRANCHED, COPIES, {})
    assert image.chain == () and "it was made in the image" in image.refused[0]


def test_own_checkpoints_that_could_not_be_restored_twice_lead_back_to_the_start() -> None:
    more = {**OWN, (3, 2): Made("again", base=On((0, 1), "c1"))}
    failed = [
        failed_attempt(2, 0, 0, 1, digest="own", reason="RestoreFailed"),
        failed_attempt(4, 0, 0, 3, digest="again", reason="RestoreFailed"),
    ]
    found = choose_checkpoint(
        after(failed_attempt(1), failed[0], failed_attempt(3), failed[1], failed_attempt(5)),
        FOUR,
        {**more, (5, 2): Made("last")},
        {},
    )
    assert found.chain == ((0, 0), (0, 1))
    assert found.refused == ("the checkpoint after step 3 of attempt 5 is not used: 2 checkpoints could not be restored",)


def test_a_start_that_was_restored_at_its_second_try_is_below_own_checkpoints() -> None:
    found = choose_checkpoint(
        after(failed_attempt(1, reason="RestoreFailed"), failed_attempt(2)),
        FOUR,
        {**COPIES, (2, 2): Made("own", base=On((0, 1), "c1"))},
        {},
    )
    assert found.chain == ((0, 0), (0, 1), (2, 2))
