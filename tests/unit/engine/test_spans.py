"""Test the trace of a trial: the parents and times of spans, and ids that do not depend on the process that creates them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.status.trace_spans import ModelRequest, Span, spans, trace_id

UID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def at(seconds: float) -> str:
    return datetime.fromtimestamp(1000 + seconds, UTC).isoformat()


def trial(uid: str = UID, **status: Any) -> MultiStepTrial:
    metadata = {"name": "t", "namespace": "ns", "uid": uid, "creationTimestamp": at(0)}
    return parse_trial(
        {"metadata": metadata, "spec": {"task": {"inline": {"config": {}}}, "agent": {"name": "oracle"}}, "status": status}
    )


LOST = {
    "number": 1,
    "podName": "t-1",
    "startTime": at(5),
    "completionTime": at(20),
    "reason": "Evicted",
    "steps": [{"name": "a", "startTime": at(8)}],
}
STEPS = [
    {
        "name": "a",
        "startTime": at(30),
        "completionTime": at(42),
        "seconds": {"setup": 0.5, "agent": 10.25, "verifier": 1.0},
        "rewards": {"reward": 1, "style": 0.5},
    },
    {
        "name": "b",
        "startTime": at(42),
        "completionTime": at(50),
        "seconds": {"agent": 8.5},
        "exception": {"type": "AgentTimeoutError", "message": "m", "phase": "agent"},
    },
]
DONE: dict[str, Any] = {
    "phase": "Complete",
    "task": "task",
    "attempt": 2,
    "podName": "t-2",
    "nodeName": "n",
    "startTime": at(5),
    "completionTime": at(51),
    "attempts": [LOST],
    "steps": STEPS,
    "rewards": {"reward": 1},
    "failure": {"class": "Agent", "reason": "AgentTimeoutError", "step": "b"},
}


def shape(found: list[Span]) -> list[tuple[str, str, float, float, str]]:
    """Return for each span: name, parent's name, start and end in seconds since the trial's creation, error."""
    names = {each.id: each.name for each in found}
    return [(each.name, names.get(each.parent, ""), each.start - 1000, each.end - 1000, each.error) for each in found]


def test_a_trial_is_created_of_attempts_these_of_steps_and_steps_of_phases() -> None:
    assert shape(spans(trial(**DONE))) == [
        ("trial t", "", 0, 51, "AgentTimeoutError"),
        ("attempt 1", "trial t", 5, 20, "Evicted"),
        ("step a", "attempt 1", 8, 20, ""),
        ("attempt 2", "trial t", 20, 51, ""),
        ("step a", "attempt 2", 30, 42, ""),
        ("setup", "step a", 30, 30.5, ""),
        ("agent", "step a", 30.5, 40.75, ""),
        ("verifier", "step a", 40.75, 41.75, ""),
        ("step b", "attempt 2", 42, 50.5, "AgentTimeoutError"),
        ("agent", "step b", 42, 50.5, "AgentTimeoutError"),
    ]


def test_rewards_are_attributes_and_no_reward_is_none() -> None:
    first, *others = spans(trial(**DONE))
    assert first.attributes == {
        "k8s.namespace.name": "ns",
        "multistep.trial": "t",
        "multistep.task": "task",
        "multistep.agent": "oracle",
        "multistep.phase": "Complete",
        "multistep.reward.reward": 1.0,
    }
    steps = {each.name: each.attributes for each in others if each.name.startswith("step")}
    assert steps["step a"] == {"multistep.step": "a", "multistep.reward.reward": 1.0, "multistep.reward.style": 0.5}
    assert steps["step b"] == {"multistep.step": "b"}


def test_ids_are_the_same_each_time_and_differ_within_and_between_trials() -> None:
    found = [each.id for each in spans(trial(**DONE))]
    assert found == [each.id for each in spans(trial(**DONE))]
    assert len(set(found)) == len(found) and all(len(each) == 16 for each in found)
    assert not set(found) & {each.id for each in spans(trial(uid="another", **DONE))}


@pytest.mark.parametrize("uid", ["another", "", "00000000-0000-0000-0000-000000000000", "x" * 32])
def test_the_trace_is_found_by_the_trials_uid_and_any_other_uid_has_a_trace_too(uid: str) -> None:
    assert trace_id(UID) == UID.replace("-", "")
    assert len(trace_id(uid)) == 32 and int(trace_id(uid), 16) > 0


def test_a_trial_that_failed_with_its_last_attempt_has_no_other_and_one_without_a_pod_has_none() -> None:
    lost = trial(phase="Failed", attempt=1, startTime=at(5), completionTime=at(21), attempts=[LOST])
    assert [each.name for each in spans(lost)] == ["trial t", "attempt 1", "step a"]
    assert [each.name for each in spans(trial(phase="Failed", completionTime=at(1)))] == ["trial t"]


def test_missing_times_are_those_of_the_enclosing_span_and_an_active_trial_has_no_trace() -> None:
    found = spans(trial(phase="Complete", attempt=1, completionTime=at(9), steps=[{"name": "a"}]))
    assert shape(found) == [("trial t", "", 0, 9, ""), ("attempt 1", "trial t", 0, 9, ""), ("step a", "attempt 1", 0, 9, "")]
    assert spans(trial(phase="Running", startTime=at(1))) == []


def test_a_kept_step_is_a_span_of_the_attempt_that_ran_it() -> None:
    done = {"startTime": at(8), "completionTime": at(15)}
    lost = {**LOST, "steps": [{"name": "a", **done}, {"name": "b", "startTime": at(15)}]}
    resumed = {"after": "a", "attempts": [1], "digest": "d"}
    kept = trial(**{**DONE, "attempts": [lost], "resumed": resumed, "steps": [{"name": "a", **done}, STEPS[1]]})
    assert [each[:4] for each in shape(spans(kept)) if each[0].startswith("step")] == [
        ("step a", "attempt 1", 8, 15),
        ("step b", "attempt 1", 15, 20),
        ("step b", "attempt 2", 42, 50.5),
    ]


@pytest.mark.parametrize("seconds", [-(2.0**53), 2.0**53])
def test_any_duration_that_a_runner_reports_has_a_span_that_can_be_sent(seconds: float) -> None:
    step = {"name": "a", "startTime": "9999-01-01T00:00:00Z", "seconds": {"setup": seconds, "agent": seconds}}
    found = spans(trial(attempt=1, completionTime=at(9), steps=[step]))
    assert [each.name for each in found[2:]] == ["step a", "setup", "agent"]
    assert all(0 <= each.start <= each.end <= 2**63 / 1e9 for each in found)


def request(id: str, attempt: int, access: str, provider: str = "anthropic", **known: Any) -> ModelRequest:
    amounts = {"input_tokens": None, "cached_tokens": None, "output_tokens": None, "error": "", **known}
    return ModelRequest(id, attempt, access, "agent", provider, "m" * 300, start=1031, end=1030, held_seconds=0.5, **amounts)


def test_model_requests_are_below_their_step_else_their_attempt_else_the_trial() -> None:
    requests = [request("1", 2, "a"), request("2", 2, "a/verify"), request("3", 9, "a", "gemini", input_tokens=7, error="cut")]
    found = spans(trial(**DONE), requests)
    of_step, of_attempt, of_trial = found[-3:]
    names = {span.id: span.name for span in found}
    assert [names[each.parent] for each in (of_step, of_attempt, of_trial)] == ["step a", "attempt 2", "trial t"]
    assert (of_step.client, of_step.error, of_step.start, of_step.end) == (True, "", 1031, 1031)
    assert of_step.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "m" * 200,
        "multistep.role": "agent",
        "multistep.held_seconds": 0.5,
    }
    assert (of_trial.name[:20], of_trial.error) == ("generate_content mmm", "cut")
    wanted = {"gen_ai.provider.name": "gcp.gemini", "gen_ai.usage.input_tokens": 7, "error.type": "cut"}
    assert wanted.items() <= of_trial.attributes.items()
