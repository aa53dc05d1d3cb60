"""A status stays small and can be written, whatever agents and verifiers report."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.regrade import RegradeStatus, SourceAgent, SourceStep
from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import (
    ArtifactsSummary,
    AttemptStatus,
    CheckpointStatus,
    Condition,
    EgressStatus,
    ExceptionStatus,
    PhaseSeconds,
    ResumeStatus,
    StepStatus,
    Tampering,
    TrialFailure,
    TrialStatus,
    Usage,
)
from multistep.api.trial.status_journal import joined
from multistep.api.trial.trial import parse_status
from multistep.api.trial.values import AGENT, ARTIFACTS, HEALTHCHECK, SETUP, VERIFIER
from multistep.engine.journal.journal import Collected, Journal, StepException, StepRun
from multistep.engine.lifecycle.stop_and_suspend import SWEEP_BUDGET_SPENT
from multistep.engine.score.score_in_sweep import agent_used_deadline
from multistep.engine.score.trial_score import step_passes, step_score, verdict_of
from multistep.engine.score.usage_totals import usage_of_all_attempts
from multistep.engine.status import status_size, trial_status
from multistep.engine.status.status_size import (
    MAX_REWARD_KEYS,
    MAX_STATUS_BYTES,
    bounded,
    bounded_rewards,
    reward_text,
    status_bytes,
    to_json,
)
from multistep.engine.sweep.trial_manifests import trial_facts
from tests.support.status_cases import NOW, run, trial

# -- limits of texts and rewards in a status


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("short", "short"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Grüße 🎉", "Grüße 🎉"),
        ("\x1b[31mred\x00\x7f\x85\ufffe", "?[31mred????"),
        ("\ud800 alone", "? alone"),
        ("x" * 1024, "x" * 1024),
        ("a" * 2000 + "b" * 2000, "a" * 509 + " ... " + "b" * 509),
    ],
)
def test_messages_are_bounded_and_shown_safely(message: str, wanted: str) -> None:
    assert bounded(message) == wanted


@given(st.text())
def test_any_message_fits(message: str) -> None:
    shown = bounded(message * 50)
    assert len(shown) <= 1024
    shown.encode()
    assert bounded(shown) == shown


@pytest.mark.parametrize(
    ("rewards", "wanted"),
    [
        (None, None),
        ({}, {}),
        ({"a": 1, "b": 0.5}, {"a": 1, "b": 0.5}),
        ({"a": 2**53 - 1, "b": -(2**53) + 1}, {"a": 2**53 - 1, "b": -(2**53) + 1}),
        ({"a": 2**60 + 1}, {"a": float(2**60)}),
        ({"a": 10**400, "b": 1}, {"b": 1}),
        ({"a" * 128: 1, "b" * 129: 2}, {"a" * 128: 1}),
        ({"": 1, "🎉": 2, "new\nline": 3, "\x00": 4, "\ud800": 5}, {"": 1, "🎉": 2}),
    ],
)
def test_rewards_in_a_status_are_bounded(rewards: dict[str, float | int] | None, wanted: object) -> None:
    assert bounded_rewards(rewards) == wanted


def test_the_key_reward_is_kept_whatever_stands_before_it() -> None:
    rewards = {f"k{number}": number for number in range(100)} | {"reward": 0.5}
    shown = bounded_rewards(rewards)
    assert shown and len(shown) == MAX_REWARD_KEYS
    assert shown["reward"] == 0.5
    assert list(shown)[:2] == ["k0", "k1"]


@given(st.dictionaries(st.text(max_size=200), st.floats(allow_nan=False, allow_infinity=False) | st.integers(), max_size=80))
def test_any_rewards_can_be_written(rewards: dict[str, float | int]) -> None:
    shown = bounded_rewards(rewards)
    assert shown is not None and len(shown) <= MAX_REWARD_KEYS
    text = json.dumps(shown, allow_nan=False).encode()
    assert json.loads(text) == shown
    assert all(isinstance(value, float) or abs(value) < 2**53 for value in shown.values())


@pytest.mark.parametrize(
    ("rewards", "text"),
    [
        (None, None),
        ({}, None),
        ({"reward": 1}, "1"),
        ({"reward": 0.123456, "other": 2}, "0.1235"),
        ({"b": 1, "a": 0.5}, "a=0.5, b=1"),
        ({"x" * 100: 1}, "x" * 60),
    ],
)
def test_a_short_text_shows_the_reward(rewards: Mapping[str, float] | None, text: str | None) -> None:
    assert reward_text(rewards) == text


def hostile(number: int) -> StepRun:
    """Return a step whose rewards and exception are larger than a status may store. A hostile verifier or agent can cause this."""
    rewards = {f"{number}-{key}-{'🎉' * 30}": 1e-300 for key in range(80)}
    return run(f"step-{number}", rewards=rewards, exception=StepException("RuntimeError", "🎉" * 5000, "agent"))


@pytest.mark.parametrize("key", ["test-0", "reward"])
@pytest.mark.parametrize("tests", [1, 2, 80])
def test_a_status_that_is_too_large_keeps_the_scores_of_its_steps(key: str, tests: int) -> None:
    values = {key: 0.25, **{f"test-{number}-{'x' * 100}": 1 for number in range(1, tests)}}
    error = StepException("RuntimeError", "x" * 1000, "agent")
    journal = Journal(steps=[run(f"step-{number}-{'x' * 240}", rewards=values, exception=error) for number in range(100)])
    content = to_json(trial_status.running(trial(), journal, NOW))
    again = [verdict_of(trial_status.step_run(each)) for each in parse_status({"status": content}).steps]
    assert [step_score(each) for each in again] == [step_score(verdict_of(each)) for each in journal.steps]
    assert [step_passes(each) for each in again] == [step_passes(verdict_of(each)) for each in journal.steps]


def test_whatever_agent_and_verifier_do_the_status_can_be_written() -> None:
    journal = Journal(steps=[hostile(number) for number in range(100)], rewards=hostile(0).rewards)
    made = trial()
    for attempt in (1, 2):
        was_started = trial_status.attempt_started(made, attempt, f"t-{attempt}", "task", None, NOW)
        running = trial_status.running(trial(was_started), journal, NOW)
        made = trial(trial_status.attempt_failed(trial(running), "Evicted", "🎉" * 5000, NOW))
    for last in (trial_status.complete(made, journal, "uri", NOW), trial_status.running(made, journal, NOW)):
        content = to_json(last)
        assert status_bytes(content) <= MAX_STATUS_BYTES
        assert [each["name"] for each in content["steps"]] == [f"step-{number}" for number in range(100)]
        assert all(each["rewards"] and each["exception"]["type"] == "RuntimeError" for each in content["steps"])
        assert [each["reason"] for each in content["attempts"]] == ["Evicted"] * 2
        # parsing a stored status and converting it to JSON again changes nothing, so the operator does not write it again
        assert to_json(parse_status({"status": content})) == content


def long_step(number: int, message: str = "") -> StepRun:
    """Return a step with a long name, several rewards, timings of all phases, files and a gate."""
    rewards = {"reward": 0.8333333333, **{f"rubric-{key}-of-the-judge": 0.123456789 for key in range(4)}}
    timings = dict.fromkeys((SETUP, HEALTHCHECK, AGENT, VERIFIER, ARTIFACTS), (1000.0, 2234.567))
    return run(
        f"step-{number:03}-reproduce-the-reported-failure-and-fix-it-without-a-regression",
        rewards=rewards, timings=timings, collected=Collected(count=12, bytes=123456), gate_passed=True,
        exception=StepException("AgentTimeoutError", message, "agent") if message else None,
    )  # fmt: skip


@pytest.mark.parametrize("message", ["", "x" * 5000])
@pytest.mark.parametrize("lost", [0, 3])
def test_the_resource_of_a_hundred_steps_stays_small(lost: int, message: str) -> None:
    journal = Journal(steps=[long_step(number, message) for number in range(100)], rewards={"reward": 0.5})
    made = trial()
    for number in range(lost):
        made = trial(
            trial_status.attempt_failed(
                trial(trial_status.running(made, journal, NOW)), "Evicted", "the node is under pressure", NOW + number
            )
        )
    content = to_json(trial_status.complete(made, journal, "https://results/" + "x" * 200, NOW))
    assert status_bytes(content) <= MAX_STATUS_BYTES
    assert [step["rewards"] for step in content["steps"]] == [each.rewards for each in journal.steps]
    assert len(content.get("attempts", [])) == lost


def test_a_regrade_of_many_steps_loses_the_digests_of_its_sources_tests_before_rewards() -> None:
    names = [f"step-{number:03}-reproduce-the-reported-failure-and-fix-it" for number in range(150)]
    tests = {"tests": "a" * 64, "steps/a-step-with-a-long-name/tests": "b" * 64}
    steps = [SourceStep(name=each, checkpoint="c" * 64, tests=tests) for each in names]
    source = RegradeStatus(trial="source", uid="u", agent=SourceAgent(name="x"), steps=steps)
    rewards = {"reward": 0.5, "rubric": 0.25}
    journal = Journal(steps=[run(each, rewards=dict(rewards)) for each in names], rewards={"reward": 0.5})
    made = trial(TrialStatus(regraded=source))
    content = to_json(trial_status.complete(made, journal, "uri", NOW))
    assert to_json(parse_status({"status": content})) == content
    assert joined(TrialStatus, content)["regraded"]["steps"] == [each.model_dump(exclude_none=True) for each in steps]
    many = trial(TrialStatus(regraded=source, attempts=[AttemptStatus(number=n, message="x" * 1000) for n in range(60)]))
    whole = joined(TrialStatus, to_json(trial_status.complete(many, journal, "uri", NOW)))
    assert [each["tests"] for each in whole["regraded"]["steps"]] == [tests] * 150, "messages are shorter first"
    own = [each.model_copy(update={"tests": {f"tests-{n}": secrets.token_hex(32) for n in range(9)}}) for each in steps]
    large = trial(TrialStatus(regraded=source.model_copy(update={"steps": own})))
    whole = joined(TrialStatus, to_json(trial_status.complete(large, journal, "uri", NOW)))
    assert [(each["checkpoint"], each["tests"]) for each in whole["regraded"]["steps"]] == [("c" * 64, "omitted")] * 150
    assert [each["rewards"] for each in whole["steps"]] == [rewards] * 150


# -- what is removed decides nothing

TIMES = st.datetimes(datetime(2023, 11, 14, 22), datetime(2023, 11, 14, 23)).map(lambda at: at.replace(tzinfo=UTC, microsecond=0))
SECONDS = st.floats(0, 1000).map(lambda each: round(each, 3))
STEPS = st.builds(
    StepStatus,
    name=st.sampled_from(["a", "b", "c"]),
    phase=st.sampled_from(["Setup", "Agent", "Verifier", "Complete"]),
    rewards=st.none() | st.dictionaries(st.sampled_from(["reward", "a", "b"]), st.sampled_from([0, 0.5, 1, 1e200])),
    score=st.just(0.5),
    passed=st.booleans(),
    exception=st.none()
    | st.builds(ExceptionStatus, type=st.just("OutOfMemoryError"), message=st.just("x" * 900), phase=st.just("agent")),
    start_time=TIMES,
    phase_start_time=st.none() | TIMES,
    completion_time=st.none() | TIMES,
    seconds=st.builds(PhaseSeconds, **dict.fromkeys(("setup", "agent", "verifier", "artifacts"), st.none() | SECONDS)),
    artifacts=st.builds(ArtifactsSummary, incomplete=st.just(["x" * 100])),
    verifier_image_id=st.sampled_from([None, "v"]),
    usage=st.builds(Usage, input_tokens=st.integers(0, 9), cost_usd=st.none() | SECONDS, incomplete=st.none() | st.integers(0, 9)),
    egress=st.builds(EgressStatus, others=st.integers(0, 9)),
    gate=st.none() | st.booleans(),
    checkpoint=st.none() | st.builds(CheckpointStatus, digest=st.just("c" * 64)),
    trial=st.sampled_from([None, "other"]),
)
LIST = st.lists(STEPS, max_size=4)
ATTEMPTS = st.builds(
    AttemptStatus,
    number=st.integers(1, 3),
    completion_time=TIMES,
    reason=st.sampled_from(["Evicted", SWEEP_BUDGET_SPENT]),
    message=st.just("x" * 200 + " 1 of 2 US dollars are used, and it may use 1.5"),
    steps=LIST,
    resumed=st.none() | st.just(ResumeStatus(after="a", attempts=[1], digest="d")),
)
STATUSES = st.builds(
    TrialStatus,
    conditions=st.sampled_from(["Complete", "Failed", "Reconciling"]).map(
        lambda each: [Condition(type=each, status="True", last_transition_time=datetime.fromtimestamp(NOW, UTC), reason="R")]
    ),
    attempt=st.just(4),
    agent_setup_time=st.none() | TIMES,
    steps=LIST,
    attempts=st.lists(ATTEMPTS, max_size=3),
    tampering=st.lists(st.just(Tampering(attempt=1, step="a", kind="StartupHook", detail="x"))),
    task_steps=st.just(["a", "b", "c"]),
    outcome=st.just("Passed"),
    score=st.sampled_from([None, 0.0, 0.5]),
    passed=st.booleans(),
    score_rule=st.none() | st.just(ScoreRule(steps=3, strategy="Mean")),
    failure=st.none() | st.just(TrialFailure(class_="Agent", reason="R")),
    usage=st.none() | st.just(Usage(input_tokens=3, cost_usd=1.0)),
)


def decisions(status: TrialStatus) -> object:
    """Return all that a status decides: how the trial counts, its costs, whose fault a missed deadline is, what resumes."""
    return (
        trial_facts({"metadata": {"name": "t"}, "status": to_json(status)}, Scoring()),
        [agent_used_deadline(status, deadline, NOW) for deadline in range(1, 8000, 50)],
        usage_of_all_attempts(status),
        [(each.name, each.score, each.passed, each.gate) for each in status.steps],
        [[each.checkpoint for each in attempt.steps] for attempt in status.attempts],
        (status.failure, status.outcome, status.score, status.passed, status.score_rule, status.tampering),
    )


@settings(max_examples=60, deadline=None)
@given(STATUSES, st.integers(0, 6000))
@example(TrialStatus(steps=[StepStatus(name="a", phase="Agent", seconds=PhaseSeconds(agent=90.0))]), 0)
def test_a_status_that_is_too_large_loses_nothing_that_decides(status: TrialStatus, most: int) -> None:
    with mock.patch.object(status_size, "MAX_STATUS_BYTES", most):
        content = to_json(status)
        assert to_json(parse_status({"status": content})) == content
    assert decisions(parse_status({"status": content})) == decisions(status)


def test_thousands_of_steps_in_earlier_attempts_are_omitted_before_the_status_cannot_be_read() -> None:
    steps = [StepStatus(name=f"step-{number}", usage=Usage(requests=1)) for number in range(100)]
    status = TrialStatus(attempts=[AttemptStatus(number=number, steps=steps) for number in range(1, 102)], steps=steps)
    found = parse_status({"status": to_json(status)})
    assert [len(each.steps) for each in found.attempts] == [0] * 101 and found.steps == steps


def test_the_names_of_steps_that_did_not_run_are_dropped_before_any_reward() -> None:
    journal = Journal(steps=[long_step(0)], rewards={"reward": 0.5})
    many = trial(trial_status.attempt_started(trial(), 1, "t-1", "task", None, NOW, steps=[f"{n:0250}" for n in range(300)]))
    content = to_json(trial_status.complete(many, journal, "https://results/x", NOW))
    assert status_bytes(content) <= MAX_STATUS_BYTES
    assert ("taskSteps" in content, content["steps"][0]["rewards"]) == (False, journal.steps[0].rewards)


def test_an_ordinary_trial_is_described_in_full() -> None:
    steps = [run(f"step-{number}", rewards={"reward": 1, "style": 0.5}, timings={AGENT: (1.0, 2.0)}) for number in range(100)]
    content = to_json(trial_status.complete(trial(), Journal(steps=steps), "uri", NOW))
    assert content["steps"][99]["rewards"] == {"reward": 1, "style": 0.5}
    assert content["steps"][99]["seconds"] == {"agent": 1.0}
    few = Journal(steps=steps[:20])
    lost = trial_status.attempt_failed(trial(trial_status.running(trial(), few, NOW)), "Evicted", "x", NOW)
    content = joined(TrialStatus, to_json(trial_status.complete(trial(lost), few, "uri", NOW)))
    assert content["attempts"][0]["steps"] == content["steps"]


@pytest.mark.parametrize(("seconds", "year"), [(-1e10, 1970), (0.0, 1970), (4e9, 2096), (2.0**53, 9999)])
def test_any_time_a_runner_reports_can_be_shown(seconds: float, year: int) -> None:
    shown = trial_status.step_status(run(started_at=seconds, completed_at=seconds)).start_time
    assert shown and shown.year == year
