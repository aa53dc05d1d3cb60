"""Test the redaction of secrets in a status's messages."""

from __future__ import annotations

from multistep.api.trial.status import ExceptionStatus, StepStatus, TrialException, TrialStatus
from multistep.engine.status.status_size import redacted


def test_messages_lose_the_values_of_secrets_the_longest_first_and_all_else_stays() -> None:
    failed = StepStatus(
        name="key", exception=ExceptionStatus(type="RuntimeError", message="said key-and-more, then key", phase="setup")
    )
    status = TrialStatus(phase="key", steps=[failed], exception=TrialException(type="key", message="key"))
    clean = redacted(status, {"key", "key-and-more", "", "RED"})
    assert clean.steps[0].exception and clean.steps[0].exception.message == "said [REDACTED], then [REDACTED]"
    assert clean.exception == TrialException(type="key", message="[REDACTED]")
    assert (clean.phase, clean.steps[0].name) == ("key", "key")


def test_a_status_without_any_stays_the_same() -> None:
    status = TrialStatus(steps=[StepStatus(name="a")], exception=TrialException(type="E", message="fine"))
    assert redacted(status, {"key"}) is status and redacted(status, set()) is status
