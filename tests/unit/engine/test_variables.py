"""Which of a trial's variables the templates of its task and spec use."""

from __future__ import annotations

import pytest

from multistep.api.task.layout import Services, StepLayout, TaskLayout
from multistep.api.task.task_toml import parse_task
from multistep.api.trial.spec import TrialSpec
from multistep.engine.plan.resolve_templates import compose_variables, unused_variables, used_variables

_STEPS = '[[steps]]\nname = "a"\n'


@pytest.mark.parametrize(
    "toml",
    [
        '[environment.env]\nA = "${KEY}"',
        '[solution.env]\nA = "${KEY}"',
        '[verifier.env]\nA = "${KEY:-default}"',
        '[verifier.environment.env]\nA = "${KEY}"',
        f'{_STEPS}[steps.verifier.env]\nA = "${{KEY}}"',
        f'{_STEPS}[steps.verifier.environment.env]\nA = "${{KEY}}"',
    ],
)
def test_every_table_of_templates_counts(toml: str) -> None:
    assert used_variables(parse_task(toml), TaskLayout()) == {"KEY"}


def test_a_literal_value_uses_no_variable() -> None:
    assert used_variables(parse_task('[verifier.env]\nA = "pre-${KEY}"\nKEY = "$KEY"'), TaskLayout()) == frozenset()


def test_compose_files_of_environment_and_tests_count() -> None:
    files = [
        Services(f"{name}/docker-compose.yaml", (), variables={name.upper(): f"{name}:1"}) for name in ("environment", "tests")
    ]
    layout = TaskLayout(compose=files[0], steps={"a": StepLayout(tests_compose=files[1])})
    assert compose_variables(layout) == {"ENVIRONMENT": "environment:1", "TESTS": "tests:1"}
    assert used_variables(parse_task(""), layout) == {"ENVIRONMENT", "TESTS"}


def test_templates_of_the_spec_count() -> None:
    named = [{"name": name, "value": "x"} for name in ("AGENTS", "VERIFIERS", "TASKS", "NOBODYS")]
    spec = TrialSpec.model_validate(
        {
            "task": {"inline": {"config": {}}},
            "variables": named,
            "agent": {"name": "nop", "env": [{"name": "A", "value": "${AGENTS}"}]},
            "verifier": {
                "env": [
                    {"name": "A", "value": "${VERIFIERS}"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ]
            },
        }
    )
    assert unused_variables(parse_task('[verifier.env]\nA = "${TASKS}"'), TaskLayout(), spec) == ["NOBODYS"]
