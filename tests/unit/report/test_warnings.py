"""A report's warnings: agents with different shares of excluded trials, and tasks in which the oracle fails, too."""

from __future__ import annotations

from collections.abc import Sequence

from multistep.report.report_warnings import BrokenTask, broken_tasks, uneven_exclusions, warnings
from multistep.report.rows import TrialRow, trial_row
from multistep.report.summary import summarize
from tests.unit.report.samples import step, sweep, trial

LOST, GOOD = "Infrastructure", 1.0


def agents(**outcomes: Sequence[float | str | None]) -> dict[str, list[TrialRow]]:
    return {agent: sweep({("t", agent): those}) for agent, those in outcomes.items()}


def test_shares_that_differ_by_more_than_five_points_are_reported_with_the_agents_at_both_ends() -> None:
    even, more = [GOOD] * 19 + [LOST], [GOOD] * 18 + [LOST, LOST]
    assert uneven_exclusions(agents(a=[GOOD] * 20, b=even)) is None
    assert uneven_exclusions(agents(a=[GOOD] * 20, b=even, c=more)) == (
        "10% of the finished trials of c are excluded, but 0% of a's: their means are of different samples; "
        "compare them by the mean if 0, or run the excluded trials again"
    )
    assert uneven_exclusions(agents(a=more, b=[*more, None, None])) is None


def test_an_agent_alone_or_without_a_finished_trial_is_not_compared() -> None:
    assert uneven_exclusions(agents(a=[LOST])) is None
    assert uneven_exclusions(agents(a=[LOST], b=[None])) is None
    assert uneven_exclusions({}) is None


def test_evidence_of_tampering_is_reported_for_each_agent() -> None:
    evidence = [{"attempt": 1, "step": "a", "kind": "TestHook", "detail": "/conftest.py"}]
    rows = [trial_row(trial(reward=1.0, tampering=evidence)), trial_row(trial(attempt=2, reward=1.0))]
    warned = list(warnings({"mine": rows, "other": sweep({("t", "other"): [GOOD]})}))
    assert warned == ["1 of 2 trials of mine have evidence of tampering: their rewards may be forged"]
    (standing,) = summarize(rows).standings
    assert standing.tampered == 1


def ended(task: str, program: str, class_: str, reason: str, attempt: int = 1) -> TrialRow:
    made = trial(task, f"the-{program}", attempt, failure=(class_, reason), steps=[step("a")])
    made["status"] |= {"score": 0.0, "passed": False}
    made["spec"]["agent"]["name"] = program
    return trial_row(made)


def test_a_task_is_not_broken_because_its_trials_are_not_verified() -> None:
    made = trial()
    made["spec"]["agent"]["name"] = "oracle"
    assert (trial_row(made).excluded, broken_tasks([trial_row(made)])) == (True, [])


def test_a_task_whose_verifier_fails_for_the_oracle_is_broken_and_one_that_fails_for_others_is_not() -> None:
    rows = [
        ended("b", "oracle", "Verifier", "VerifierTimeoutError"),
        ended("b", "oracle", "Task", "HealthcheckError", 2),
        ended("c", "command", "Verifier", "VerifierTimeoutError"),
        ended("d", "oracle", "Infrastructure", "PodDeleted"),
        ended("e", "oracle", "Agent", "AgentTimeoutError"),
    ]
    assert broken_tasks(rows) == [BrokenTask("b", ["HealthcheckError", "VerifierTimeoutError"], 2)]
    reported = "task b is broken: it failed for the agent oracle, too, in 2 trials (HealthcheckError, VerifierTimeoutError)"
    assert list(warnings({"x": rows})) == [reported]
    found = summarize(rows)
    assert (found.broken, reported in found.warnings) == (broken_tasks(rows), True)
    (oracle,) = [each for each in found.standings if each.agent == "the-oracle"]
    assert oracle.scored_failures == {"Verifier": 1, "Task": 1, "Infrastructure": 1, "Agent": 1}
