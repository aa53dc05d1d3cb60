"""Test `multistep init`: the task that it creates is valid, and its solution passes its tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from multistep.api.task.task_toml import parse_task
from multistep.cli.task.init import scaffold

from .conftest import Invoke


def test_the_task_passes_the_check_without_a_warning(tmp_path: Path, invoke: Invoke) -> None:
    made = invoke("init", tmp_path / "my-task")
    assert (made.exit_code, made.stdout) == (0, f"{tmp_path / 'my-task'}\n")
    assert "created a task with 2 steps; next: multistep check" in made.stderr
    found = json.loads(invoke("check", tmp_path / "my-task", "-o", "json").stdout)
    assert (found["name"], found["ok"], found["problems"], found["warnings"]) == ("example/my-task", True, [], [])
    assert [(step["name"], step["tests"], step["minReward"]) for step in found["steps"]] == [
        ("first", "own", {"reward": 1.0}),
        ("second", "own", {}),
    ]


@pytest.mark.parametrize("steps", [("only",), ("a", "b", "c"), ("it's", "$HOME `x` %s", "größer")])
def test_steps_have_the_names_they_are_given(tmp_path: Path, invoke: Invoke, steps: tuple[str, ...]) -> None:
    task = tmp_path / "My Task.."
    assert invoke("init", task, "--steps", ", ".join(steps)).exit_code == 0
    assert invoke("check", task).exit_code == 0
    config = parse_task((task / "task.toml").read_text())
    assert [step.name for step in config.steps or []] == list(steps)
    assert config.task and config.task.name == "example/My-Task"


@pytest.mark.parametrize(("solved", "reward"), [(True, "1"), (False, "0")])
def test_the_solution_is_worth_one_and_nothing_is_worth_zero(tmp_path: Path, solved: bool, reward: str) -> None:
    task, app, tests = tmp_path / "t", tmp_path / "work", tmp_path / "judge"
    app.mkdir()
    scaffold(task, ["it's", "b"])
    for step in ("it's", "b"):
        files = task / "steps" / step
        if solved:
            subprocess.run([files / "solution/solve.sh"], cwd=app, check=True)
        assert moved(files / "tests/test.sh", app, tests, task) == reward


def moved(script: Path, app: Path, tests: Path, task: Path) -> str:
    """Run a test.sh with temporary directories instead of the container's paths, and return the reward that it writes."""
    tests.mkdir(exist_ok=True)
    result = tests / "reward.txt"
    for source in (task / "tests/helpers.sh", script):
        text = source.read_text().replace("/logs/verifier/reward.txt", str(result))
        (tests / source.name).write_text(text.replace("/tests/", f"{tests}/").replace("/app/", f"{app}/"))
    subprocess.run(["bash", tests / "test.sh"], cwd=app, check=True, capture_output=True)
    return result.read_text().strip()


def test_scripts_can_be_executed(tmp_path: Path, invoke: Invoke) -> None:
    invoke("init", tmp_path / "t")
    modes = {path.suffix: path.stat().st_mode & 0o777 for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert modes[".sh"] == 0o755
    assert modes[".md"] == modes[".toml"] == 0o644


def test_an_empty_directory_is_as_good_as_a_new_one(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "t").mkdir()
    assert invoke("init", tmp_path / "t").exit_code == 0


def test_what_is_there_is_left_alone(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/file").write_text("mine")
    for path in ("t", "t/file"):
        result = invoke("init", tmp_path / path)
        assert result.exit_code == 2
        assert "exists and is not an empty directory" in result.stderr
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["file"]


def test_an_invalid_destination_is_rejected(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "file").write_text("")
    result = invoke("init", tmp_path / "file/t")
    assert result.exit_code == 2
    assert "Not a directory" in result.stderr


@pytest.mark.parametrize(
    ("steps", "reported"), [("a,A", "differ by more than case"), ("a/b", "without '/'"), ("a,,b", "blank"), ("", "blank")]
)
def test_names_that_no_step_can_have_are_refused(tmp_path: Path, invoke: Invoke, steps: str, reported: str) -> None:
    result = invoke("init", tmp_path / "t", "--steps", steps)
    assert result.exit_code == 2
    assert reported in result.stderr
    assert not (tmp_path / "t").exists()


def test_help_has_examples(invoke: Invoke) -> None:
    result = invoke("init", "--help")
    assert "multistep init tasks/parser --steps scaffold,implement,document" in result.stdout
