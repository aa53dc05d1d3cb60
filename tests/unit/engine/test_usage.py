"""Test the sum of a trial's usage over its attempts."""

from __future__ import annotations

from multistep.api.trial.status import AttemptStatus, ResumeStatus, StepStatus, TrialStatus, Usage
from multistep.engine.score.usage_totals import omission, total_usage, usage_of_all_attempts


def ran(name: str, tokens: int | None) -> StepStatus:
    return StepStatus(name=name, usage=None if tokens is None else used(tokens))


def used(tokens: int) -> Usage:
    return Usage(input_tokens=tokens, source="Gateway")


LOST = AttemptStatus(number=1, steps=[ran("a", 10), ran("b", 200)])
RESUMED = ResumeStatus(after="a", attempts=[1], digest="d")


def test_the_usage_of_a_setup_is_counted_and_that_of_a_kept_step_once() -> None:
    last = [ran("a", 10), ran("b", 20)]
    status = TrialStatus(attempt=2, attempts=[LOST], resumed=RESUMED, steps=last, usage=used(7 + 10 + 20))
    assert usage_of_all_attempts(status) == used(237)


def test_the_usage_of_an_unfinished_trial_is_that_of_its_steps() -> None:
    assert usage_of_all_attempts(TrialStatus(attempt=2, attempts=[LOST], steps=[ran("a", 20)])) == used(230)
    assert usage_of_all_attempts(TrialStatus(attempt=1, steps=[ran("a", None)])) is None
    assert usage_of_all_attempts(TrialStatus()) is None


def test_incomplete_requests_stay_known_beside_the_agents_own_count() -> None:
    by_gateway = Usage(input_tokens=10, requests=3, incomplete=2, source="Gateway")
    summed = total_usage([by_gateway, Usage(input_tokens=1)])
    assert summed is not None
    assert (summed.input_tokens, summed.requests, summed.incomplete, summed.source) == (11, None, 2, "Agent")
    doubled = total_usage([by_gateway, by_gateway])
    assert doubled is not None and (doubled.requests, doubled.incomplete) == (6, 4)


def test_an_omission_names_the_requests_of_unknown_usage() -> None:
    assert [omission(each) for each in (None, 0, 1, 2)] == [
        "", "", "without 1 request of unknown usage", "without 2 requests of unknown usage",
    ]  # fmt: skip
