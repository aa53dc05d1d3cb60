"""Test `multistep run` with an in-memory cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.trial import parse_trial
from multistep.client.reconnecting_watch import WatchEvent
from multistep.errors import ClusterError

from .conftest import TASK_TOML, Invoke
from .fakes import FAILED, GATE, GOOD, RAISED, CliCluster, status, step


@pytest.mark.parametrize(("end", "code"), [(GOOD, 0), (GATE, 1), (RAISED, 1), (FAILED, 3)])
def test_the_exit_code_reports_how_it_ended(
    task: Path, invoke: Invoke, cluster: CliCluster, end: Mapping[str, Any], code: int
) -> None:
    cluster.story = [status("Pending"), end]
    assert invoke("run", task).exit_code == code


def test_a_task_without_an_image_runs_with_the_image_of_the_option(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (task / "task.toml").write_text(TASK_TOML.replace('docker_image = "registry.example/image:1"', ""))
    refused = invoke("run", task)
    assert refused.exit_code == 2 and "image" in refused.stderr
    assert invoke("run", task, "--image", "registry.example/other:2", "--name", "t").exit_code == 0
    (created,) = [each for each in cluster.objects.values() if each["kind"] == "MultiStepTrial"]
    assert created["spec"]["environment"]["image"] == "registry.example/other:2"


def test_the_table_is_on_stdout_and_progress_on_stderr(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    result = invoke("run", task, "--name", "t")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["STEP", "PHASE", "REWARD", "AGENT", "VERIFIER", "GATE", "EXCEPTION", "ARTIFACTS"],
        ["a", "Complete", "1", "-", "-", "met", "-", "-"],
        ["t", "Complete:", "passed,", "score", "1,", "reward", "1:", "ran", "1", "step"],
    ]
    assert result.stderr.splitlines() == [
        "trial t in namespace default",
        "step 1 a: Complete, reward 1",
        "Complete: passed: ran 1 step",
    ]


def test_json_is_one_document(task: Path, invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    result = invoke("run", task, "-o", "json", "--results", tmp_path / "out", "--name", "t")
    document = json.loads(result.stdout)
    assert (
        document.items() >= {"name": "t", "namespace": "default", "phase": "Complete", "outcome": "Passed", "exitCode": 0}.items()
    )
    assert document["results"] == str(tmp_path / "out") and document["status"]["rewards"] == {"reward": 1.0}


LONG_ERROR = "the agent's command exited with status 1:\nTraceback:\n  File x\x1b[31m\nValueError: no"


def test_an_error_is_shown_once_with_its_lines_and_the_command_that_shows_more(
    task: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    exception = {"type": "NonZeroAgentExitCodeError", "message": LONG_ERROR, "phase": "agent"}
    ended = f"ended after 1 step with NonZeroAgentExitCodeError: {LONG_ERROR}"
    cluster.story = [status("Complete", step("a", "Failed", exception=exception), message=ended, outcome="AgentError", score=0.0)]
    result = invoke("run", task, "--name", "t")
    shown = [line.rstrip() for line in result.stdout.splitlines()[2:]]
    assert shown == [
        "fault: a: NonZeroAgentExitCodeError: the agent's command exited with status 1:",
        "  Traceback:",
        "    File x�[31m",
        "  ValueError: no",
        "t Complete: agent error, score 0, reward -: ended after 1 step with NonZeroAgentExitCodeError",
        "more: multistep logs t --step a --phase agent -n default",
    ]
    assert (result.stdout + result.stderr).count("Traceback") == 1
    assert "step 1 a: Failed, reward -, NonZeroAgentExitCodeError\n" in result.stderr


def test_why_a_trial_failed_is_shown_once_with_its_lines(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [status("Failed", reason="InvalidSpec", message="task.toml:\nartifacts: bad\nsteps: bad")]
    result = invoke("run", task, "--name", "t")
    assert result.stdout.splitlines() == [
        "t Failed: InvalidSpec: task.toml:",
        "  artifacts: bad",
        "  steps: bad",
        "more: kubectl describe mst t -n default",
    ]
    assert result.stderr.splitlines()[-1] == "Failed: InvalidSpec"


def test_an_error_of_the_command_itself_cannot_command_the_terminal(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.create_fails = ClusterError("first\x1b[2J\nsecond", status=422)
    assert invoke("run", task).stderr == "error: first�[2J\n  second\n"


def test_what_is_created_for_a_trial_goes_with_it(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    assert invoke("run", task, "--name", "t", "--var", "KEY=s3cr3t", "-n", "evals").exit_code == 0
    parts, secrets = cluster.of("ConfigMap"), cluster.of("Secret")
    assert len(parts) == 1 and len(secrets) == 1
    for each in (*parts, *secrets):
        assert each["metadata"]["namespace"] == "evals"
        assert [owner["uid"] for owner in each["metadata"]["ownerReferences"]] == ["uid-t"]
    trial = parse_trial(cluster.of("MultiStepTrial")[0])
    reference = trial.spec.variables[0].value_from
    assert reference is not None and reference.secret_key_ref is not None
    assert (reference.secret_key_ref.name, reference.secret_key_ref.key) == ("t-variables", "KEY")
    assert "s3cr3t" not in str(trial)


def test_a_variable_may_come_from_the_environment(
    task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "v")
    assert invoke("run", task, "--var", "KEY").exit_code == 0
    assert cluster.of("Secret")[0]["data"] == {"KEY": "dg=="}


def test_agent_env_reaches_the_command_agent(
    task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "s3cr3t")
    options = ("--agent-env", "API_KEY", "--agent-env", "MODE=a=b", "--agent-env-from-secret", "X=s:k")
    assert invoke("run", task, "--name", "t", *options, "--", "my-agent").exit_code == 0
    (secret,), trial = cluster.of("Secret"), cluster.of("MultiStepTrial")[0]
    assert (secret["metadata"]["name"], secret["data"]) == ("t-agent-env", {"API_KEY": "czNjcjN0", "MODE": "YT1i"})
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == ["uid-t"]
    assert trial["spec"]["agent"]["env"] == [
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "t-agent-env", "key": "API_KEY"}}},
        {"name": "MODE", "valueFrom": {"secretKeyRef": {"name": "t-agent-env", "key": "MODE"}}},
    ]
    assert "variables" not in trial["spec"]


@pytest.mark.parametrize("option", [("--var", "KEY=v"), ("--var-from-secret", "KEY=s:k")])
def test_a_variable_that_no_template_uses_is_refused_for_the_command_agent(
    task: Path, invoke: Invoke, cluster: CliCluster, option: tuple[str, str]
) -> None:
    result = invoke("run", task, *option, "--", "my-agent")
    assert result.exit_code == 2 and cluster.objects == {}
    assert result.stderr == (
        "error: --var KEY: no template in task.toml or a compose file uses ${KEY}, so nothing would receive it; "
        "for the agent's environment use --agent-env KEY\n"
    )
    other = invoke("run", task, *option)
    assert other.exit_code == 0 and "warning: --var KEY: no template in task.toml or a compose file uses ${KEY}\n" in other.stderr
    (task / "task.toml").write_text(TASK_TOML + '[steps.verifier.environment.env]\nA = "${KEY:-x}"\n')
    assert "no template" not in invoke("run", task, *option, "--", "my-agent").stderr


def test_a_missing_variable_is_reported_before_anything_is_created(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (task / "task.toml").write_text(TASK_TOML + '[verifier.env]\nA = "${KEY}"\n')
    result = invoke("run", task)
    assert result.exit_code == 2 and cluster.objects == {}
    assert result.stderr == "error: verifier.env.A needs a variable: give --var KEY\n"
    assert invoke("run", task, "--var-from-secret", "KEY=s:k").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--var", "MULTISTEP_NOT_SET"], "the environment here has no variable MULTISTEP_NOT_SET"),
        (["--var", "a b=c"], "a name consists of letters"),
        (["--results", "."], "is not empty"),
        (["--results", "pyproject.toml"], "is not a directory"),
        (["--name", "A"], "--name"),
    ],
)
def test_bad_usage_makes_nothing(task: Path, invoke: Invoke, cluster: CliCluster, arguments: list[str], reported: str) -> None:
    result = invoke("run", task, *arguments)
    assert result.exit_code == 2 and reported in result.stderr
    assert cluster.objects == {}


def test_a_bad_task_is_refused_with_all_its_problems(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (task / "task.toml").write_text("artifacts = 3\n[[steps]]\n")
    result = invoke("run", task)
    assert result.exit_code == 2 and cluster.objects == {}
    assert (
        "  task.toml:1: artifacts: should be a valid list; got 3\n  task.toml:2: steps[0].name: is required, but missing\n"
        in result.stderr
    )


def test_a_trajectory_is_refused_for_the_command_agent_and_a_warning_for_others(
    task: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    (task / "steps/a/trajectory.json").write_text("{}")
    refused = invoke("run", task, "--", "true")
    assert refused.exit_code == 2 and cluster.objects == {}
    assert "  steps/a/trajectory.json (step a): is not supported: agent 'command'" in refused.stderr
    warned = invoke("run", task, "--agent", "oracle")
    assert warned.exit_code == 0 and "warning: task My_Task: steps/a/trajectory.json (step a): is ignored" in warned.stderr


def test_without_verification_tests_may_be_missing(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (task / "steps/a/tests/test.sh").unlink()
    assert invoke("run", task, "--agent", "nop").exit_code == 2
    assert invoke("run", task, "--agent", "nop", "--no-verify").exit_code == 0
    assert invoke("run", task, "--no-verify").exit_code == 2, "the oracle loads the task with all checks"


def test_a_deleted_trial_has_failed(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [{"phase": "Deleted"}]
    result = invoke("run", task)
    assert result.exit_code == 3 and "was deleted" in result.stderr


def test_losing_the_cluster_reports_that_the_trial_continues(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [status("Running")]
    result = invoke("run", task, "--name", "t")
    assert result.exit_code == 4
    assert (
        "trial t continues in the cluster; follow: multistep show --follow t -n default; stop: multistep stop t -n default"
        in result.stderr
    )


def test_control_c_reports_that_the_trial_continues(
    task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object, **__: object) -> AsyncGenerator[WatchEvent, None]:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
        yield WatchEvent("DELETED", {})

    monkeypatch.setattr(cluster, "watch", interrupted)
    result = invoke("run", task, "--name", "t")
    assert result.exit_code == 130 and result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith(
        "trial t continues in the cluster; follow: multistep show --follow t -n default; stop: multistep stop t"
    )


def test_detached(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    result = invoke("run", task, "--detach")
    assert result.exit_code == 0
    assert re.fullmatch(r"my-task-oracle-\w{5}\n", result.stdout)
    assert len(cluster.of("MultiStepTrial")) == 1
