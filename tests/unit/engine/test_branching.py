"""spec.from, spec.fromStep and spec.toStep select the steps that a trial runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.engine.branching import Branch
from multistep.errors import InvalidSpec
from tests.support.played import IMAGE, plan


def starting(step: str) -> dict[str, Any]:
    return {"from": {"trial": "base", "step": step}}


@pytest.mark.parametrize(
    ("spec", "branch", "steps"),
    [
        ({}, Branch(), "abc"),
        (starting("a"), Branch(1), "abc"),
        (starting("b"), Branch(2), "abc"),
        ({"fromStep": "a"}, Branch(), "abc"),
        ({"fromStep": "c"}, Branch(2), "abc"),
        ({"toStep": "a"}, Branch(0, 1), "a"),
        ({"toStep": "c"}, Branch(0, 3), "abc"),
        ({"fromStep": "b", "toStep": "b"}, Branch(1, 2), "ab"),
        ({**starting("a"), "toStep": "b"}, Branch(1, 2), "ab"),
    ],
)
def test_a_trial_has_the_steps_that_it_keeps_and_none_after_its_last_one(
    spec: Mapping[str, Any], branch: Branch, steps: str
) -> None:
    made = plan(spec=spec)
    assert (made.branch, "".join(step.name for step in made.steps)) == (branch, steps)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (starting("x"), "spec.from.step: the task has no step 'x'. Its steps are a, b, c"),
        ({"fromStep": "x"}, "spec.fromStep: the task has no step 'x'. Its steps are a, b, c"),
        ({"toStep": "x"}, "spec.toStep: the task has no step 'x'. Its steps are a, b, c"),
        (starting("c"), "spec.from.step: 'c' is the task's last step: none is left to run. Its steps are a, b, c"),
        (
            {**starting("b"), "toStep": "b"},
            "spec.toStep: 'b' is before the trial's first step, by spec.from.step. Its steps are a, b, c",
        ),
        (
            {"fromStep": "b", "toStep": "a"},
            "spec.toStep: 'a' is before the trial's first step, by spec.fromStep. Its steps are a, b, c",
        ),
    ],
)
def test_an_unknown_step_and_an_empty_part_of_the_task_are_refused(spec: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        plan(spec=spec)
    assert str(error.value) == message


@pytest.mark.parametrize("spec", [starting("task"), {"fromStep": "task"}, {"toStep": "task"}])
def test_a_task_without_steps_has_none_to_start_from(spec: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=r"the task has no step 'task'\. It has no \[\[steps\]\]"):
        plan(IMAGE, spec)


def test_the_runner_restores_files_also_for_a_trial_that_makes_no_checkpoints() -> None:
    assert plan(spec=starting("a")).packs
    assert not plan(spec={"fromStep": "a"}).packs
