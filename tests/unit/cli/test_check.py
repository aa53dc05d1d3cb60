"""`multistep check`: its findings and their output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hack import image

from .conftest import TASK_TOML, Invoke


def test_a_good_task_is_a_table(task: Path, invoke: Invoke) -> None:
    result = invoke("check", task)
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        "STEP  AGENT LIMIT  VERIFIER LIMIT  GATE         SETUP  HEALTHCHECK  TESTS",
        "a            none          10 min  reward >= 1  -      -            own",
        "org/My_Task: 1 step, ready to run",
    ]


@pytest.mark.parametrize(
    ("toml", "field", "message"),
    [
        ("x = = 1", "task.toml", "is not TOML: Invalid value (at line 1, column 5)"),
        ("[[steps]]\nmin_reward = 1", "steps[0].name", "is required, but missing"),
        ("[[steps]]\nname = 'a/b'", "steps[0].name", "must be one portable directory name, without '/'; got 'a/b'"),
        ("[[steps]]\nname = 'b'", "steps/b/", "is missing: each step has a directory"),
        (
            "[[steps]]\nname = 'a'",
            "environment/Dockerfile",
            "is missing, and so are environment.docker_image and spec.environment.image",
        ),
        (TASK_TOML.replace("[[steps]]", "os = 'windows'\n[[steps]]"), "environment.os", "windows is not supported; only linux"),
    ],
)
def test_problems_name_field_and_value(task: Path, invoke: Invoke, toml: str, field: str, message: str) -> None:
    (task / "task.toml").write_text(toml)
    result = invoke("check", task, "-o", "json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["problems"] == [{"field": field, "message": message}]


def test_all_problems_of_the_schema_are_reported(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text("artifacts = 3\n[[steps]]\nname = 'a'\n[steps.healthcheck]\nretries = 'x'")
    found = json.loads(invoke("check", task, "-o", "json").stdout)["problems"]
    assert [each["field"] for each in found] == ["artifacts", "steps[0].healthcheck.command", "steps[0].healthcheck.retries"]


@pytest.mark.parametrize(
    ("more", "warning"),
    [
        ("min_rewards = 1", "steps[0].min_rewards: did you mean min_reward?"),
        ("zzz = 1", "steps[0].zzz: unknown key"),
        (
            "[verifier]\ntimeout_sec = 5",
            "verifier.timeout_sec: is not inherited by the steps; each has steps.verifier.timeout_sec, 600 by default",
        ),
    ],
)
def test_what_has_no_effect_is_a_warning(task: Path, invoke: Invoke, more: str, warning: str) -> None:
    (task / "task.toml").write_text(f"{TASK_TOML}\n{more}\n")
    result = invoke("check", task)
    assert result.exit_code == 0
    assert f"warning: {warning}\n" in result.stdout


def test_all_that_a_compose_file_must_not_have_is_a_problem_with_key_and_line(task: Path, invoke: Invoke) -> None:
    image.ensure_compose_reader()
    (task / "environment").mkdir()
    file = task / "environment/docker-compose.yaml"
    file.write_text("services:\n  db:\n    image: postgres\n    gpus: all\n    ipc: host\n")
    result = invoke("check", task)
    assert result.exit_code == 2 and "ready to run" not in result.stdout
    assert "problem: environment/docker-compose.yaml:4: services.db.gpus: is not supported: " in result.stdout
    assert "problem: environment/docker-compose.yaml:5: services.db.ipc: is not supported: " in result.stdout
    file.write_text("services:\n  db:\n    image: postgres\n")
    assert invoke("check", task).exit_code == 0


def test_features_that_are_ignored_are_warnings_by_name(task: Path, invoke: Invoke) -> None:
    keys = 'gpus = 1\ngpu_types = ["RTX"]\nskills_dir = "/s"\nmcp_servers = [{name = "m", url = "http://x"}]\n[[steps]]'
    (task / "task.toml").write_text(TASK_TOML.replace("[[steps]]", keys))
    (task / "steps/a/trajectory.json").write_text("{}")
    warnings = json.loads(invoke("check", task, "-o", "json").stdout)["warnings"]
    assert [each.partition(": ")[0] for each in warnings] == [
        "environment.gpu_types",
        "environment.mcp_servers",
        "environment.skills_dir",
        "steps/a/trajectory.json",
    ]


def test_an_undeclared_step_is_a_warning(task: Path, invoke: Invoke) -> None:
    (task / "steps/b").mkdir()
    assert "warning: steps/b/: is no step" in invoke("check", task).stdout


def test_needed_variables_are_reported(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text(TASK_TOML + '[verifier.env]\nA = "${KEY}"\nB = "${OTHER:-default}"\n')
    result = invoke("check", task)
    assert result.exit_code == 0
    assert "needs: --var KEY (for verifier.env.A)" in result.stdout
    assert "OTHER" not in result.stdout


def test_a_gate_of_infinity_is_still_json(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text(TASK_TOML.replace("min_reward = 1.0", "min_reward = -inf"))
    assert json.loads(invoke("check", task, "-o", "json").stdout)["steps"][0]["minReward"] == {"reward": "-inf"}


def test_a_tasks_text_cannot_command_the_terminal(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text(TASK_TOML + '"\\u001b[31mred" = 1\n')
    assert "\x1b" not in invoke("check", task).stdout


@pytest.mark.parametrize(("path", "reported"), [("nowhere", "is not a directory"), (".", "has no task.toml")])
def test_no_task_directory(tmp_path: Path, invoke: Invoke, path: str, reported: str) -> None:
    result = invoke("check", tmp_path / path)
    assert result.exit_code == 2
    assert reported in result.stderr and result.stdout == ""


GATED = TASK_TOML + '[[steps]]\nname = "b"\nmin_reward = { correctness = 0.5 }\n'


def test_rewards_with_and_without_the_key_reward_are_a_warning(task: Path, invoke: Invoke) -> None:
    (task / "steps/b").mkdir()
    (task / "steps/b/instruction.md").write_text("go on")
    (task / "steps/b/tests").mkdir()
    (task / "steps/b/tests/test.sh").write_text("echo '{\"correctness\": 1}' > /logs/verifier/reward.json\n")
    (task / "task.toml").write_text(GATED)
    (warning,) = json.loads(invoke("check", task, "-o", "json").stdout)["warnings"]
    assert warning.startswith("rewards of step b have no key reward, but those of other steps do")
    (task / "steps/b/tests/test.sh").write_text('echo \'{"reward": 1, "correctness": 1}\' > /logs/verifier/reward.json\n')
    assert json.loads(invoke("check", task, "-o", "json").stdout)["warnings"] == []


def test_rewards_that_all_lack_the_key_reward_are_a_warning(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text(TASK_TOML.replace("min_reward = 1.0", "min_reward = { style = 1 }"))
    (task / "steps/a/tests/test.sh").write_text("cp /tmp/rewards /logs/verifier/reward.json\n")
    (warning,) = json.loads(invoke("check", task, "-o", "json").stdout)["warnings"]
    assert "a sweep can choose one with spec.scoring.key" in warning
