"""Test that `multistep check` names what has no effect in a task, with its place and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack import image

from .conftest import TASK_TOML, Invoke
from .test_check import warnings_of, write

SINGLE = '[environment]\ndocker_image = "registry.example/image:1"\n'
SEPARATE = f'{TASK_TOML}[steps.verifier]\nenvironment_mode = "separate"\n'


def by_place(task: Path, invoke: Invoke) -> dict[str, str]:
    """Return the task's warnings by their place."""
    return dict(each.split(": ", 1) for each in warnings_of(task, invoke))


@pytest.mark.parametrize(
    ("path", "place", "remedy"),
    [
        ("steps/a/setup.sh", "", "it is read as steps/a/workdir/setup.sh only; move it there"),
        ("steps/a/resume.sh", "", "it is read as steps/a/workdir/resume.sh only; move it there"),
        ("steps/a/test.sh", "", "it is read as steps/a/tests/test.sh only; move it there"),
        ("steps/a/solve.sh", "", "it is read as steps/a/solution/solve.sh only; move it there"),
        ("steps/a/environment/Dockerfile", "steps/a/environment", "all steps share the task's environment/"),
        ("test.sh", "", "it is read as tests/test.sh only; move it there"),
        ("solve.sh", "", "it is read as solution/solve.sh only; move it there"),
        ("Dockerfile", "", "it is read as environment/Dockerfile only; move it there"),
        ("docker-compose.yaml", "", "it is read as environment/docker-compose.yaml only; move it there"),
        ("compose.yml", "", "it is read as environment/docker-compose.yaml only; move it there"),
        ("environment/docker-compose.yml", "", "it is read as environment/docker-compose.yaml only; move it there"),
        ("environment/compose.override.yaml", "", "it is read as environment/docker-compose.yaml only; move it there"),
        ("instruction.md", "", "each step has its own below steps/NAME/"),
        ("setup.sh", "", "each step has its own below steps/NAME/workdir/"),
        ("workdir/data", "workdir", "each step has its own below steps/NAME/"),
        ("tests/Dockerfile", "", 'the tests run in the agent\'s environment, unless [verifier] has environment_mode = "separate"'),
        (
            "steps/a/tests/docker-compose.yaml",
            "",
            'the tests run in the agent\'s environment, unless [steps.verifier] has environment_mode = "separate"',
        ),
    ],
)
def test_a_file_without_effect_is_named_with_its_remedy(task: Path, invoke: Invoke, path: str, place: str, remedy: str) -> None:
    write(task, {path: "#!/bin/sh\n"})
    assert by_place(task, invoke) == {place or path: f"has no effect: {remedy}"}


@pytest.mark.parametrize("path", ["setup.sh", "workdir/setup.sh"])
def test_a_task_without_steps_has_no_setup(tmp_path: Path, invoke: Invoke, path: str) -> None:
    write(tmp_path, {"task.toml": SINGLE, "instruction.md": "go", path: "true", "solution/solve.sh": "#!/bin/sh\n"})
    write(tmp_path, {"tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"})
    (warning,) = warnings_of(tmp_path, invoke)
    assert warning.endswith("a task without [[steps]] has none: put it into environment/Dockerfile")


@pytest.mark.parametrize("directory", ["tests", "steps/a/tests"])
def test_the_dockerfile_of_a_separate_verifier_has_an_effect(task: Path, invoke: Invoke, directory: str) -> None:
    write(task, {"task.toml": SEPARATE, f"{directory}/Dockerfile": "FROM x\n"})
    assert by_place(task, invoke) == {}


def test_a_compose_file_beside_the_right_one_may_be_the_tasks_subject(task: Path, invoke: Invoke) -> None:
    image.ensure_compose_reader()
    write(task, {"environment/docker-compose.yaml": "services: {db: {image: x}}\n", "environment/compose.yml": "services: {}\n"})
    assert by_place(task, invoke) == {}


BUILT = TASK_TOML.replace('docker_image = "registry.example/image:1"', "")


@pytest.mark.parametrize(
    ("dockerfile", "found"),
    [
        ('FROM x\nENTRYPOINT ["serve"]\n', (2, '["serve"]')),
        ("FROM x\nRUN a \\\n  b\nentrypoint serve \\\n  --fast\n", (4, "serve    --fast")),
        ("FROM x AS base\nENTRYPOINT a\nFROM base\nRUN b\n", (2, "a")),
        ("FROM x AS base\nENTRYPOINT a\nFROM x\n", None),
        ("FROM x\nENTRYPOINT a\nENTRYPOINT []\n", None),
        ("FROM x\n# ENTRYPOINT a\nRUN echo ENTRYPOINT b\n", None),
    ],
)
def test_the_entrypoint_of_the_image_is_named(task: Path, invoke: Invoke, dockerfile: str, found: tuple[int, str] | None) -> None:
    write(task, {"task.toml": BUILT, "environment/Dockerfile": dockerfile})
    if found is None:
        assert by_place(task, invoke) == {}
        return
    ((place, text),) = by_place(task, invoke).items()
    assert place == f"environment/Dockerfile:{found[0]}"
    assert text.startswith(f"ENTRYPOINT {found[1]} has no effect, as process 1 is Multistep's runner: start a server in ")


def test_the_entrypoint_is_not_named_if_the_compose_file_has_its_own_or_the_image_is_another(task: Path, invoke: Invoke) -> None:
    image.ensure_compose_reader()
    write(task, {"task.toml": BUILT, "environment/Dockerfile": "FROM x\nENTRYPOINT serve\n"})
    write(task, {"environment/docker-compose.yaml": "services: {main: {command: serve}}\n"})
    assert by_place(task, invoke) == {}
    (task / "environment/docker-compose.yaml").unlink()
    (task / "task.toml").write_text(TASK_TOML)
    assert by_place(task, invoke) == {}


def test_keys_of_a_compose_file_without_effect_are_warnings_with_their_lines(task: Path, invoke: Invoke) -> None:
    image.ensure_compose_reader()
    keys = "    platform: linux/amd64\n    security_opt: [label=disable]\n"
    write(task, {"environment/docker-compose.yaml": f"services:\n  db:\n    image: x\n{keys}"})
    first, second = warnings_of(task, invoke)
    assert first.startswith("environment/docker-compose.yaml:4: has no effect: the nodes' platform applies")
    assert second.startswith("environment/docker-compose.yaml:5: label=disable has no effect: ")
    assert invoke("check", task).exit_code == 0
