"""A trial's status in each state of the trial: conditions, steps, rewards and failure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import ResumeStatus, TrialStatus
from multistep.api.trial.status_journal import joined
from multistep.api.trial.trial import parse_status
from multistep.api.trial.values import AGENT
from multistep.engine.journal.journal import Collected, Journal, StepException, StepRun
from multistep.engine.status import trial_status
from multistep.engine.status.status_size import MAX_REWARD_KEYS, to_json
from tests.support.status_cases import NOW, run, trial

THEN = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def holding(made: TrialStatus) -> dict[str, str]:
    return {each.type: each.status for each in made.conditions}


# -- conditions of a status

RUNNING = {"Ready": "False", "Reconciling": "True"}
COMPLETE = {"Ready": "True", "Complete": "True"}
FAILED = {"Ready": "False", "Failed": "True", "Stalled": "True"}
HELD = {**RUNNING, "Suspended": "True"}
EVERY = {
    "Pending": trial_status.waiting(trial(), "Pending", "Unschedulable", "no node", NOW),
    "Suspended": trial_status.suspended(trial(suspend=True), NOW),
    "Started, but suspended": trial_status.attempt_started(trial(suspend=True), 2, "t-2", "task", None, NOW),
    "Paused": trial_status.paused(trial(suspend=True), Journal([run()]), NOW),
    "Suspending": trial_status.running(trial(suspend=True), Journal([run()]), NOW),
    "Started": trial_status.attempt_started(trial(), 1, "t-1", "task", None, NOW),
    "Running": trial_status.running(trial(), Journal(), NOW),
    "Complete": trial_status.complete(trial(), Journal(), "uri", NOW),
    "Failed": trial_status.failed(trial(), "InvalidSpec", "no", NOW),
}


@pytest.mark.parametrize("name", EVERY)
def test_conditions_are_a_jobs_and_kstatus_ones(name: str) -> None:
    made = EVERY[name]
    assert holding(made) == {"Complete": COMPLETE, "Failed": FAILED, "Suspended": HELD}.get(made.phase or "", RUNNING)
    assert made.observed_generation == 3
    assert {each.last_transition_time for each in made.conditions} == {THEN}
    assert all(each.reason and " " not in each.reason for each in made.conditions)


@pytest.mark.parametrize("name", EVERY)
def test_all_conditions_have_the_same_reason_and_message(name: str) -> None:
    ready, *others = EVERY[name].conditions
    assert ready.type == "Ready"
    assert {(each.status, each.reason, each.message) for each in others} == {("True", ready.reason, ready.message)}


def test_a_trial_that_was_suspended_shows_since_when_it_is_not() -> None:
    held = EVERY["Suspended"]
    resumed = trial_status.waiting(trial(held), "Pending", "PodStarting", "x", NOW + 60)
    started = trial_status.running(trial(resumed), Journal(), NOW + 120)
    for made in resumed, started:
        last = made.conditions[-1]
        assert (last.type, last.status, last.reason, last.message) == ("Suspended", "False", "NotSuspended", "")
        assert last.last_transition_time == datetime.fromtimestamp(int(NOW + 60), UTC)
    again = trial_status.suspended(trial(started, suspend=True), NOW + 180).conditions[-1]
    assert (again.status, again.last_transition_time) == ("True", datetime.fromtimestamp(int(NOW + 180), UTC))
    assert holding(trial_status.complete(trial(started), Journal(), None, NOW + 240)) == COMPLETE


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    waits = trial_status.running(trial(EVERY["Running"]), Journal(), NOW + 30)
    assert {each.last_transition_time for each in waits.conditions} == {THEN}
    later = trial_status.complete(trial(EVERY["Running"]), Journal(), None, NOW + 60)
    assert not any(each.last_transition_time == THEN for each in later.conditions)
    again = trial_status.complete(trial(later), Journal(), None, NOW + 120)
    assert [each.last_transition_time for each in again.conditions] == [each.last_transition_time for each in later.conditions]


def test_the_same_situation_makes_the_same_status() -> None:
    first = EVERY["Pending"]
    again = trial_status.waiting(trial(first), "Pending", "Unschedulable", "no node", NOW + 999)
    assert to_json(again) == to_json(first)


# -- a trial's status from its start to its end


def test_a_change_of_a_finished_trial_is_noted_and_nothing_else() -> None:
    done = trial_status.complete(trial(), Journal([run()], finished=True), "uri", NOW)
    changed = trial(done).model_copy(update={"metadata": trial().metadata.model_copy(update={"generation": 4})})
    noted = trial_status.observed(changed)
    assert noted.observed_generation == 4
    assert noted.model_copy(update={"observed_generation": 3}) == done


def test_a_trial_that_starts_keeps_its_first_start() -> None:
    first = trial_status.attempt_started(trial(), 1, "t-1", "org/task", None, NOW)
    assert (first.phase, first.attempt, first.pod_name, first.task, first.start_time) == ("Pending", 1, "t-1", "org/task", THEN)
    second = trial_status.attempt_started(trial(first), 1, "t-1-root", "org/task", "1000:1000", NOW + 60)
    assert (second.pod_name, second.image_user, second.start_time, second.pod_uid) == ("t-1-root", "1000:1000", THEN, None)


def test_a_trial_that_starts_shows_the_steps_of_its_task_and_keeps_them() -> None:
    first = trial_status.attempt_started(trial(), 1, "t-1", "org/task", None, NOW, steps=["a", "b"])
    assert trial_status.attempt_started(trial(first), 2, "t-2", "org/task", None, NOW).task_steps == first.task_steps == ["a", "b"]


def test_a_running_trial_shows_where_it_is() -> None:
    journal = Journal(steps=[run("a"), run("b", completed_at=None, phase="verifier", timings={AGENT: (10.0, 12.34567)})])
    made = trial_status.running(trial(), journal, NOW, isolation="User", node_name="n1")
    assert (made.phase, made.current_step, made.isolation, made.node_name) == ("Running", "b", "User", "n1")
    assert made.conditions[0].message == "step 2: b"
    assert [each.phase for each in made.steps] == ["Complete", "Verifier"]
    assert made.steps[1].seconds and made.steps[1].seconds.agent == 2.346
    assert made.steps[1].completion_time is None
    assert trial_status.running(trial(), Journal(), NOW).conditions[0].message == "preparing the environment"
    resumed = trial(TrialStatus(attempt=2, resumed=ResumeStatus(after="a", attempts=[1], digest="d")))
    for steps, message in (["a"], "restoring the environment after step a"), (["a", "b"], "step 2: b"):
        assert trial_status.running(resumed, Journal(steps=[run(each) for each in steps]), NOW).conditions[0].message == message


def test_the_status_shows_since_when_a_custom_class_may_have_run_in_the_attempt() -> None:
    ran = trial().model_copy(update={"status": trial_status.running(trial(), Journal(class_ran_at=NOW), NOW)})
    assert ran.status.agent_setup_time == datetime.fromtimestamp(int(NOW), UTC)
    assert trial_status.running(ran, Journal(), NOW).agent_setup_time is not None, "the records may be lost with the container"
    assert trial_status.attempt_started(ran, 2, "t-2", "task", None, NOW).agent_setup_time is None


@pytest.mark.parametrize(
    ("journal", "message"),
    [
        (Journal(), "ran 0 steps"),
        (Journal(steps=[run(), run("b")], all_steps=True), "ran 2 steps"),
        (
            Journal(steps=[run(gate_failure="reward is 0, below min_reward 1")]),
            "stopped after 1 step: a: reward is 0, below min_reward 1",
        ),
        (Journal(steps=[run(gate_failure="low")], all_steps=True), "ran 1 step"),
        (Journal(steps=[run(exception=StepException("RuntimeError", "oh", "setup"))]), "ended after 1 step with RuntimeError: oh"),
        (Journal(steps=[run()], exception=StepException("OverflowError", "big")), "ended after 1 step with OverflowError: big"),
    ],
)
def test_a_complete_trial_shows_how_it_went(journal: Journal, message: str) -> None:
    made = trial_status.complete(trial(EVERY["Running"]), journal, "uri", NOW)
    assert (made.phase, made.conditions[0].reason, made.conditions[0].message) == ("Complete", "TrialComplete", message)
    assert (made.current_step, made.completion_time, made.results) == (None, THEN, "uri")


def test_a_complete_trial_has_its_rewards_and_exceptions() -> None:
    exception = StepException("AgentTimeoutError", "slow", "agent")
    journal = Journal(
        steps=[run(rewards={"reward": 1}, exception=exception, collected=Collected(("file",), 2, 7), gate_passed=True)],
        rewards={"reward": 0.51239},
        exception=StepException("OverflowError", "big"),
    )
    made = joined(TrialStatus, to_json(trial_status.complete(trial(), journal, None, NOW)))
    assert (made["rewards"], made["exception"]) == ({"reward": 0.51239}, {"type": "OverflowError", "message": "big"})
    assert made["steps"] == [
        {
            "name": "a",
            "phase": "Failed",
            "rewards": {"reward": 1},
            "score": 1.0,
            "passed": True,
            "exception": {"type": "AgentTimeoutError", "message": "slow", "phase": "agent"},
            "startTime": "1970-01-01T00:00:10Z",
            "completionTime": "1970-01-01T00:00:20Z",
            "seconds": {},
            "artifacts": {"count": 2, "bytes": 7},
            "gate": True,
        }
    ]


@pytest.mark.parametrize(("rewards", "shown"), [({}, {"rewards": {}}), (None, {})])
def test_no_keys_and_no_result_differ(rewards: dict[str, float] | None, shown: Mapping[str, Any]) -> None:
    made = to_json(trial_status.complete(trial(), Journal(steps=[run(rewards=rewards)], rewards=rewards), None, NOW))
    for place in (made, made["steps"][0]):
        assert {key: value for key, value in place.items() if key == "rewards"} == shown
    assert parse_status({"status": made}).rewards == rewards


def test_a_failed_trial_has_no_reward_and_keeps_its_steps() -> None:
    journal = Journal(steps=[run(rewards={"reward": 1})], rewards={"reward": 1})
    running = trial_status.running(trial(), journal, NOW)
    for made in (
        trial_status.failed(trial(running), "NodeLost", "gone", NOW, exception="HealthcheckError", results="uri"),
        trial_status.failed(trial(running), "NodeLost", "gone", NOW, exception="HealthcheckError", results="uri", journal=journal),
    ):
        assert (made.phase, made.rewards, made.current_step) == ("Failed", None, None)
        assert (made.completion_time, made.results) == (THEN, "uri")
        assert made.exception and (made.exception.type, made.exception.message) == ("HealthcheckError", "gone")
        assert [each.rewards for each in made.steps] == [{"reward": 1}]
    assert trial_status.failed(trial(), "DeadlineExceeded", "late", NOW).exception is None


def test_a_lost_attempt_is_on_record_with_what_it_had() -> None:
    was_started = trial_status.attempt_started(trial(), 1, "t-1", "task", None, NOW)
    running = trial_status.running(trial(was_started), Journal(steps=[run()]), NOW, pod_uid="p1", node_name="n")
    lost = trial_status.attempt_failed(trial(running), "Evicted", "for the node's sake", NOW + 60)
    (attempt,) = lost.attempts
    assert (attempt.number, attempt.pod_name, attempt.pod_uid, attempt.node_name) == (1, "t-1", "p1", "n")
    assert (attempt.reason, attempt.message) == ("Evicted", "for the node's sake")
    assert (attempt.start_time, [each.name for each in attempt.steps]) == (THEN, ["a"])
    assert (lost.steps, lost.current_step) == ([], None)
    again = trial_status.attempt_started(trial(lost), 2, "t-2", "task", None, NOW + 60)
    assert (again.start_time, again.attempts, again.pod_uid) == (THEN, lost.attempts, None)
    second = trial_status.attempt_failed(trial(again), "Evicted", "again", NOW + 90).attempts
    assert [each.number for each in second] == [1, 2]
    assert second[1].start_time == second[0].completion_time


@given(
    st.builds(
        StepRun,
        name=st.just("a"),
        started_at=st.none() | st.integers(0, 2**31).map(float),
        completed_at=st.none() | st.integers(0, 2**31).map(float),
        phase=st.sampled_from(["setup", "agent"]),
        rewards=st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(-9, 9)),
        exception=st.none() | st.builds(StepException, st.just("RuntimeError"), st.just("oh"), st.sampled_from(["", "agent"])),
        collected=st.none() | st.builds(Collected, st.just(()), st.integers(0, 9), st.integers(0, 9)),
        gate_passed=st.none() | st.booleans(),
    )
)
def test_a_step_can_be_read_back_from_its_status(made: StepRun) -> None:
    shown = trial_status.step_status(made)
    assert trial_status.step_status(trial_status.step_run(shown)).model_dump(exclude={"phase"}) == shown.model_dump(
        exclude={"phase"}
    )


def test_a_whole_and_a_bare_step_can_be_read_back() -> None:
    exception = StepException("RuntimeError", "oh", "setup")
    whole = run(rewards={"a": 1}, exception=exception, collected=Collected((), 2, 7), gate_passed=False, phase="failed")
    for made in (whole, StepRun("b", phase="setup")):
        assert trial_status.step_run(trial_status.step_status(made)) == made


def test_a_step_of_whose_rewards_the_status_has_only_some_keeps_its_score() -> None:
    rewards = {f"test-{number}": 1 if number < MAX_REWARD_KEYS else 0 for number in range(2 * MAX_REWARD_KEYS)}
    shown = trial_status.step_status(run(rewards=rewards))
    assert (shown.score, shown.passed, shown.omitted_rewards) == (0.5, False, MAX_REWARD_KEYS)
    again = trial_status.step_run(shown)
    assert trial_status.step_status(again) == shown
    ended = Journal(steps=[again], score_rule=ScoreRule(steps=1, strategy="Mean"), finished=True)
    done = trial_status.complete(trial(), ended, None, NOW)
    assert (done.score, done.passed) == (0.5, False)


# -- statuses of suspended trials


@pytest.mark.parametrize(
    ("former", "spec", "seen_text"),
    [
        (TrialStatus(), {}, ("Suspended", "spec.suspend is true; set it to false to start")),
        (
            TrialStatus(attempt=2, pod_name="t-2"),
            {},
            ("Released", "no pod is retained; set spec.suspend to false to start at step 1, as attempt 2"),
        ),
        (
            TrialStatus(attempt=1, pod_name="t-1", pod_uid="p", current_step="a"),
            {},
            ("Paused", "after step a; pod t-1 is retained; set spec.suspend to false to resume with the next step"),
        ),
        (
            TrialStatus(attempt=1, pod_name="t-1", pod_uid="p"),
            {"suspendPolicy": "ReleaseAfterStep"},
            ("Paused", "before the first step; pod t-1 is being released"),
        ),
    ],
)
def test_a_suspended_trial_shows_what_resuming_does(former: TrialStatus, spec: dict[str, Any], seen_text: tuple[str, str]) -> None:
    made = trial_status.suspended(trial(former, suspend=True, **spec), NOW)
    assert {(each.reason, each.message) for each in made.conditions if each.type == "Ready" or each.status == "True"} == {seen_text}


def test_a_step_that_has_not_started_is_not_shown_while_paused() -> None:
    made = trial_status.paused(trial(suspend=True), Journal([run(), StepRun("b")]), NOW)
    assert ([step.name for step in made.steps], made.current_step) == (["a"], "a")


def test_time_suspended_adds_up_once_the_trial_has_started() -> None:
    started = trial_status.attempt_started(trial(suspend=True), 1, "t-1", "task", None, NOW)
    assert started.suspended_seconds is None
    once = trial_status.at_current_step(trial(started), NOW + 50)
    assert once.suspended_seconds == 51  # not 50: NOW has a fraction, and a status stores times in whole seconds
    again = trial_status.at_current_step(trial(trial_status.suspended(trial(once, suspend=True), NOW + 100)), NOW + 130)
    assert again.suspended_seconds == 82
    assert trial_status.at_current_step(trial(again), NOW + 500).suspended_seconds == 82


def test_an_attempt_after_a_suspension_started_when_that_ended() -> None:
    first = trial_status.attempt_failed(
        trial(trial_status.attempt_started(trial(), 1, "t-1", "task", None, NOW)), "Suspended", "so", NOW + 10
    )
    held = trial_status.attempt_started(trial(first, suspend=True), 2, "t-2", "task", None, NOW + 10)
    resumed = trial_status.attempt_started(trial(held), 2, "t-2", "task", None, NOW + 100)
    started = [each.start_time for each in trial_status.attempt_failed(trial(resumed), "PodDeleted", "gone", NOW + 200).attempts]
    assert [(each - THEN).total_seconds() for each in started if each] == [0, 100]


def test_an_attempt_with_kept_steps_started_when_the_suspension_before_it_ended() -> None:
    first = trial_status.attempt_failed(
        trial(trial_status.attempt_started(trial(), 1, "t-1", "task", None, NOW)), "Suspended", "so", NOW + 10
    )
    kept = ResumeStatus(after="a", attempts=[1], digest="d")
    held = trial_status.attempt_started(trial(first, suspend=True), 2, "t-2", "task", None, NOW + 10, resumed=kept)
    resumed = trial_status.attempt_started(trial(held), 2, "t-2", "task", None, NOW + 100, resumed=kept)
    steps = [StepRun(name="a", started_at=NOW + 1, completed_at=NOW + 9), StepRun(name="b", started_at=NOW + 120)]
    working = trial_status.running(trial(resumed), Journal(steps=steps), NOW + 130)
    started = [each.start_time for each in trial_status.attempt_failed(trial(working), "PodDeleted", "gone", NOW + 200).attempts]
    assert [(each - THEN).total_seconds() for each in started if each] == [0, 100]


# -- failure classes


def test_the_time_of_a_verifiers_pod_stays_when_it_is_created_again_as_root() -> None:
    first = trial_status.verifier_wanted(trial(), "t-1-v0", None, NOW)
    assert (first.pod_name, first.image_user, first.start_time) == ("t-1-v0", None, THEN)
    named = trial(TrialStatus(verifier=first))
    assert trial_status.verifier_wanted(named, "t-1-v0-root", "1000:1000", NOW + 60).start_time == THEN
    later = trial_status.verifier_wanted(named, "t-1-v1", None, NOW + 60).start_time
    assert later and later > THEN


@pytest.mark.parametrize(("untouched", "shown"), [(None, True), (True, True), (False, None)])
def test_a_verifiers_pod_is_shown_as_untouched_until_it_may_have_the_agents_files(
    untouched: bool | None, shown: bool | None
) -> None:
    named = trial(TrialStatus(verifier=trial_status.verifier_wanted(trial(), "t-1-v0", None, NOW)))
    found = trial_status.running(named, Journal(steps=[run(untouched=untouched)]), NOW).verifier
    assert found and (found.pod_name, found.untouched) == ("t-1-v0", shown)


def test_the_end_of_a_pod_that_only_compares_verdicts_blames_nobody() -> None:
    assert trial_status.verifier_wanted(trial(), "t-1-v0", None, NOW, compares=True).untouched is None


def test_a_failed_trial_reports_the_step_it_was_in() -> None:
    failure = trial_status.failed(trial(TrialStatus(current_step="b")), "DeadlineExceeded", "late", NOW).failure
    assert failure and (failure.class_, failure.reason, failure.step) == ("User", "DeadlineExceeded", "b")
    assert to_json(TrialStatus(failure=failure))["failure"] == {"class": "User", "reason": "DeadlineExceeded", "step": "b"}


def test_a_complete_trial_reports_what_ended_it_and_nothing_after_a_gate_or_all_steps() -> None:
    exceptions = {"a": StepException("AgentTimeoutError", "late", AGENT), "": StepException("OverflowError", "inf")}
    for steps, own, wanted in (
        ([run("a", exception=exceptions["a"])], None, ("Agent", "AgentTimeoutError", "a")),
        # in a single-step task, the trial has the step's exception, too
        ([run("a", exception=exceptions["a"])], exceptions["a"], ("Agent", "AgentTimeoutError", "a")),
        ([run("a")], exceptions[""], ("Verifier", "OverflowError", None)),
        ([run("a", exception=exceptions["a"]), run("b")], None, None),  # the trial continued, so it reports no failure
        ([run("a", gate_passed=False, gate_failure="low")], None, None),
    ):
        failure = trial_status.complete(trial(), Journal(steps=steps, exception=own), None, NOW).failure
        assert (failure and (failure.class_, failure.reason, failure.step)) == wanted
