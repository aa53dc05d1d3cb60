"""Test the findings of `multistep check` and their output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hack import image
from multistep.api.trial.agent_spec import AgentSpec
from multistep.client.task.check_task import examine
from multistep.client.task.findings import key_lines
from multistep.client.task.task_directory import TaskDirectory

from .conftest import TASK_TOML, Invoke


def test_a_good_task_is_a_table(task: Path, invoke: Invoke) -> None:
    result = invoke("check", task)
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        "STEP  AGENT TIMEOUT  VERIFIER TIMEOUT  GATE         SETUP  HEALTHCHECK  TESTS",
        "a              none            10 min  reward >= 1  -      -            own",
        "org/My_Task: 1 step, ready to run",
    ]


@pytest.mark.parametrize(
    ("toml", "field", "place", "step", "message"),
    [
        ("x = = 1", "task.toml", "task.toml:1", "", "is not TOML: Invalid value (at line 1, column 5)"),
        ("[[steps]]\nmin_reward = 1", "steps[0].name", "task.toml:1", "", "is required, but missing"),
        (
            "[[steps]]\nname = 'a/b'",
            "steps[0].name",
            "task.toml:2",
            "a/b",
            "must be one portable directory name, without '/'; got 'a/b'",
        ),
        ("[[steps]]\nname = 'b'", "steps/b/", "steps/b/", "b", "is missing: each step has a directory"),
        (
            "[[steps]]\nname = 'a'",
            "environment/Dockerfile",
            "environment/Dockerfile",
            "",
            "is missing, and so are environment.docker_image and spec.environment.image",
        ),
        (
            TASK_TOML.replace("[[steps]]", "os = 'windows'\n[[steps]]"),
            "environment.os",
            "task.toml:6",
            "",
            "windows is not supported; only linux",
        ),
    ],
)
def test_problems_name_field_place_and_value(
    task: Path, invoke: Invoke, toml: str, field: str, place: str, step: str, message: str
) -> None:
    (task / "task.toml").write_text(toml)
    result = invoke("check", task, "-o", "json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["problems"] == [{"field": field, "message": message, "place": place, "step": step}]


def test_all_problems_of_the_schema_are_reported(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text("artifacts = 3\n[[steps]]\nname = 'a'\n[steps.healthcheck]\nretries = 'x'")
    found = json.loads(invoke("check", task, "-o", "json").stdout)["problems"]
    assert [each["field"] for each in found] == ["artifacts", "steps[0].healthcheck.command", "steps[0].healthcheck.retries"]


@pytest.mark.parametrize(
    ("more", "warning"),
    [
        ("min_rewards = 1", "task.toml:10 (step a): steps[0].min_rewards: did you mean min_reward?"),
        ("zzz = 1", "task.toml:10 (step a): steps[0].zzz: unknown key"),
        (
            "[verifier]\ntimeout_sec = 5",
            "task.toml:11: verifier.timeout_sec: is not inherited by the steps; each has "
            "steps.verifier.timeout_sec, 600 by default",
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


@pytest.mark.parametrize(
    ("service", "shown"),
    [
        ("{image: x, expose: [9876]}", "problem: docker-compose.yaml:2: services.db.ports: 9876 is the port of the runner; "),
        (
            "{image: x, environment: {OPENAI_API_KEY: '${OPENAI_API_KEY}'}}",
            "problem: environment/docker-compose.yaml:2: services.db.env",
        ),
        ("{build: ../tests}", "problem: environment/docker-compose.yaml:2: services.db.build.context: must be environment/ or "),
        ("{build: ./db}", "warning: environment/db/Dockerfile: does not exist, so the cluster cannot build this image"),
    ],
)
def test_what_the_pod_or_the_cluster_cannot_have_is_found(task: Path, invoke: Invoke, service: str, shown: str) -> None:
    image.ensure_compose_reader()
    (task / "environment").mkdir()
    (task / "environment/docker-compose.yaml").write_text(f"services:\n  db: {service}\n")
    assert shown in invoke("check", task).stdout


def test_features_that_depend_on_agent_and_operator_are_notes_by_name(task: Path, invoke: Invoke) -> None:
    keys = 'gpus = 1\ngpu_types = ["RTX"]\nskills_dir = "/s"\nmcp_servers = [{name = "m", url = "http://x"}]\n[[steps]]'
    (task / "task.toml").write_text(TASK_TOML.replace("[[steps]]", keys))
    found = json.loads(invoke("check", task, "-o", "json").stdout)
    assert [(each["field"], each["place"]) for each in found["notes"]] == [
        ("environment.gpu_types", "task.toml:7"),
        ("environment.mcp_servers", "task.toml:9"),
        ("environment.skills_dir", "task.toml:8"),
    ]
    assert found["warnings"] == [] and invoke("check", "--strict", task).exit_code == 0
    (task / "steps/a/trajectory.json").write_text("{}")
    (warning,) = warnings_of(task, invoke)
    assert warning.startswith("steps/a/trajectory.json: is ignored by the oracle and nop agents")


def test_a_task_with_a_limited_network_passes_under_strict(task: Path, invoke: Invoke) -> None:
    keys = 'network_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\n[[steps]]'
    (task / "task.toml").write_text(TASK_TOML.replace("[[steps]]", keys))
    result = invoke("check", "--strict", task)
    assert result.exit_code == 0
    assert "note: task.toml:6: environment.network_mode: allowlist needs an operator with trials.egress Sidecar" in result.stdout


def test_a_type_of_tpu_that_no_operator_knows_is_a_problem(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text(f'{TASK_TOML}[environment.tpu]\ntype = "v99"\ntopology = "2x2"\n')
    result = invoke("check", task)
    assert result.exit_code == 2 and "problem: task.toml:10: environment.tpu.type: 'v99' is not a known type: " in result.stdout


def test_a_gate_without_keys_is_a_warning_and_shown(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text(TASK_TOML.replace("min_reward = 1.0", "min_reward = {}"))
    result = invoke("check", "--strict", task)
    assert result.exit_code == 1 and "always met" in result.stdout
    assert "warning: task.toml:8 (step a): steps[0].min_reward: is empty: every reward passes it; name a key" in result.stdout


ONE_STEP = "[[steps]]\nname = 'a'\n"


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (f"\ufeff{TASK_TOML}", "task.toml:1: is not TOML: it begins with a byte order mark, save it as UTF-8 without one: "),
        (f"version = 1.0\n{TASK_TOML}", "task.toml:1: version: should be a valid string, in quotes; got 1.0"),
        (
            f"{TASK_TOML}{ONE_STEP}",
            "task.toml:10 (step a): steps[1].name: names must differ by more than case, and an earlier step is 'a'; got 'a'",
        ),
        (
            TASK_TOML.replace("[[steps]]", 'network_mode = "allowlist"\nallowed_hosts = ["https://pypi.org/simple"]\n[[steps]]'),
            "task.toml:7: environment.allowed_hosts[0]: 'https://pypi.org/simple' must be a CIDR or IP address; URLs, ports and "
            "paths cannot be allowed: write the host only, 'pypi.org'",
        ),
    ],
)
def test_a_problem_of_the_schema_has_its_line_and_the_right_hint(task: Path, invoke: Invoke, toml: str, problem: str) -> None:
    (task / "task.toml").write_text(toml)
    result = invoke("check", task)
    assert result.exit_code == 2 and f"problem: {problem}" in result.stdout


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            '[steps.verifier.env]\n"A=B" = "c"',
            "task.toml:9 (step a): steps[0].verifier.env: 'A=B' cannot be the name of ",
        ),
        ('[solution.env]\nA = "b\\u0000c"', "task.toml:9: solution.env: the value of the variable 'A' has a NUL character"),
        ('[steps.agent]\nuser = "a\\u0000b"', "task.toml:10 (step a): steps[0].agent.user: the user 'a\\x00b' has a NUL character"),
        (
            '[steps.healthcheck]\ncommand = "a\\u0000b"',
            "task.toml:10 (step a): steps[0].healthcheck.command: the command 'a\\x00b' has a NUL character",
        ),
    ],
)
def test_a_value_that_the_runner_would_refuse_is_a_problem(task: Path, invoke: Invoke, table: str, problem: str) -> None:
    """The operator checks requests by the same rules before it sends them, so the trial would fail after its pod started."""
    (task / "task.toml").write_text(TASK_TOML + table)
    result = invoke("check", task)
    assert result.exit_code == 2 and f"problem: {problem}" in result.stdout, result.stdout


def test_an_instruction_that_an_agent_of_harbor_cannot_get_is_a_problem_for_it_only(task: Path) -> None:
    write(task, {"steps/a/instruction.md": "x" * (300 << 10)})
    directory = TaskDirectory.open(task)
    hosted = AgentSpec.model_validate({"name": "claude-code", "model": "anthropic/m", "access": "Direct"})
    refused = examine(directory.bundle(), "t", agents=[hosted])
    assert ["the agent's instruction and variables have 307200 bytes" in str(each) for each in refused.problems] == [True]
    assert examine(directory.bundle(), "t", agents=[AgentSpec(name="nop")]).ok


def test_problems_of_all_files_are_named_at_once(task: Path, invoke: Invoke) -> None:
    image.ensure_compose_reader()
    toml = TASK_TOML.replace("min_reward = 1.0", "verifier.collect = [{command = 'x', service = 'web'}]")
    compose = "services:\n  db:\n    image: x\n    privileged: true\n    pid: host\n"
    write(task, {"task.toml": f"{toml}[[steps]]\nname = 'b'\n[[steps]]\nname = 'c'\n", "environment/docker-compose.yaml": compose})
    write(task, {"steps/b/tests/test.sh": "#!/bin/sh\n", "steps/c/instruction.md": "go"})
    problems = [line for line in invoke("check", task).stdout.splitlines() if line.startswith("problem: ")]
    assert [line.split(": ")[1] for line in problems] == [
        "environment/docker-compose.yaml:4",
        "environment/docker-compose.yaml:5",
        "steps/b/instruction.md (step b)",
        "steps/c/tests/test.sh (step c)",
    ]
    (task / "environment/docker-compose.yaml").unlink()
    assert "steps[0].verifier.collect[0].service: 'web' needs environment/docker-compose.yaml" in invoke("check", task).stdout


def test_an_undeclared_step_is_a_warning(task: Path, invoke: Invoke) -> None:
    (task / "steps/b").mkdir()
    assert "warning: steps/b/: is not a step" in invoke("check", task).stdout


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


def warnings_of(task: Path, invoke: Invoke) -> list[str]:
    return [f"{each['place']}: {each['message']}" for each in json.loads(invoke("check", task, "-o", "json").stdout)["warnings"]]


def write(task: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_bytes(text.encode())


def test_rewards_with_and_without_the_key_reward_are_a_warning(task: Path, invoke: Invoke) -> None:
    test = "#!/bin/sh\necho '%s' > /logs/verifier/reward.json\n"
    write(task, {"steps/b/instruction.md": "go on", "steps/b/solution/solve.sh": "#!/bin/sh", "task.toml": GATED})
    write(task, {"steps/b/tests/test.sh": test % '{"correctness": 1}'})
    (warning,) = warnings_of(task, invoke)
    assert warning.startswith("steps/b/tests/test.sh:2: the rewards have no key reward, but those of other steps do")
    write(task, {"steps/b/tests/test.sh": test % '{"reward": 1, "correctness": 1}'})
    assert warnings_of(task, invoke) == []


def test_rewards_that_all_lack_the_key_reward_are_a_warning(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text(TASK_TOML.replace("min_reward = 1.0", "min_reward = { style = 1 }"))
    (task / "steps/a/tests/test.sh").write_text("#!/bin/sh\ncp /tmp/rewards /logs/verifier/reward.json\n")
    (warning,) = warnings_of(task, invoke)
    assert "a sweep can choose one with spec.scoring.key" in warning


@pytest.mark.parametrize(
    ("number", "effect"),
    [
        ("nan", "is nan: every reward passes it; "),
        ("-inf", "is -inf: every reward passes it; "),
        ('"inf"', "is inf: no reward reaches it, so no later step runs; "),
    ],
)
def test_a_gate_that_is_no_finite_number_is_a_warning_with_its_line(task: Path, invoke: Invoke, number: str, effect: str) -> None:
    (task / "task.toml").write_text(TASK_TOML.replace("min_reward = 1.0", f"min_reward = {number}"))
    (warning,) = warnings_of(task, invoke)
    line = TASK_TOML[: TASK_TOML.index("min_reward")].count("\n") + 1
    assert warning.startswith(f"task.toml:{line}: {effect}")


def test_a_timeout_that_never_ends_is_a_warning(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text(f"metadata = {{score = nan}}\n{TASK_TOML}verifier.timeout_sec = nan\n")
    (warning,) = warnings_of(task, invoke)
    assert warning.endswith("is nan: nothing ever times out; set a number of seconds")


@pytest.mark.parametrize(
    ("files", "warning"),
    [
        ({"steps/a/tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n"}, "steps/a/tests/test.sh:1: has no shebang"),
        ({"steps/a/solution/solve.sh": ""}, "steps/a/solution/solve.sh:1: has no shebang"),
        (
            {"steps/a/solution/solve.sh": "#!/bin/sh\ntrue\r\n"},
            "steps/a/solution/solve.sh:2: has CRLF line endings, which no shell understands: convert it with "
            "sed -i 's/\\r$//' steps/a/solution/solve.sh",
        ),
        ({"steps/a/workdir/setup.sh": "true\r\n"}, "steps/a/workdir/setup.sh:1: has CRLF line endings"),
        ({"steps/a/workdir/run": "#!/usr/bin/env python\r\n"}, "steps/a/workdir/run:1: has CRLF line endings"),
        (
            {"steps/a/instruction.md": "<!-- a canary -->\n\n \n"},
            "steps/a/instruction.md:1: is empty: the agent gets no instruction",
        ),
        (
            {"steps/a/tests/test.sh": "#!/bin/sh\nmake check\n"},
            "steps/a/tests/test.sh: no file of the tests names /logs/verifier/reward.txt or reward.json",
        ),
    ],
)
def test_likely_mistakes_are_warnings_with_their_place(task: Path, invoke: Invoke, files: dict[str, str], warning: str) -> None:
    write(task, files)
    (found,) = warnings_of(task, invoke)
    assert found.startswith(warning)
    assert invoke("check", task).exit_code == 0 and invoke("check", "--strict", task).exit_code == 1


@pytest.mark.parametrize(
    ("table", "warning"),
    [
        ("[steps.agent]\ntimeout_sec = -5", "task.toml:10 (step a): steps[0].agent.timeout_sec: is -5: it must be above 0"),
        ("[steps.verifier]\ntimeout_sec = 0", "task.toml:10 (step a): steps[0].verifier.timeout_sec: is 0: it must be above 0"),
        ("[agent]\ntimeout_sec = 0.0", "task.toml:10: agent.timeout_sec: is 0: it must be above 0"),
    ],
)
def test_a_timeout_without_time_is_a_warning(task: Path, invoke: Invoke, table: str, warning: str) -> None:
    (task / "task.toml").write_text(TASK_TOML + table)
    assert f"warning: {warning}" in invoke("check", task).stdout


@pytest.mark.parametrize("line", ["cpus = -0.5", "memory_mb = -512", "gpus = -1", "build_timeout_sec = 0"])
def test_a_number_that_no_pod_can_have_is_a_warning(task: Path, invoke: Invoke, line: str) -> None:
    (task / "task.toml").write_text(TASK_TOML.replace("[environment]", f"[environment]\n{line}"))
    (found,) = warnings_of(task, invoke)
    assert found.startswith(f"task.toml:5: is {line.rpartition(' ')[2]}: ")


def test_a_missing_solution_is_a_warning_unless_the_steps_share_one(task: Path, invoke: Invoke) -> None:
    (task / "steps/a/solution/solve.sh").unlink()
    (task / "steps/a/solution").rmdir()
    (found,) = warnings_of(task, invoke)
    assert found.startswith("steps/a/solution/solve.sh: is missing: the oracle agent fails here")
    write(task, {"solution/solve.sh": "#!/bin/sh\n"})
    assert warnings_of(task, invoke) == []


def test_data_with_carriage_returns_and_rewards_of_shared_helpers_are_fine(task: Path, invoke: Invoke) -> None:
    write(task, {"steps/a/workdir/table.csv": "a,b\r\n", "steps/a/tests/test.sh": "#!/bin/sh\n. /tests/helpers.sh\n"})
    write(task, {"tests/helpers.sh": "echo 1 > /logs/verifier/reward.txt\n"})
    assert warnings_of(task, invoke) == []


@pytest.mark.parametrize(
    ("workdir", "dockerfile", "warned"),
    [
        ("/app", "FROM x\nWORKDIR /app\n", False),
        ("/app/", "FROM x\nRUN git clone https://example.com/x /app && true\n", False),
        ("/", "FROM x\n", False),
        ("/app", "FROM x\nWORKDIR /application\n", True),
        ("app", "FROM x\nWORKDIR /app\n", True),
    ],
)
def test_a_workdir_that_the_dockerfile_does_not_name_is_a_warning(
    task: Path, invoke: Invoke, workdir: str, dockerfile: str, warned: bool
) -> None:
    toml = TASK_TOML.replace('docker_image = "registry.example/image:1"', f'workdir = "{workdir}"')
    write(task, {"task.toml": toml, "environment/Dockerfile": dockerfile})
    found = warnings_of(task, invoke)
    assert [each.startswith(f"task.toml:5: '{workdir}' is ") for each in found] == [True] * warned


def test_a_single_step_task_is_examined_at_its_root(tmp_path: Path, invoke: Invoke) -> None:
    toml = '[environment]\ndocker_image = "registry.example/image:1"\n'
    write(tmp_path, {"task.toml": toml, "instruction.md": "", "tests/test.sh": "true"})
    assert [each.partition(": ")[0] for each in warnings_of(tmp_path, invoke)] == [
        "instruction.md:1",
        "solution/solve.sh",
        "tests/test.sh",
        "tests/test.sh:1",
    ]


def test_a_fault_is_a_problem_under_strict_too_and_a_clean_task_passes(task: Path, invoke: Invoke) -> None:
    assert invoke("check", "--strict", task).exit_code == 0
    (task / "steps/a/solution/solve.sh").write_text("true")
    (task / "steps/a/instruction.md").unlink()
    assert invoke("check", "--strict", task).exit_code == 2


def test_a_link_out_of_the_task_is_a_problem_with_its_place(task: Path, invoke: Invoke) -> None:
    (task / "steps/a/tests/test.sh").unlink()
    (task / "steps/a/tests/test.sh").symlink_to("/etc/passwd")
    result = invoke("check", task)
    assert result.exit_code == 2
    assert "problem: steps/a/tests/test.sh (step a): leads out of the task" in result.stdout


def test_keys_have_the_line_on_which_their_statement_starts() -> None:
    text = """# a comment
top = 1

[a]
"quoted key" = [
  1, # two lines
]
b.c = {d = 1}
text = '''
[[steps]]
not = "a key"
'''
[[steps]]
name = "x"
[steps.verifier.env]
A = "\u2028"
[[steps]]
[[steps.artifacts]]
source = "y"
[[steps.artifacts]]
"""
    lines = key_lines(text)
    assert {key: line for key, line in lines.items() if "[" not in key or key.startswith("steps")} == {
        **{"top": 2, "a": 4, 'a."quoted key"': 5, "a.b": 8, "a.b.c": 8, "a.b.c.d": 8, "a.text": 9},
        **{"steps[0]": 13, "steps[0].name": 14, "steps[0].verifier.env": 15, "steps[0].verifier.env.A": 16},
        **{"steps[1]": 17, "steps[1].artifacts[0]": 18, "steps[1].artifacts[0].source": 19, "steps[1].artifacts[1]": 20},
    }
