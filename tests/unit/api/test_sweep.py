"""The TrialSweep resource: valid fields, and the error messages for invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.sweep.sweep import parse_sweep, parse_sweep_status
from multistep.errors import InvalidSpec

TASK = {"name": "hello", "inline": {"config": {"steps": [{"name": "a"}]}}}
AGENT = {"name": "first", "agent": {"name": "oracle"}}


def sweep(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "spec": {"tasks": [TASK], "agents": [AGENT], **spec}}


def from_dataset(**fields: Any) -> dict[str, Any]:
    return {"tasks": None, "tasksFrom": {"dataset": {"registry": "https://r.example/registry.json", "name": "bench", **fields}}}


def test_a_sweep_needs_tasks_and_agents_and_the_rest_has_defaults() -> None:
    spec = parse_sweep(sweep()).spec
    assert (spec.attempts, spec.parallelism, spec.order, spec.suspend) == (1, 10, "Attempts", False)
    assert spec.tasks[0].name == "hello" and spec.agents[0].agent.name == "oracle"


def test_branches_are_at_each_step_or_at_those_that_are_named() -> None:
    assert parse_sweep(sweep()).spec.branch is None
    each, named = (parse_sweep(sweep(branch=branch)).spec.branch for branch in ({}, {"at": ["a", "b"], "attempts": 8}))
    assert each is not None and named is not None
    assert (each.attempts, each.includes("a"), each.includes("c")) == (1, True, True)
    assert (named.attempts, named.includes("a"), named.includes("c")) == (8, True, False)


def test_tasks_may_come_from_elsewhere() -> None:
    found = parse_sweep(sweep(tasks=None, tasksFrom={"git": {"url": "https://git.example/tasks", "path": "all"}}))
    assert found.spec.tasks_from and found.spec.tasks_from.git and found.spec.tasks_from.git.path == "all"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"tasks": []}, "spec.tasks: List should have at least 1 item after validation, not 0; got []"),
        ({"tasks": None}, "spec: must have exactly one of tasks and tasksFrom"),
        ({"tasksFrom": {"git": {"url": "https://g"}}}, "spec: must have exactly one of tasks and tasksFrom"),
        (
            {"budget": {"costUSD": 5}, "agents": [{"name": "x", "agent": {"name": "codex", "model": "a/b", "access": "Direct"}}]},
            "spec: budget needs the model gateway: agent 'x' must have access Gateway",
        ),
        ({"tasks": None, "tasksFrom": {}}, "spec.tasksFrom: must have exactly one of oci, git, url and dataset"),
        (from_dataset(name="org/bench"), "spec.tasksFrom.dataset: name must have no '/': ORG/NAME is in Harbor's hosted hub"),
        (from_dataset(name="bench@1"), "spec.tasksFrom.dataset: name must have no '@': set the field version"),
        (from_dataset(registry="https://me:key@r.example/"), "spec.tasksFrom.dataset: registry must not contain credentials"),
        (from_dataset(registry="registry.json"), "spec.tasksFrom.dataset.registry: should match pattern '^https?://'"),
        (from_dataset(limit=0), "spec.tasksFrom.dataset.limit: should be greater than or equal to 1; got 0"),
        (from_dataset(include=[""]), "spec.tasksFrom.dataset.include[0]: "),
        ({"tasks": [{**TASK, "name": None}]}, "spec.tasks[0].name: is required, but missing"),
        ({"tasks": [TASK, TASK]}, "spec: tasks: names must be unique; 'hello' occurs more than once"),
        ({"agents": [AGENT, AGENT]}, "spec: agents: names must be unique; 'first' occurs more than once"),
        (
            {"overrides": [{"spec": {}}, {"tasks": ["helo"], "spec": {}}]},
            "spec: overrides[1].tasks: 'helo' does not exist in the sweep, which has hello",
        ),
        (
            {"overrides": [{"agents": ["me"], "spec": {}}]},
            "spec: overrides[0].agents: 'me' does not exist in the sweep, which has first",
        ),
        ({"stopWhen": {"podHours": 0}}, "spec.stopWhen.podHours: should be greater than 0; got 0"),
        ({"stopWhen": {"failures": {"Agent": -1}}}, "spec.stopWhen.failures.Agent: should be greater than or equal to 0; got -1"),
        ({"parallelism": 0}, "spec.parallelism: should be greater than or equal to 1; got 0"),
        ({"branch": {"attempts": 0}}, "spec.branch.attempts: should be greater than or equal to 1; got 0"),
        ({"branch": {"at": []}}, "spec.branch.at: List should have at least 1 item after validation, not 0; got []"),
        ({"branch": {"at": "each"}}, "spec.branch.at: should be a valid list; got 'each'"),
        ({"branch": {"at": ["each", "a"]}}, "spec.branch: at: each must be the only entry: it stands for every step"),
        ({"branch": {"at": ["a", "b", "a"]}}, "spec.branch: at: names must be unique; 'a' occurs more than once"),
        (
            {"branch": {}, "template": {"spec": {"checkpoints": {"policy": "Never"}}}},
            "spec: template.spec.checkpoints.policy must be AfterStep or unset with spec.branch; got 'Never'",
        ),
        (
            {"branch": {}, "overrides": [{"spec": {"checkpoints": {"keep": "WhileActive"}}}]},
            "spec: overrides[0].spec.checkpoints.keep must be WithResults or unset with spec.branch; got 'WhileActive'",
        ),
        (
            {"branch": {}, "template": {"spec": {"resumeTrajectory": True}}},
            "spec: template.spec.resumeTrajectory must not be true with spec.branch: branches need checkpoints",
        ),
        ({"open": True}, "spec: open needs tasks and order Tasks"),
        ({"open": True, "order": "Tasks", "retries": [0]}, "spec: open needs tasks and order Tasks"),
        ({"weights": {"version": "1"}}, "spec: weights needs the model gateway: agent 'first' must have access Gateway"),
    ],
)
def test_errors_name_their_field(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        parse_sweep(sweep(**spec))
    assert message in str(error.value)


def test_a_class_of_failures_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="Infrastructure"):
        parse_sweep(sweep(stopWhen={"failures": {"Cluster": 1}}))


def test_overrides_of_tasks_from_elsewhere_are_checked_when_those_are_known() -> None:
    source = {"oci": {"image": "registry.example/tasks"}}
    assert parse_sweep(sweep(tasks=None, tasksFrom=source, overrides=[{"tasks": ["some"], "spec": {}}])).spec.overrides


def test_of_many_names_only_some_are_reported() -> None:
    tasks = [{**TASK, "name": f"t{number}"} for number in range(7)]
    with pytest.raises(InvalidSpec, match=r"t0, t1, t2, t3, t4 \.\.\."):
        parse_sweep(sweep(tasks=tasks, overrides=[{"tasks": ["x"], "spec": {}}]))


def test_a_status_can_be_read_without_its_spec() -> None:
    assert parse_sweep_status({"spec": 3, "status": {"trials": {"total": 4}}}).trials.total == 4
    with pytest.raises(InvalidSpec, match=r"status\.trials\.total"):
        parse_sweep_status({"status": {"trials": {"total": "x"}}})
