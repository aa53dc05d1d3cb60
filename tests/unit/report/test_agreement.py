"""Test the agreement of two sweeps' verdicts: the values of Krippendorff's alpha, its interval, and which verdicts are compared."""

from __future__ import annotations

import random
from typing import Any

import krippendorff
import pytest

from multistep.report.agreement import agreement, alpha
from multistep.report.rows import TrialRow, trial_row
from tests.unit.report.samples import step, trial


@pytest.mark.parametrize("levels", [2, 3, 100])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_alpha_is_that_of_the_package(levels: int, shift: float) -> None:
    drawn = random.Random(levels)
    first = [drawn.randrange(levels) + shift for _ in range(60)]
    second = [each if drawn.random() < 0.7 else drawn.randrange(levels) + shift for each in first]
    found = alpha({f"t{n}": list(zip(first[n::7], second[n::7], strict=True)) for n in range(7)}, 60)
    assert found is not None
    assert found.value == pytest.approx(
        krippendorff.alpha([first, second], level_of_measurement="nominal" if levels == 2 else "interval")
    )
    assert found.low is not None and found.high is not None and -1 <= found.low < found.value < found.high <= 1
    assert (found.tasks, found.trials) == (7, 60)


def test_the_interval_is_of_tasks_not_of_verdicts() -> None:
    few = {"a": [(0.0, 0.0), (1.0, 0.0)], "b": [(1.0, 1.0)], "c": [(0.0, 1.0)], "d": [(1.0, 1.0), (0.0, 0.0)], "e": [(1.0, 1.0)]}
    more = {task: pairs * 10 for task, pairs in few.items()}
    narrow, wide = alpha(more, 1), alpha(few, 1)
    assert narrow is not None and narrow.low is not None and narrow.high is not None
    assert wide is not None and wide.low is not None and wide.high is not None
    assert narrow.high - narrow.low == pytest.approx(wide.high - wide.low, rel=0.1)


@pytest.mark.parametrize(
    ("pairs", "value"),
    [
        ({}, None),
        ({"a": [(1.0, 1.0)], "b": [(1.0, 1.0), (1.0, 1.0)]}, None),
        ({"a": [(0.1, 0.1)], "b": [(0.1, 0.1)], "c": [(0.1, 0.1)]}, None),
        ({"a": [(1.0, 1.0), (0.0, 0.0)]}, 1.0),
        ({"a": [(1.0, 1.0)], "b": [(0.0, 0.0)]}, 1.0),
        ({"a": [(1.0, 1.0), (0.0, 0.0)], "b": [(0.0, 0.0), (1.0, 1.0)]}, 1.0),
    ],
)
def test_alpha_of_equal_verdicts_is_undefined_and_has_no_interval_where_nothing_varies(pairs: Any, value: float | None) -> None:
    found = alpha(pairs, 1)
    assert (found and (found.value, found.low, found.high)) == (value and (value, None, None))


def graded(task: str, attempt: int, *rewards: float | None, agent: str = "mine", **fields: Any) -> TrialRow:
    steps = [step(f"s{n}", reward) for n, reward in enumerate(rewards)]
    return trial_row(trial(task, agent, attempt, reward=0.5, steps=steps, **fields))


def test_steps_that_both_verified_are_compared_by_task_agent_and_attempt() -> None:
    first = [graded("a", 1, 1.0, 0.0), graded("a", 2, 1.0, None), graded("b", 1, 0.5), graded("c", 1, 1.0)]
    second = [graded("a", 1, 1.0, 1.0), graded("a", 2, 0.0, 1.0), graded("b", 1, 0.25), graded("b", 2, 1.0)]
    found = agreement("s", ("x", "y"), first, [*second, graded("c", 1, 1.0, agent="other")])
    assert (found.steps, found.tasks, found.alike) == (4, 2, 2)
    assert found.passes is not None and found.passes.trials == 3
    assert found.scores is not None and found.scores.value != found.passes.value


def test_sweeps_without_common_verdicts_have_no_alpha() -> None:
    found = agreement("s", ("", ""), [graded("a", 1, 1.0)], [graded("a", 1, None)])
    assert (found.steps, found.tasks, found.passes, found.scores) == (0, 0, None, None)
