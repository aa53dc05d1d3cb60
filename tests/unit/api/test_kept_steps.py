"""Test steps that a later attempt keeps and does not run again (docs/how-to/checkpoints.md): each is listed once, for the attempt
that ran it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.status import TrialStatus
from multistep.engine.sweep.trial_manifests import trial_facts
from multistep.report.rows import trial_row

STEPS = "abcdef"


@dataclass(frozen=True)
class History:
    """A trial's status, and the cost of each step that was run, by the attempt that ran it."""

    status: dict[str, Any]
    ran: dict[int, list[tuple[str, float]]]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Draw the history of a trial with 1 to 4 attempts. Each attempt keeps some of the steps of the previous one."""
    attempts: list[dict[str, Any]] = []
    ran: dict[int, list[tuple[str, float]]] = {}
    chain: list[int] = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        kept = chain[: draw(st.integers(0, len(chain)))]
        before = attempts[-1]["steps"] if attempts else []
        count = draw(st.integers(0, len(STEPS) - len(kept)))
        own: list[dict[str, Any]] = [
            {"name": STEPS[index], "completionTime": "2026-01-01T00:00:00Z", "usage": {"costUSD": 2.0 ** (number * 6 + index)}}
            for index in range(len(kept), len(kept) + count)
        ]
        # an attempt that was lost before its first step lists none of the steps that it kept
        listed = [*before[: len(kept)], *own] if count else []
        ran[number] = [(each["name"], each["usage"]["costUSD"]) for each in own]
        resumed = {"resumed": {"after": STEPS[len(kept) - 1], "attempts": kept, "digest": "d"}} if kept else {}
        attempts.append({"number": number, "steps": listed, **resumed})
        chain = [*kept, *[number] * count] if listed else []
    *former, last = attempts
    current = {"attempt": last["number"], "steps": last["steps"], **({"resumed": last["resumed"]} if "resumed" in last else {})}
    return History({**current, "attempts": former}, ran)


@given(histories())
def test_each_step_is_listed_once_for_the_attempt_that_ran_it(history: History) -> None:
    found = TrialStatus.model_validate(history.status).steps_by_attempt()
    assert {number: [(each.name, each.usage and each.usage.cost_usd) for each in steps] for number, steps in found.items()} == (
        history.ran
    )


@given(histories())
def test_a_report_and_a_sweep_count_the_cost_of_each_step_once(history: History) -> None:
    spent = sum(cost for steps in history.ran.values() for _, cost in steps) or None
    made = {"metadata": {"name": "t"}, "spec": {"task": {}}, "status": history.status}
    assert trial_row(made).cost_usd == spent
    assert trial_facts(made).cost_usd == spent


KEPT = {"after": "b", "attempts": [1, 1], "digest": "d"}
DONE = {"completionTime": "2026-01-01T00:00:00Z"}
WHOLE: list[dict[str, Any]] = [{"name": "a", **DONE}, {"name": "b", **DONE, "rewards": {"reward": 1}}, {"name": "c"}]


def test_a_kept_step_that_the_attempts_own_list_shows_unfinished_is_finished() -> None:
    """The pod was lost after the checkpoint was stored and before the step's end was written to the status."""
    lost = {"number": 1, "steps": [{"name": "a", **DONE}, {"name": "b"}]}
    status = TrialStatus.model_validate({"attempt": 2, "attempts": [lost], "resumed": KEPT, "steps": WHOLE})
    found = status.steps_by_attempt()
    assert [(number, [each.name for each in steps]) for number, steps in found.items()] == [(1, ["a", "b"]), (2, ["c"])]
    assert found[1][1].completion_time is not None and found[1][1].rewards == {"reward": 1}


def test_kept_steps_count_although_a_status_that_is_too_large_has_no_steps_of_earlier_attempts() -> None:
    status = TrialStatus.model_validate({"attempt": 2, "attempts": [{"number": 1}], "resumed": KEPT, "steps": WHOLE})
    found = status.steps_by_attempt()
    assert [(number, [each.name for each in steps]) for number, steps in found.items()] == [(1, ["a", "b"]), (2, ["c"])]


def test_a_step_that_another_trial_ran_is_listed_and_no_attempt_of_this_one_ran_it() -> None:
    started = {"after": "b", "attempts": [0, 0], "digest": "d"}
    cost: dict[str, Any] = {"usage": {"costUSD": 2.0}}
    steps = [{**WHOLE[0], **cost, "trial": "base"}, {**WHOLE[1], **cost, "trial": "base"}, {**WHOLE[2], **cost}]
    trial: dict[str, Any] = {
        "metadata": {"name": "t"},
        "spec": {"task": {}},
        "status": {"attempt": 1, "resumed": started, "steps": steps},
    }
    status = TrialStatus.model_validate(trial["status"])
    assert [number for number, _ in status.listed_steps()[1]] == [0, 0, 1]
    assert {number: [each.name for each in steps] for number, steps in status.steps_by_attempt().items()} == {1: ["c"]}
    assert (trial_row(trial).cost_usd, trial_facts(trial).cost_usd) == (2.0, 2.0)
