"""Test when an exception of a step starts another attempt: only if the spec says so. No agent is excluded by it."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.lifecycle.decisions import FailAttempt
from multistep.engine.lifecycle.retry_by_spec import retried_by_spec
from multistep.engine.score.score_in_sweep import agent_used_deadline
from tests.support.played import IMAGE, ONE, plan, play, rewarded

EXIT_1 = {"exitCode": 1}
AGENT = {"agent": {"name": "command", "command": ["x"]}, "onAgentError": "Continue"}
EXITS = {"NonZeroAgentExitCodeError": {"retry": True}}
TWO = IMAGE + '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
NOW = 1_700_000_000.0


def trial(changes: dict[str, Any], *lost: str, **spec: Any) -> MultiStepTrial:
    """Return a trial with these changes (overrideErrorPolicy), whose earlier attempts ended with these reasons."""
    attempts = [{"number": number, "reason": reason} for number, reason in enumerate(lost, 1)]
    whole = {"task": {"inline": {"config": {}}}, **AGENT, "scoring": {"overrideErrorPolicy": changes}, **spec}
    return parse_trial({"metadata": {"name": "t", "uid": "u"}, "spec": whole, "status": {"attempts": attempts}})


@pytest.mark.parametrize(
    ("results", "changes", "again"),
    [
        ({"b/agent": EXIT_1}, EXITS, True),
        ({"b/agent": EXIT_1}, {}, False),
        ({"b/agent": EXIT_1}, {"NonZeroAgentExitCodeError": {"retry": False}}, False),
        ({"b/agent": EXIT_1}, {"NonZeroAgentExitCodeError": {"grade": True}}, False),
        ({"b/agent": EXIT_1}, {"AgentTimeoutError": {"retry": True}}, False),
        ({}, EXITS, False),
        ({"a/agent": EXIT_1, "b/agent": {"timedOut": True, "exitCode": None}}, EXITS, False),
        (
            {"a/agent": EXIT_1, "b/agent": {"timedOut": True, "exitCode": None}},
            {**EXITS, "AgentTimeoutError": {"retry": True}},
            True,
        ),
        ({"b/verifier": rewarded()}, {"RewardFileNotFoundError": {"retry": True}}, True),
    ],
)
def test_a_trial_runs_again_if_the_spec_says_so_of_each_exception_of_its_steps(
    results: dict[str, Any], changes: dict[str, Any], again: bool
) -> None:
    made = trial(changes)
    journal = play(plan(TWO, AGENT), results).journal
    assert isinstance(retried_by_spec(made, journal), FailAttempt) is again


@pytest.mark.parametrize(
    ("lost", "retries", "again"),
    [
        ((), 0, False),
        ((), 1, True),
        (("RetriedBySpec",), 1, False),
        (("RetriedBySpec", "PodDeleted"), 2, False),
        (("RetriedBySpec", "Suspended"), 2, True),
    ],
)
def test_the_result_stands_when_no_retry_is_left(lost: tuple[str, ...], retries: int, again: bool) -> None:
    journal = play(plan(TWO, AGENT), {"a/agent": EXIT_1, "a/verifier": ONE}).journal
    found = retried_by_spec(trial(EXITS, *lost, infrastructureRetries=retries), journal)
    assert (found is not None) is again
    assert found is None or (found.reason, found.message.partition(":")[0]) == ("RetriedBySpec", "NonZeroAgentExitCodeError")


def test_the_agents_time_in_attempts_that_its_exceptions_ended_counts_at_a_deadline() -> None:
    """Otherwise an agent could fail slowly, be run again, and be excluded at the deadline."""
    step = {"name": "a", "phase": "Failed", "completionTime": "2023-11-14T22:00:00Z", "seconds": {"setup": 1.0, "agent": 60.0}}
    attempt = {"number": 1, "reason": "RetriedBySpec", "steps": [step]}
    assert agent_used_deadline(TrialStatus.model_validate({"attempts": [attempt]}), 100, NOW)
    assert not agent_used_deadline(TrialStatus.model_validate({"attempts": [{**attempt, "reason": "PodDeleted"}]}), 100, NOW)
