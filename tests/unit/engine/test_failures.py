"""Test that the tables of failure reasons match the reasons in the operator's code, and the failure classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from multistep.api.trial.failure_table import ATTEMPTS, EXCEPTIONS, FAILED, RETRIED_BY_SPEC, Failure
from multistep.api.trial.status import ResumeStatus, TrialStatus
from multistep.api.trial.waiting_reasons import WAITING
from multistep.engine.journal.journal import Journal, StepRun
from multistep.engine.lifecycle.stop_and_suspend import SUSPENDED, SWEEP_BUDGET_SPENT
from multistep.engine.score import failure_class as failures
from multistep.engine.status import trial_status
from tests.support.status_cases import NOW, trial

OPERATOR = Path(__file__).parents[3] / "operator" / "multistep"
MADE_OF = {"OutOfMemory": "OutOfMemoryError", "OutOfDisk": "OutOfDiskError"}  # next_decision._died removes the suffix Error


def made(*calls: str) -> Iterator[str]:
    """Yield every reason in the first argument of a call of one of these functions in the operator's code."""
    for call, reasons in first_arguments():
        if call in calls:
            yield from reasons


@cache
def first_arguments() -> list[tuple[str, list[str]]]:
    """Return the name of each function that the operator's code calls, and the reasons in the first argument of the call."""
    found = []
    for file in [file for each in ("engine", "reconcile", "agents") for file in (OPERATOR / each).rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and node.args:
                texts = [str(each.value) for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
                reasons = [each for each in texts if re.fullmatch("[A-Z][A-Za-z]{5,}", each)]
                found.append((re.sub(r".*[._]", "", "." + ast.unparse(node.func)), reasons))
    return found


def names(*tables: tuple[Failure, ...]) -> set[str]:
    return {row.reason for table in tables for row in table}


def test_every_reason_that_the_operator_gives_has_its_row() -> None:
    assert set(made("FailAttempt")) and set(made("FailAttempt")) <= names(ATTEMPTS)
    assert set(made("Fail", "fail")) <= names(FAILED) | names(EXCEPTIONS)
    assert set(made("Wait", "wait")) <= {row.reason for row in WAITING}
    assert set(made("StepException", "RewardError")) <= names(EXCEPTIONS)
    assert set(made("PhaseDied", "died")) <= names(EXCEPTIONS)
    assert "InvalidSpec" in set(made("Fail")) and "EnvironmentFailed" in names(FAILED) and MADE_OF.keys() <= names(FAILED)


def test_a_reason_has_one_row_in_its_table() -> None:
    for table in (WAITING, ATTEMPTS, FAILED, EXCEPTIONS):
        found = [row.reason for row in table]
        assert len(found) == len(set(found))
    assert not names(ATTEMPTS) & names(FAILED)


def test_only_outside_causes_are_tried_again() -> None:
    users = (SUSPENDED, SWEEP_BUDGET_SPENT, RETRIED_BY_SPEC)  # reasons that a user's setting causes
    assert {row.failure_class for row in ATTEMPTS if row.reason not in users} == {"Infrastructure", "Provider"}


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        ("PodDeleted", "Infrastructure"),
        ("ImageNotFound", "Task"),
        ("DeadlineExceeded", "User"),
        ("OutOfnvidia.com/gpu", "Infrastructure"),  # a kubelet's reason that no table lists
    ],
)
def test_whose_doing_it_is_that_a_trial_failed(reason: str, wanted: str) -> None:
    assert failures.class_of_failure(reason, None) == wanted


def test_what_ends_a_trial_before_its_agent_acts_is_not_the_agents_doing() -> None:
    for reason in ("RunnerBroken", "Tampered", "ExecSessionsKilled"):
        assert failures.class_of_failure(reason, None) == "Agent"
        assert failures.class_of_failure(reason, None, agent_acted=False) == "Task"
    assert failures.class_of_failure("PodDeleted", None, agent_acted=False) == "Infrastructure"


@pytest.mark.parametrize(("attempts", "score"), [([1], 0.0), ([0], None)])
def test_files_that_a_trials_own_agent_left_can_break_a_later_attempt(attempts: list[int], score: float | None) -> None:
    resumed = ResumeStatus(after="a", attempts=attempts, digest="d")
    known = trial().model_copy(update={"status": TrialStatus(attempt=2, resumed=resumed)})
    assert trial_status.failed(known, "RunnerBroken", "no sense", NOW).score == score


def test_a_broken_environment_is_the_tasks_until_an_agent_has_run() -> None:
    before, after = StepRun("a"), StepRun("a", timings={"agent": (1.0, None)})
    assert failures.class_of_failure("EnvironmentFailed", Journal(steps=[before])) == "Task"
    assert failures.class_of_failure("EnvironmentFailed", Journal(steps=[after, before])) == "Agent"


def test_a_broken_environment_can_be_a_custom_classs_doing_since_its_setup() -> None:
    assert failures.class_of_failure("EnvironmentFailed", Journal(class_ran_at=1.0)) == "Agent"


def test_a_failed_setup_is_the_agents_only_if_it_ends_the_trial() -> None:
    """If the setup of a custom agent class fails, the trial ends, and of_failed gets the journal. If the setup of one of Harbor's
    agents fails, only the attempt ends, and of_failed gets no journal."""
    assert failures.class_of_failure("AgentSetupFailed", Journal()) == "Agent"
    assert failures.class_of_failure("AgentSetupFailed", None) == "Infrastructure"


@pytest.mark.parametrize(
    ("type_", "phase", "wanted"),
    [
        ("RuntimeError", "setup", "Task"),
        ("HealthcheckError", "verifier", "Task"),
        ("AgentTimeoutError", "agent", "Agent"),
        ("OutOfMemoryError", "agent", "Agent"),
        ("OutOfMemoryError", "verifier", "Verifier"),
        ("ContainerKilledError", "artifacts", "Agent"),
        ("RewardFileNotFoundError", "verifier", "Verifier"),
        ("ValueError", "verifier", "Task"),
        ("OverflowError", "", "Verifier"),
        ("Unheard", "", "Task"),
    ],
)
def test_whose_doing_an_exception_is(type_: str, phase: str, wanted: str) -> None:
    assert failures.class_of_exception(type_, phase) == wanted


def test_labels_of_metrics_are_few() -> None:
    assert failures.reason_label("Evicted") == "Evicted"
    assert failures.reason_label("AgentTimeoutError") == "AgentTimeoutError"
    assert failures.reason_label("OutOfnvidia.com/gpu") == failures.reason_label(None) == "Other"
