"""Test the manifests of trials: names, labels, the spec's fields, and `multistep package`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.trial import parse_trial
from multistep.client.submit import manifests
from multistep.errors import UsageError
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.stored_bundles import join_bundle

from .conftest import Invoke

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


@given(st.text(max_size=100), st.sampled_from(["oracle", "nop", "command"]))
def test_trial_names_are_dns_labels(task: str, agent: str) -> None:
    name = manifests.new_name(task, agent)
    assert _DNS_LABEL.fullmatch(name)
    assert re.search(rf"-{agent}-[a-z0-9]{{5}}$", name)


@pytest.mark.parametrize(
    ("agent", "part"), [("MyAgent", "myagent"), ("my_agent", "my-agent"), ("terminus-2", "terminus-2"), ("A" * 60, "a" * 30)]
)
def test_the_class_of_an_agent_is_a_valid_part_of_a_trials_name(agent: str, part: str) -> None:
    name = manifests.new_name("task" * 20, agent)
    assert _DNS_LABEL.fullmatch(name) and f"-{part}-" in name


@pytest.mark.parametrize("name", ["A", "a.b", "-a", "a-", "a" * 64, ""])
def test_names_that_kubernetes_would_refuse(name: str) -> None:
    with pytest.raises(UsageError, match="must be at most 63"):
        manifests.checked_name(name)


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--timeout-multiplier", "--max-cost"])
def test_a_number_that_is_not_finite_is_rejected_by_the_name_of_its_option(
    option: str, number: str, task: Path, invoke: Invoke
) -> None:
    result = invoke("package", task, "--agent", "claude-code", option, number)
    assert result.exit_code == 2 and f"'{option}': {number} is not a finite number" in result.stderr


def test_package_carries_the_whole_task(task: Path, invoke: Invoke) -> None:
    result = invoke("package", task, "--agent", "nop", "--name", "x", "-n", "evals")
    assert result.exit_code == 0 and result.stderr == ""
    *parts, trial = _documents(result.stdout)
    parsed = parse_trial(trial)
    assert parsed.metadata.name == "x" and parsed.spec.agent.name == "nop" and parsed.spec.task.bundle is not None
    assert parsed.spec.task.bundle.config_maps == [each["metadata"]["name"] for each in parts]
    packed = join_bundle(parts, parsed.spec.task.bundle.digest)
    assert "steps/a/instruction.md" in Bundle.from_archive(packed, parsed.spec.task.bundle.digest).entries
    for each in (*parts, trial):
        assert each["metadata"]["namespace"] == "evals"
        assert each["metadata"]["labels"]["multistep.dev/bundle"] == parsed.spec.task.bundle.digest[7:19]
    assert all(each["immutable"] for each in parts)


def test_the_trial_shows_only_what_is_not_default(task: Path, invoke: Invoke) -> None:
    *_, trial = _documents(invoke("package", task).stdout)
    assert trial["spec"].keys() == {"task", "agent"}
    assert trial["spec"]["task"]["name"] == "my-task" and trial["spec"]["agent"] == {"name": "oracle"}
    assert re.fullmatch(r"my-task-oracle-[a-z0-9]{5}", trial["metadata"]["name"])


def test_every_option_reaches_the_spec(task: Path, invoke: Invoke) -> None:
    options = ["--image", "i:1", "--runner-in-image", "--no-verify", "--keep", "--timeout-multiplier", "2.5"]
    options += ["--on-agent-error", "continue", "--var-from-secret", "KEY=keys:openai", "--queue", "team"]
    *_, trial = _documents(invoke("package", task, *options, "--", "bash", "-c", "x").stdout)
    parse_trial(trial)
    assert trial["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    del trial["spec"]["task"]
    assert trial["spec"] == {
        "agent": {"name": "command", "command": ["bash", "-c", "x"]},
        "environment": {"image": "i:1", "runnerInImage": True},
        "verifier": {"disable": True},
        "timeoutMultiplier": 2.5,
        "variables": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}],
        "onAgentError": "Continue",
        "podCleanup": "Never",
    }


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (["--from", "base:build it"], {"from": {"trial": "base", "step": "build it"}}),
        (["--from-step", "b", "--to-step", "b"], {"fromStep": "b", "toStep": "b"}),
    ],
)
def test_a_trial_can_be_started_at_a_step_and_ended_after_one(
    task: Path, invoke: Invoke, options: list[str], fields: dict[str, Any]
) -> None:
    *_, trial = _documents(invoke("package", task, *options).stdout)
    parse_trial(trial)
    assert {key: each for key, each in trial["spec"].items() if key not in ("task", "agent")} == fields


def test_the_budget_of_a_trial_reaches_the_spec(task: Path, invoke: Invoke) -> None:
    options = ["--agent", "codex", "--model", "openai/x", "--key-from-secret", "keys:openai", "--max-cost", "0.5"]
    *_, trial = _documents(invoke("package", task, *options, "--max-input-tokens", "1000", "--max-output-tokens", "10").stdout)
    parse_trial(trial)
    assert trial["spec"]["agent"]["limits"] == {"costUSD": 0.5, "inputTokens": 1000, "outputTokens": 10}


def test_the_judge_of_a_trial_reaches_the_spec(task: Path, invoke: Invoke) -> None:
    options = ["--judge", "openai/x", "--judge-key-from-secret", "keys:openai", "--judge-base-url", "https://proxy.example/v1"]
    options += ["--judge-max-cost", "0.5", "--judge-model-env", "MODEL", "--judge-model-env", "REWARDKIT_JUDGE"]
    *_, trial = _documents(invoke("package", task, *options).stdout)
    judge = parse_trial(trial).spec.models.judge
    assert judge is not None and judge.limits is not None and judge.other_models == "Allow"
    assert (judge.model, judge.base_url, judge.limits.cost_usd) == ("openai/x", "https://proxy.example/v1", 0.5)
    assert trial["spec"]["models"]["judge"]["credentials"] == [
        {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}
    ]
    assert trial["spec"]["verifier"]["env"] == [{"name": each, "value": "openai/x"} for each in ("MODEL", "REWARDKIT_JUDGE")]


def test_package_names_the_image_that_build_makes(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text("[[steps]]\nname = 'a'\n")
    (task / "environment").mkdir()
    (task / "environment/Dockerfile").write_text("FROM scratch\n")
    result = invoke("package", task)
    *_, trial = _documents(result.stdout)
    assert re.fullmatch(r"localhost/multistep/my-task:[0-9a-f]{12}", trial["spec"]["environment"]["image"])
    assert trial["spec"]["environment"]["imagePullPolicy"] == "Never"
    assert "multistep build" in result.stderr


def test_package_refuses_nothing_that_the_operator_is_to_refuse(task: Path, invoke: Invoke) -> None:
    (task / "task.toml").write_text("x = = 1")
    result = invoke("package", task)
    assert result.exit_code == 0 and len(_documents(result.stdout)) == 2
    assert result.stderr == "warning: task.toml: is not TOML: Invalid value (at line 1, column 5); packaged as it is\n"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--agent", "command"], "requires a command"),
        (["--agent", "nop", "--", "bash"], "requires a command"),
        (["--agent", "nobody"], "--agent nobody: no such agent"),
        (
            ["--agent", "codex@openai/gpt-5"],
            "--agent codex@openai/gpt-5: AGENT@MODEL is for sweeps; for one trial give --agent codex --model openai/gpt-5",
        ),
        (["--agent", "claude-cod", "--model", "a/b"], "did you mean 'claude-code'?"),
        (["--agent", "claude-code"], "--agent claude-code needs a model: --model PROVIDER/NAME"),
        (["--agent", "oracle", "--model", "a/b"], "--agent oracle uses no model"),
        (["--agent", "codex", "--model", "openai/x", "--agent-kwarg", "turns"], "--agent-kwarg turns: must be NAME=VALUE"),
        (["--agent", "codex", "--model", "openai/x", "--key-from-secret", "keys"], "must be SECRET:KEY or NAME=SECRET:KEY"),
        (["--agent", "codex", "--model", "my/x", "--key-from-secret", "s:k"], "give NAME=s:k"),
        (["--agent", "aider", "--model", "openai/x", "--resume", "--agent-kwarg", "a=1", "--", "x"], "other agents take none"),
        (["--name", "A_B"], "such as 'a-b'"),
        (["--from", "base"], "--from 'base' must be TRIAL:STEP"),
        (["--from", ":step"], "--from ':step' must be TRIAL:STEP"),
        (["--from", "base:a", "--from-step", "b"], "--from and --from-step exclude each other"),
        (["--var-from-secret", "KEY=secret"], "must be NAME=SECRET:KEY"),
        (["--var-from-secret", "1=a:b"], "does not start with a digit"),
        (["--timeout-multiplier", "-1"], "--timeout-multiplier"),
    ],
)
def test_bad_usage(task: Path, invoke: Invoke, arguments: list[str], reported: str) -> None:
    result = invoke("package", task, *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert reported in result.stderr


def test_a_secret_keeps_any_value() -> None:
    secret = manifests.secret_of("t-variables", {"A": "x=y\n\udcff"})
    assert secret["metadata"] == {"name": "t-variables"}
    assert secret["data"] == {"A": "eD15Cv8="}


@pytest.mark.parametrize("words", [["other-task"], ["echo", "--", "hi"], ["--agent", "command", "echo", "hi"]])
def test_a_command_without_dashes_before_it_is_rejected(task: Path, invoke: Invoke, words: list[str]) -> None:
    result = invoke("package", task, *words)
    assert result.exit_code == 2 and "COMMAND follows --; for several tasks: sweep run" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("words", [["--", "echo", "--", "hi"], ["--agent", "command", "--", "echo", "--", "hi"]])
def test_a_command_may_contain_dashes(task: Path, invoke: Invoke, words: list[str]) -> None:
    *_, trial = _documents(invoke("package", task, *words).stdout)
    assert trial["spec"]["agent"]["command"] == ["echo", "--", "hi"]
