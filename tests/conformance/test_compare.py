"""Test when outcomes agree, and the messages when they differ."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from .compare import differences, same_rewards

STEP: dict[str, Any] = {
    "name": "a",
    "ran_agent": True,
    "ran_verifier": True,
    "rewards": {"reward": 0.5},
    "exception_type": None,
    "artifacts": [
        {"path": "app/run.sh", "sha256": "11", "executable": True},
        {"path": "x/b.txt", "sha256": "22", "executable": False},
    ],
    "manifest": [{"source": "/logs/artifacts", "status": "ok"}, {"source": "/app/run.sh", "status": "ok", "type": "file"}],
}
MULTI: dict[str, Any] = {
    "load_error": None,
    "kind": "multi-step",
    "trial": {"rewards": {"reward": 0.5}, "exception_type": None},
    "steps_run": ["a"],
    "steps_not_run": ["b"],
    "steps": [STEP],
}


def changed(value: object, *path: str | int) -> dict[str, Any]:
    """Return a copy of the outcome MULTI with the value at `path` replaced."""
    result = copy.deepcopy(MULTI)
    place: Any = result
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return result


def test_an_outcome_agrees_with_itself() -> None:
    assert differences(MULTI, copy.deepcopy(MULTI)) == []


@pytest.mark.parametrize(
    "actual",
    [
        changed({"reward": 0.5 + 1e-12}, "steps", 0, "rewards"),
        changed({"reward": 1 / 2}, "trial", "rewards"),
        changed(list(reversed(STEP["artifacts"])), "steps", 0, "artifacts"),
        changed([{**each, "path": each["path"].rpartition("/")[2]} for each in STEP["artifacts"]], "steps", 0, "artifacts"),
        changed(STEP["manifest"][1:], "steps", 0, "manifest"),
        changed([{"source": "/logs/artifacts", "status": "failed"}, STEP["manifest"][1]], "steps", 0, "manifest"),
        changed("more than is compared", "steps", 0, "agent_files"),
    ],
)
def test_rounding_places_and_the_implicit_entry_make_no_difference(actual: dict[str, Any]) -> None:
    assert differences(MULTI, actual) == []


@pytest.mark.parametrize(
    ("actual", "output"),
    [
        (changed({"reward": 0.6}, "trial", "rewards"), "trial's rewards: expected {'reward': 0.5}, got {'reward': 0.6}"),
        (changed(None, "trial", "rewards"), "trial's rewards"),
        (changed("OverflowError", "trial", "exception_type"), "trial's exception_type: expected None, got 'OverflowError'"),
        (changed(["a", "b"], "steps_run"), "steps_run: expected ['a'], got ['a', 'b']"),
        (changed([], "steps_not_run"), "steps_not_run"),
        (changed("c", "steps", 0, "name"), "step a: name"),
        (changed(False, "steps", 0, "ran_agent"), "step a: ran_agent: expected True, got False"),
        (changed(False, "steps", 0, "ran_verifier"), "step a: ran_verifier"),
        (changed("RuntimeError", "steps", 0, "exception_type"), "step a: exception_type"),
        (changed({}, "steps", 0, "rewards"), "step a: rewards"),
        (changed(None, "steps", 0, "manifest"), "step a: manifest"),
        (changed([], "steps", 0, "manifest"), "step a: manifest"),
        (changed(STEP["artifacts"][:1], "steps", 0, "artifacts"), "step a: artifacts"),
        (changed("33", "steps", 0, "artifacts", 0, "sha256"), "step a: artifacts"),
        (changed(False, "steps", 0, "artifacts", 0, "executable"), "step a: artifacts"),
        (changed("app/other.sh", "steps", 0, "artifacts", 0, "path"), "step a: artifacts"),
    ],
)
def test_one_thing_that_differs_is_one_line(actual: dict[str, Any], output: str) -> None:
    (line,) = differences(MULTI, actual)

    assert line.startswith(output)


def test_only_whether_a_task_was_refused_is_compared_not_why() -> None:
    refused = {"load_error": {"type": "ValidationError"}}

    assert differences(refused, {"load_error": {"type": "FileNotFoundError"}}) == []
    assert differences(MULTI, {"load_error": {"type": "ValueError", "message": "no"}}) == [
        "refused: expected no, got yes (ValueError: no)"
    ]
    assert differences(refused, MULTI) == ["refused: expected yes (ValidationError), got no"]


def test_of_a_single_step_trial_its_rewards_and_exception_are_compared() -> None:
    one = {
        "load_error": None,
        "kind": "single-step",
        "trial": {"rewards": None, "exception_type": "AgentTimeoutError", "artifacts": [1]},
    }

    assert differences(one, {**one, "trial": {"rewards": None, "exception_type": "AgentTimeoutError"}}) == []
    assert len(differences(one, {**one, "trial": {"rewards": {"reward": 1}, "exception_type": None}})) == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (None, None, True),
        (None, {}, False),
        ({}, {}, True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 0.0}, {"a": 1e-10}, True),
        ({"a": 10**400}, {"a": 10**400}, True),
        ({"a": 10**400}, {"a": 10**400 + 1}, False),
        ({"a": 10**400}, {"a": 1.0}, False),
    ],
)
def test_rewards_are_numbers_by_key(one: Any, other: Any, same: bool) -> None:
    assert same_rewards(one, other) is same
