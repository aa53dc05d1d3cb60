"""Test a trial's score in a sweep, from its steps' results: an agent gains nothing by preventing a verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.error_policy import OUT_OF_RESOURCES, POLICIES, SPENT_BUDGET, ErrorPolicyOverride
from multistep.api.trial.regrade import RegradeStatus, SourceAgent
from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import Condition, PhaseSeconds, StepStatus, TrialStatus, VerifierStatus
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.journal.journal import Journal, StepException, StepRun
from multistep.engine.score.score_in_sweep import (
    agent_may_have_caused,
    agent_used_deadline,
    counted_score,
    failure_class_of,
)
from multistep.engine.script.trial_script import add_trial_rewards
from multistep.engine.status import trial_status as status
from multistep.engine.status.status_size import to_json
from multistep.engine.sweep.next_trials import TrialFacts, count_trials
from multistep.engine.sweep.trial_grid import TrialGrid
from multistep.engine.sweep.trial_manifests import trial_facts
from tests.support.played import COMPLETE, FAULT, IMAGE, NO_SPACE, ONE, THREE, Played, plan, play, rewarded

NOW = 1_700_000_000.0
START = datetime.fromtimestamp(NOW, UTC)
ZERO = rewarded(txt="0")
EXIT_1 = {"exitCode": 1}
TIMED_OUT = rewarded(txt="1", timedOut=True, exitCode=None)
UNHEALTHY = {"healthy": False, "attempts": 3, "exitCode": 1}
KILLED: dict[str, Any] = {"oomKills": 1, "signal": 9, "exitCode": None}
WITH_SETUP = {name: replace(COMPLETE, workdir=True, setup=True) for name in "abc"}
CHECKED = IMAGE + "".join(f'[[steps]]\nname = "{name}"\n[steps.healthcheck]\ncommand = "up"\n' for name in "abc")
APART = 'artifacts = ["/out"]\n' + IMAGE + '[[steps]]\nname = "a"\n[steps.verifier]\nenvironment_mode = "separate"\n'
EXCLUDE = Scoring(agent_errors="Exclude", environment_errors="Exclude")


def resource(trial_status: TrialStatus, number: int = 0) -> dict[str, Any]:
    """Return the JSON object of a finished trial, as a sweep reads it."""
    labels = {"multistep.dev/number": str(number)}
    return {"metadata": {"name": "t", "labels": labels}, "spec": {}, "status": to_json(trial_status)}


def trial(**spec: Any) -> MultiStepTrial:
    return parse_trial({"metadata": {"name": "t", "uid": "u"}, "spec": {"task": {"inline": {"config": {}}}, **spec}})


def finished(journal: Journal, spec: Mapping[str, Any] | None = None) -> TrialStatus:
    if journal.broken:
        return status.failed(trial(), "EnvironmentFailed", "broken", NOW, journal=journal)
    return status.complete(trial(**(spec or {})), journal, None, NOW)


def known(played: Played, number: int = 0) -> TrialFacts:
    return trial_facts(resource(finished(played.journal), number))


def score(played: Played, scoring: Scoring | None = None) -> float | None:
    return counted_score(known(played), scoring or Scoring())


# By the event with which an agent prevents a later step's reward: the task, and the results of the step's operations.
DROPS: Mapping[str, tuple[str, Mapping[str, Mapping[str, Any]]]] = {
    "the verifier times out": (THREE, {"b/verifier": TIMED_OUT}),
    "the verifier writes no reward": (THREE, {"b/verifier": rewarded()}),
    "the verifier writes an empty reward": (THREE, {"b/verifier": rewarded(txt="")}),
    "the verifier writes no number": (THREE, {"b/verifier": rewarded(json='{"reward": "x"}')}),
    "the verifier is out of memory": (THREE, {"b/verifier": rewarded(**KILLED)}),
    "tests/ cannot be uploaded": (THREE, {"b/step-tests": FAULT}),
    "the disk is full": (THREE, {"b/verify": NO_SPACE}),
    "a later setup.sh fails": (THREE, {"b/setup": EXIT_1}),
    "a later healthcheck fails": (CHECKED, {"b/healthcheck": UNHEALTHY}),
    "a later step finds no space": (THREE, {"b/begin": NO_SPACE}),
    "a later step cannot begin": (THREE, {"c/begin": FAULT}),
}


@pytest.mark.parametrize("way", DROPS)
def test_an_agent_that_prevents_its_verdicts_does_not_beat_an_honest_one(way: str) -> None:
    toml, results = DROPS[way]
    task = plan(toml, steps=WITH_SETUP)
    solved, failed, dropped = play(task), play(task, {"b/verifier": ZERO, "c/verifier": ZERO}), play(task, results)

    honest = [known(solved if number < 2 else failed, 2 * number) for number in range(6)]
    dropper = [known(solved if number < 2 else dropped, 2 * number + 1) for number in range(6)]
    grid = TrialGrid(["task"], ["honest", "dropper"], 6)
    found = count_trials(grid, 12, [*honest, *dropper], NOW).agents
    assert [each.counted for each in found] == [6, 6]
    assert found[0].mean is not None and found[1].mean is not None
    assert found[1].mean <= found[0].mean


@pytest.mark.parametrize("result", [TIMED_OUT, rewarded(), rewarded(txt=""), rewarded(txt="x"), rewarded(**KILLED)])
@pytest.mark.parametrize("toml", [IMAGE, APART])
def test_a_verifier_that_fails_after_an_agent_counts_0_in_a_shared_and_in_a_separate_pod(
    toml: str, result: Mapping[str, Any]
) -> None:
    name = "task/verifier" if toml == IMAGE else "a/verifier/verifier"
    ended = play(plan(toml), {name: result, "a/verifier": result})
    assert ended.journal.exception is not None or ended.journal.steps[0].exception is not None
    assert (known(ended).failure_class, score(ended), score(ended, EXCLUDE)) == ("Verifier", 0, None)


def test_a_verifiers_pod_that_fails_before_it_has_anything_of_the_agents_is_not_charged_to_the_agent() -> None:
    judge = '[steps.verifier.environment]\ndocker_image = "judge"\n'
    toml = APART + judge + '[steps.verifier.environment.healthcheck]\ncommand = "up"\n'
    for name, result in (("a/verifier/healthcheck", UNHEALTHY), ("a/verifier/prepare", FAULT)):
        ended = play(plan(toml), {name: result})
        assert ended.journal.steps[0].exception is not None
        assert score(ended) is None
    handed_over = play(plan(toml), {"a/verifier/artifact-0": NO_SPACE})
    assert (known(handed_over).failure_class, score(handed_over)) == ("Verifier", 0)


@pytest.mark.parametrize("results", [{"a/setup": EXIT_1}, {"a/healthcheck": UNHEALTHY}, {"a/begin": NO_SPACE}, {"a/begin": FAULT}])
def test_what_fails_before_any_agent_ran_is_the_tasks_and_excluded(results: Mapping[str, Any]) -> None:
    ended = play(plan(CHECKED, steps=WITH_SETUP), results)
    assert (known(ended).failure_class, score(ended)) == ("Task", None)


def test_what_the_task_lacks_is_excluded_though_an_agent_has_run() -> None:
    env = play(plan(IMAGE + '[verifier.env]\nKEY = "${NOWHERE}"\n'))
    assert env.journal.exception is not None and env.journal.exception.type == "ValueError"
    assert (known(env).failure_class, score(env)) == ("Task", None)
    missing = play(plan(spec={"agent": {"name": "oracle"}}, steps={"b": replace(COMPLETE, solution=False, solve_script=False)}))
    assert missing.journal.steps[-1].exception is not None and missing.journal.steps[-1].exception.type == "FileNotFoundError"
    assert score(missing) is None


def test_steps_without_a_verdict_count_0_and_steps_that_were_never_to_have_one_do_not() -> None:
    ended = play(plan(THREE), {"b/verifier": rewarded()})
    assert ended.journal.rewards == {"reward": 1.0}
    assert score(ended) == pytest.approx(1 / 3)
    assert score(play(plan('multi_step_reward_strategy = "final"\n' + THREE), {"b/verifier": rewarded()})) == 0
    unverified = plan(THREE, {"verifier": {"disable": True}})
    journal = Journal(steps=[StepRun("a", phase="agent", exception=StepException("ContainerKilledError", "", "agent"))])
    add_trial_rewards(unverified, journal)
    assert finished(journal).score is None


def test_a_gate_ends_a_trial_with_0_for_later_steps_whatever_the_agent_ended_with() -> None:
    toml = THREE.replace('name = "b"\n', 'name = "b"\nmin_reward = 1.0\n')
    agent = {"agent": {"name": "command", "command": ["x"]}}
    ended = play(plan(toml, agent), {"b/agent": EXIT_1, "b/verifier": ZERO})
    assert (len(ended.journal.steps), score(ended), score(ended, EXCLUDE)) == (2, 1 / 3, 1 / 3)


def test_an_agent_that_kills_its_container_after_a_solved_step_is_not_paid_for_the_others() -> None:
    task = plan(THREE)
    journal = Journal(
        steps=[
            StepRun("a", rewards={"reward": 1.0}, completed_at=20.0),
            StepRun("b", phase="agent", exception=StepException("ContainerKilledError", "status 139", "agent"), completed_at=30.0),
        ],
        finished=True,
    )
    add_trial_rewards(task, journal)
    ended = trial_facts(resource(finished(journal)))
    assert (ended.failure_class, journal.rewards, ended.agent_error) == ("Agent", {"reward": 1.0}, True)
    assert counted_score(ended, Scoring()) == pytest.approx(1 / 3)
    assert counted_score(ended, Scoring(agent_errors="Exclude")) is None
    assert counted_score(ended, Scoring(environment_errors="Exclude")) == pytest.approx(1 / 3)


def test_a_container_killed_between_steps_by_what_an_agent_left_counts_too() -> None:
    died = StepException("ContainerKilledError", "status 139")
    journal = Journal(steps=[StepRun("a", phase="complete", rewards={"reward": 1.0})], exception=died, finished=True)
    add_trial_rewards(plan(THREE), journal)
    assert agent_may_have_caused(died, journal)
    assert counted_score(trial_facts(resource(finished(journal))), Scoring()) == pytest.approx(1 / 3)
    assert not agent_may_have_caused(died, Journal())


def test_a_custom_class_may_have_caused_a_failure_in_the_first_steps_setup() -> None:
    failed = StepException("RuntimeError", "setup.sh exited with status 1", "setup")
    assert agent_may_have_caused(failed, Journal(steps=[StepRun("a")], class_ran_at=1.0))
    assert not agent_may_have_caused(failed, Journal(steps=[StepRun("a")]))


def solved(type_: str, phase: str, scoring: Scoring) -> float | None:
    """Return the counted score of a trial with the reward 1 in both steps, whose first step has an exception of this type."""
    exception = {"type": type_, "message": "", "phase": phase}
    steps = [{"name": "a", "rewards": {"reward": 1.0}, "exception": exception}, {"name": "b", "rewards": {"reward": 1.0}}]
    conditions = [{"type": "Complete", "status": "True", "reason": "TrialComplete", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    over = {"conditions": conditions, "rewards": {"reward": 1.0}, "score": 1.0, "steps": steps}
    return counted_score(trial_facts({"metadata": {"name": "t"}, "status": over}, scoring), scoring)


INVALID = sorted({name for name, policy in POLICIES.items() if not policy.valid} - {SPENT_BUDGET} | OUT_OF_RESOURCES)
VALID = sorted({name for name, policy in POLICIES.items() if policy.valid} | {SPENT_BUDGET, "RuntimeError", "NoSuchError"})


@pytest.mark.parametrize("type_", INVALID)
def test_a_sweep_chooses_what_becomes_of_an_agents_errors_in_any_step(type_: str) -> None:
    exclude = Scoring(agent_errors="Exclude")
    assert solved(type_, "agent", Scoring()) == 1
    assert solved(type_, "agent", exclude) is None
    assert solved(type_, "verifier", exclude) == 1
    counting = Scoring(agent_errors="Exclude", override_error_policy={type_: ErrorPolicyOverride(valid=True)})
    assert solved(type_, "agent", counting) == 1


@pytest.mark.parametrize("type_", VALID)
def test_an_agents_error_after_which_harbor_counts_the_reward_counts_unless_the_sweep_names_it(type_: str) -> None:
    assert solved(type_, "agent", Scoring(agent_errors="Exclude")) == 1
    named = Scoring(agent_errors="Exclude", override_error_policy={type_: ErrorPolicyOverride(valid=False)})
    assert solved(type_, "agent", named) is None


def judged(changes: Mapping[str, Any], results: Mapping[str, Any]) -> TrialFacts:
    """Return the facts of a trial of two steps with these results. changes: spec.scoring.overrideErrorPolicy."""
    spec = {"agent": {"name": "command", "command": ["x"]}, "scoring": {"overrideErrorPolicy": changes}}
    toml = IMAGE + "".join(f'[[steps]]\nname = "{name}"\n' for name in "ab")
    ended = play(plan(toml, {**spec, "onAgentError": "Continue"}), results)
    return trial_facts(resource(finished(ended.journal, spec=spec)))


def test_a_spec_excludes_trials_in_any_step_of_which_an_exception_of_a_type_was_raised() -> None:
    results = {"a/agent": EXIT_1, "a/verifier": ONE, "b/verifier": ONE}
    ended = judged({"NonZeroAgentExitCodeError": {"valid": False}}, results)
    assert (ended.score, ended.failure_class, ended.passed) == (None, "Agent", False)
    assert judged({"NonZeroAgentExitCodeError": {"valid": True}}, results).score == 1
    assert judged({"AgentTimeoutError": {"valid": False}}, results).score == 1


def test_a_verifiers_failure_that_a_spec_tolerates_counts_whatever_the_sweep_says_of_environments() -> None:
    ended = {"a/verifier": TIMED_OUT}
    tolerant = Scoring(
        environment_errors="Exclude", override_error_policy={"VerifierTimeoutError": ErrorPolicyOverride(valid=True)}
    )
    toml = plan(THREE)
    facts = trial_facts(resource(finished(play(toml, ended).journal)), tolerant)
    assert counted_score(facts, tolerant) == 0
    assert counted_score(trial_facts(resource(finished(play(toml, ended).journal))), EXCLUDE) is None


def test_an_agent_that_used_up_its_time_keeps_its_reward_whatever_the_sweep_chooses() -> None:
    agent = {"agent": {"name": "command", "command": ["x"]}}
    ended = play(plan(IMAGE, agent), {"task/agent": {"timedOut": True, "exitCode": None}, "task/verifier": ONE})
    assert (known(ended).failure_class, score(ended), score(ended, EXCLUDE)) == ("Agent", 1, 1)


@pytest.mark.parametrize("reward", [1e300, -1e300, 10**400])
def test_a_reward_that_no_sum_can_hold_counts_0(reward: float) -> None:
    ended = play(plan(), {"a/verifier": rewarded(json=f'{{"reward": {reward!r}}}')})
    found = known(ended)
    assert (counted_score(found, Scoring()), counted_score(found, EXCLUDE)) == (2 / 3, None)
    assert failure_class_of(found, EXCLUDE) == "Verifier"


def test_a_mean_that_is_not_finite_counts_0() -> None:
    huge = rewarded(txt="1e308")
    ended = play(plan(THREE), {"a/verifier": huge, "b/verifier": huge, "c/verifier": huge})
    assert (known(ended).failure_class, score(ended)) == ("Verifier", 0)


@pytest.mark.parametrize("failure_class", ["Infrastructure", "User", "Task", "Verifier"])
def test_what_no_agent_can_cause_is_excluded_with_any_reward_and_any_choice(failure_class: Any) -> None:
    for scoring in (Scoring(), EXCLUDE):
        assert counted_score(TrialFacts(0, "Failed", failure_class=failure_class), scoring) is None
        assert counted_score(TrialFacts(0, "Complete", failure_class=failure_class), scoring) is None


def test_a_sweep_can_count_a_failure_of_the_provider_0_and_no_other_without_a_score() -> None:
    failed, zero = TrialFacts(0, "Failed", failure_class="Provider"), Scoring(provider_errors="Zero")
    assert (counted_score(failed, Scoring()), counted_score(failed, zero)) == (None, 0)
    assert counted_score(TrialFacts(0, "Active"), zero) is None
    for other in ("Infrastructure", "Configuration", "User", "Task"):
        assert counted_score(TrialFacts(0, "Failed", failure_class=other), zero) is None


def test_a_trial_counts_when_it_has_finished() -> None:
    assert counted_score(TrialFacts(0, "Complete", score=0.5), Scoring()) == 0.5
    assert (
        counted_score(TrialFacts(0, "Complete"), Scoring()) is None
        and failure_class_of(TrialFacts(0, "Complete"), Scoring()) == "Task"
    )
    assert (
        failure_class_of(TrialFacts(0, "Complete", score=0.5), Scoring()) is None
        and failure_class_of(TrialFacts(0, "Active"), Scoring()) is None
    )
    assert counted_score(TrialFacts(0, "Active", score=0.5), Scoring()) is None


def test_a_deadline_counts_only_against_an_agent_that_used_half_of_it() -> None:
    def at_deadline(*steps: StepStatus) -> TrialFacts:
        made = trial(activeDeadlineSeconds=100)
        made = made.model_copy(update={"status": TrialStatus(steps=list(steps))})
        return trial_facts(resource(status.failed(made, "DeadlineExceeded", "late", NOW)))

    def since(seconds: float) -> datetime:
        return START - timedelta(seconds=seconds)

    working = StepStatus(name="b", phase="Agent", start_time=since(40))
    before = StepStatus(name="a", phase="Complete", start_time=since(60), seconds=PhaseSeconds(agent=10.0))
    assert counted_score(at_deadline(before, working), Scoring()) == 0
    assert counted_score(at_deadline(working), Scoring()) is None
    setting_up = StepStatus(name="b", phase="Setup", start_time=since(90))
    assert counted_score(at_deadline(setting_up), Scoring()) is None
    assert counted_score(at_deadline(), Scoring()) is None
    assert not agent_used_deadline(TrialStatus(steps=[working]), None, NOW)
    gateway = Condition(type="Reconciling", status="True", last_transition_time=START, reason="GatewayUnavailable")
    ended = StepStatus(name="b", phase="Agent", start_time=since(90), seconds=PhaseSeconds(agent=90.0))
    works = StepStatus(name="b", phase="Agent", start_time=since(90))
    assert agent_used_deadline(TrialStatus(steps=[ended]), 100, NOW)
    assert not agent_used_deadline(TrialStatus(steps=[ended], conditions=[gateway]), 100, NOW)
    assert agent_used_deadline(TrialStatus(steps=[works], conditions=[gateway]), 100, NOW)
    stopped = status.failed(trial(activeDeadlineSeconds=1), "Stopped", "stop", NOW)
    assert counted_score(trial_facts(resource(stopped)), Scoring()) is None


def at(seconds: float) -> datetime:
    """Return the time that is so many seconds before NOW."""
    return START - timedelta(seconds=seconds)


def in_phase(phase: str, seconds: float, name: str = "b", **durations: float) -> StepStatus:
    """Return a step that started 95 s ago and whose current phase has taken so many seconds."""
    return StepStatus(
        name=name, phase=phase, start_time=at(95), phase_start_time=at(seconds), seconds=PhaseSeconds.model_validate(durations)
    )


DONE = StepStatus(name="a", phase="Complete", start_time=at(95), completion_time=at(50), seconds=PhaseSeconds(setup=1.0, agent=2.0))
JUDGING = VerifierStatus(pod_name="v")
ANOTHERS = DONE.model_copy(update={"trial": "other", "seconds": PhaseSeconds(agent=90.0)})
APART_DONE = DONE.model_copy(update={"verifier_image_id": "v", "seconds": PhaseSeconds(agent=10.0, verifier=80.0)})


@pytest.mark.parametrize(
    ("steps", "blamed", "fields"),
    [
        pytest.param([in_phase("Agent", 60)], True, {}, id="the agent runs"),
        pytest.param([in_phase("Agent", 40)], False, {}, id="the agent has just started, after a long setup"),
        pytest.param([in_phase("Verifier", 60, agent=5)], True, {}, id="survivors may starve the verifier"),
        pytest.param([in_phase("Verifier", 30, agent=25)], True, {}, id="both phases together"),
        pytest.param([in_phase("Verifier", 5, agent=5)], False, {}, id="the operator was down between two phases"),
        pytest.param([in_phase("Artifacts", 60, agent=5)], True, {}, id="the agent left many files"),
        pytest.param([in_phase("Verifier", 60, agent=5)], False, {"verifier": JUDGING}, id="the verifier's pod"),
        pytest.param([APART_DONE], False, {}, id="a former verifier's pod"),
        pytest.param([in_phase("Setup", 60, name="a")], False, {}, id="the task's setup before any agent"),
        pytest.param([DONE, in_phase("Setup", 60)], True, {}, id="the setup after an agent"),
        pytest.param([in_phase("Setup", 60, name="a")], True, {"agent_setup_time": at(95)}, id="the setup after a custom class"),
        pytest.param([ANOTHERS, in_phase("Agent", 5)], False, {}, id="another trial's agent"),
    ],
)
def test_a_missed_deadline_blames_the_agent_for_all_phases_that_it_can_slow_down(
    steps: list[StepStatus], blamed: bool, fields: Mapping[str, Any]
) -> None:
    found = TrialStatus.model_validate({"steps": steps, **fields})
    assert agent_used_deadline(found, 100, NOW) is blamed


@pytest.mark.parametrize("type_", ["ValueError", "FileNotFoundError", "HealthcheckError", "OverflowError"])
@pytest.mark.parametrize("regrade", [False, True])
def test_whatever_a_hosted_agent_raises_is_its_own_failure(type_: str, regrade: bool) -> None:
    def done(agent: str) -> TrialStatus:
        steps = [StepRun("a", phase="artifacts", rewards={"reward": 1}, exception=StepException(type_, "", "agent"))]
        journal = Journal(steps=steps, score_rule=ScoreRule(steps=2, strategy="Mean"), finished=True)
        source = RegradeStatus(trial="s", uid="s", agent=SourceAgent(name=agent)) if regrade else None
        spec = {"name": agent} if agent == "oracle" else {"importPath": agent}
        made = trial(**({"agent": {"name": "nop"}, "regrade": {"trial": "s"}} if regrade else {"agent": spec}))
        return status.complete(made.model_copy(update={"status": TrialStatus(regraded=source)}), journal, None, NOW)

    hosted = done("mine:Agent")
    assert (hosted.failure and hosted.failure.class_, hosted.score) == ("Agent", 0.5)
    assert (failure := done("oracle").failure) and failure.class_ != "Agent"  # the task's own solution is missing or broken


def test_a_failed_trial_counts_0_when_an_agent_did_it() -> None:
    ran = trial().model_copy(update={"status": TrialStatus(current_step="a")})
    assert counted_score(trial_facts(resource(status.failed(ran, "RunnerBroken", "no sense", NOW))), Scoring()) == 0
    assert counted_score(trial_facts(resource(status.failed(trial(), "PodDeleted", "gone", NOW))), Scoring()) is None
