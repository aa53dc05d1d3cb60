"""Test the script of a regrade, which verifies the steps of another trial again and runs no agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.trial.regrade import RegradeStatus, SourceAgent, SourceException, SourceStep
from multistep.api.trial.status import ExceptionStatus, StepStatus
from multistep.engine.journal.journal import AttemptLost, Journal, StepRun
from multistep.engine.journal.journal import StepException as StepRunException
from multistep.engine.journal.operations import Note, Release, Restore
from multistep.engine.score.score_in_sweep import agent_may_have_caused
from multistep.engine.script.regrade_script import source_exception, unfit_steps
from multistep.errors import InvalidSpec
from tests.support.played import FAULT, THREE, Played, plan, play, rewarded
from tests.unit.engine.script_cases import GATED, SINGLE

REGRADE: dict[str, Any] = {"regrade": {"trial": "source"}, "agent": {"name": "nop"}}
TIMEOUT = SourceException(type="AgentTimeoutError", phase="agent", message="too slow")
SETUP = SourceException(type="RuntimeError", phase="setup", message="setup.sh failed")
DIED = SourceException(type="FileNotFoundError", phase="agent", message="no solve.sh")
KEYLESS = SourceException(type="AgentAuthenticationError", phase="agent", message="401: no such key")


def ran(*names: str, **exceptions: SourceException) -> RegradeStatus:
    steps = [SourceStep(name=each, checkpoint=f"of {each}", exception=exceptions.get(each)) for each in names]
    return RegradeStatus(trial="source", uid="1", agent=SourceAgent(name="x"), steps=steps)


def regraded(
    source: RegradeStatus, toml: str = THREE, results: Mapping[str, Any] | None = None, spec: Mapping[str, Any] | None = None
) -> Played:
    return play(plan(toml, {**REGRADE, **(spec or {})}), results, source=source)


def test_each_step_is_verified_in_a_fresh_pod_with_the_files_of_its_source() -> None:
    played = regraded(ran("a", "b", "c"))
    assert [id for id in played.ids if id.startswith(("/", "b/"))] == [
        "/prepare", "b/begin", "b/verifier/environment", "b/verifier/prepare", "b/verifier/restore", "b/verifier/verify",
        "b/verifier/step-tests", "b/verifier/verifier", "b/verifier/collect", "b/release", "b/end",
    ]  # fmt: skip
    assert played.operation("b/verifier/restore") == Restore("1/b/verifier/restore", 1, (), where="verifier")
    assert {type(each) for each in played.operations if each.where == "agent"} == {Note, Release}, (
        "the trial's own pod runs nothing"
    )
    journal = played.journal
    assert journal.finished and journal.all_steps and journal.rewards == {"reward": 1.0}
    assert [run.checkpoint and run.checkpoint.digest for run in journal.steps] == ["of a", "of b", "of c"]
    assert (journal.started_at, journal.completed_at) == (10.0, played.records["1/c/end"].started_at)


def test_only_the_directories_of_the_spec_are_restored() -> None:
    played = regraded(ran("a", "b", "c"), spec={"verifier": {"paths": ["/app"]}})
    assert played.operation("a/verifier/restore").paths == ("/app",)


def test_an_agents_exception_is_taken_over_and_the_step_is_verified() -> None:
    journal = regraded(ran("a", "b", "c", b=TIMEOUT), spec={"onAgentError": "Continue"}).journal
    assert [run.exception and run.exception.type for run in journal.steps] == [None, "AgentTimeoutError", None]
    assert [run.rewards for run in journal.steps] == [{"reward": 1.0}] * 3


def test_an_agents_exception_ends_the_trial_as_it_did_in_the_source() -> None:
    journal = regraded(ran("a", a=TIMEOUT), spec={"onAgentError": "Abort"}).journal
    assert journal.finished and [run.rewards for run in journal.steps] == [{"reward": 1.0}] and not journal.all_steps


def test_a_step_that_failed_before_its_agent_is_not_verified() -> None:
    played = regraded(ran("a", a=SETUP))
    assert played.ids == ["/prepare", "a/begin", "a/end"]
    assert played.journal.steps[0].rewards is None and played.journal.finished


@pytest.mark.parametrize(("exception", "reward"), [(None, 1.0), (TIMEOUT, 1.0), (DIED, 1.0), (KEYLESS, None)])
def test_a_single_step_is_verified_if_it_was_in_the_source(exception: SourceException | None, reward: float | None) -> None:
    source = ran("task", **({"task": exception} if exception else {}))
    journal = regraded(source, SINGLE).journal
    assert (journal.rewards or {}).get("reward") == reward
    assert journal.exception == journal.steps[0].exception


def test_a_step_after_whose_exception_harbor_does_not_verify_is_not_verified_unless_the_regrade_says_so() -> None:
    source = ran("a", a=KEYLESS)
    assert regraded(source).journal.rewards is None
    changed = {"scoring": {"overrideErrorPolicy": {KEYLESS.type: {"grade": True}}}}
    assert regraded(source, spec=changed).journal.rewards == {"reward": 1.0}


def test_a_gate_that_is_not_met_ends_the_trial() -> None:
    journal = regraded(ran("a", "b", "c"), GATED, {"b/verifier/verifier": rewarded(txt="0")}).journal
    assert journal.finished and [(run.name, run.gate_passed) for run in journal.steps] == [("a", None), ("b", False)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            ran("a", "b"),
            "step b lets the trial continue, but trial source ended before step c: it has no files of that step to verify",
        ),
        (ran(), "the trial has steps, but trial source ended before step a: it has no files of that step to verify"),
    ],
)
def test_a_trial_that_would_go_on_where_its_source_ended_fails(source: RegradeStatus, message: str) -> None:
    journal = regraded(source, GATED).journal
    assert journal.lost == AttemptLost("RegradeIncomplete", message, final=True)
    assert journal.rewards is None and not journal.finished


NO_FILE = "the verifier wrote neither /logs/verifier/reward.json nor /logs/verifier/reward.txt"


def ran_by_another(*others: str) -> RegradeStatus:
    found = ran("a", "b", "c")
    steps = [each.model_copy(update={"trial": "base"}) if each.name in others else each for each in found.steps]
    return found.model_copy(update={"steps": steps})


def test_steps_that_another_trial_ran_are_verified_and_count_in_the_reward_but_not_in_the_score() -> None:
    journal = regraded(ran_by_another("a"), results={"a/verifier/verifier": rewarded(txt="0")}).journal
    assert journal.finished and [run.trial for run in journal.steps] == ["base", None, None]
    assert journal.rewards == {"reward": 2 / 3} and journal.score_rule is not None and journal.score_rule.steps == 2


@pytest.mark.parametrize(
    ("toml", "result", "why"),
    [
        (GATED, rewarded(txt="0"), "reward is 0, below min_reward 0.5"),
        (THREE, rewarded(), f"{NO_FILE}; test.sh exited with status 0"),
    ],
)
def test_a_regrade_that_would_end_before_its_sources_first_step_has_no_score(toml: str, result: Any, why: str) -> None:
    """A score would judge the agent of trial base, which ran step b, and not the agent of trial source."""
    journal = regraded(ran_by_another("a", "b"), toml, {"b/verifier/verifier": result}).journal
    message = f"step b, which trial base ran, would end the trial before the first step of trial source: {why}"
    assert journal.lost == AttemptLost("RegradeIncomplete", message, final=True) and not journal.finished


def test_no_agent_is_blamed_for_the_verifier_of_a_step_that_another_trial_ran() -> None:
    killed = StepRunException("OutOfMemoryError", "killed", "verifier")
    for trial, blamed in (("base", False), (None, True)):
        assert agent_may_have_caused(killed, Journal(steps=[StepRun("a", trial=trial)])) is blamed


def test_a_pod_that_could_not_be_restored_ends_the_attempt() -> None:
    refused = {"error": "it was made in the image x", "byAgent": False}
    journal = regraded(ran("a", "b", "c"), results={"b/verifier/restore": refused}).journal
    assert journal.lost == AttemptLost("VerifierEnvironmentFailed", "it was made in the image x")
    assert [run.name for run in journal.steps] == ["a", "b"] and journal.steps[1].completed_at is None


def test_a_verifier_that_fails_is_the_steps_exception() -> None:
    run = regraded(ran("a", "b", "c"), results={"a/verifier/tests": FAULT, "a/verifier/step-tests": FAULT}).journal.steps[0]
    assert run.exception is not None and (run.exception.type, run.exception.phase) == ("AddTestsDirError", "verifier")


def test_the_trials_own_pod_needs_no_list_of_files_and_no_checkpoint_is_made() -> None:
    made = plan(THREE, {**REGRADE, "checkpoints": {"policy": "AfterStep", "keep": "WithResults"}})
    assert made.regrade and made.separate and not made.uses_checkpoints and made.checkpoints is None
    assert all(step.verified_restored for step in made.steps)


def test_a_verifier_with_an_environment_of_its_own_is_refused_by_name() -> None:
    separate = THREE.replace('name = "b"\n', 'name = "b"\n[steps.verifier]\nenvironment_mode = "separate"\n')
    with pytest.raises(InvalidSpec, match=r"spec\.regrade: environment: step b is verified on artifacts, not on a checkpoint"):
        plan(separate, REGRADE)


def test_steps_that_the_task_does_not_have_are_refused() -> None:
    made = plan(THREE, REGRADE)
    assert list(unfit_steps(made, ran("a", "b"))) == []
    assert list(unfit_steps(made, ran("a", "c"))) == ["trial source ran the steps a, c, and the task has a, b, c"]
    assert list(unfit_steps(made, ran())) == ["trial source ran no step"]


@pytest.mark.parametrize(
    ("phase", "taken"),
    [("setup", True), ("healthcheck", True), ("agent", True), ("verifier", False), ("artifacts", False), (None, False)],
)
def test_exceptions_before_the_verification_are_taken_over(phase: str | None, taken: bool) -> None:
    step = StepStatus(name="a", exception=ExceptionStatus(type="X", message="m" * 1000, phase=phase))
    found = source_exception(step)
    assert (found is not None) == taken
    if found is not None:
        assert (found.type, found.phase, len(found.message)) == ("X", phase, 128)
    assert source_exception(StepStatus(name="a")) is None
