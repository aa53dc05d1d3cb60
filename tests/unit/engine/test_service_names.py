"""Services that task.toml names must exist in the task's compose file."""

from __future__ import annotations

import pytest

from multistep.api.task.layout import Dependency, Service, Services, TaskLayout
from multistep.api.task.task_toml import parse_task
from multistep.engine.plan.unsupported_parts import check_services
from multistep.errors import InvalidTask

COMPOSED = TaskLayout(compose=Services("environment/docker-compose.yaml", (Service("db"), Service("main"))))
STEPS = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'


def hook(service: str, table: str = "verifier") -> str:
    return f'[[{table}.collect]]\ncommand = "x"\nservice = "{service}"\n'


@pytest.mark.parametrize("toml", [hook("seed"), 'artifacts = [{source = "/x", service = "seed"}]\n'])
def test_a_service_that_ends_before_the_first_step_has_no_evidence(toml: str) -> None:
    services = (Service("seed"), Service("main", depends_on=(Dependency("seed", "completed"),)))
    with pytest.raises(InvalidTask, match=r"'seed' ends before the first step, .*: share its files with main in a volume"):
        check_services(parse_task(toml), TaskLayout(compose=Services("environment/docker-compose.yaml", services)))


@pytest.mark.parametrize(
    ("toml", "field"),
    [
        (hook("web") + STEPS, "verifier.collect[0].service"),
        (STEPS + hook("web", "steps.verifier"), "steps[1].verifier.collect[0].service"),
        ('artifacts = ["/y", {source = "/x", service = "web"}]\n' + STEPS, "artifacts[1].service"),
        (STEPS + 'artifacts = [{source = "/x", service = "web"}]', "steps[1].artifacts[0].service"),
    ],
)
def test_a_service_that_does_not_exist_is_refused_by_name(toml: str, field: str) -> None:
    with pytest.raises(InvalidTask, match=r"'web' is not a service of .*; must be one of 'main', 'db'") as caught:
        check_services(parse_task(toml), COMPOSED)
    assert caught.value.field == field
    with pytest.raises(InvalidTask, match=r"'web' needs environment/docker-compose.yaml; must be one of 'main'"):
        check_services(parse_task(toml), TaskLayout())


def test_services_that_exist_may_be_named() -> None:
    check_services(parse_task(hook("db") + hook("main") + STEPS + hook("db", "steps.verifier")), COMPOSED)
    check_services(parse_task(hook("main") + STEPS), TaskLayout())
