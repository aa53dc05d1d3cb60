"""Test how `multistep sweep run` reports a FILE or DIRECTORY that it cannot use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from .conftest import Invoke
from .fakes import CliCluster


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        (["--task", "my-*"], ["my-task"]),
        (["--exclude", "my-*"], ["a", "b"]),
        (["--limit", "2"], ["a", "b"]),
        (["--task", "?", "--exclude", "b"], ["a"]),
        ([], ["a", "b", "my-task"]),
    ],
)
def test_patterns_and_a_limit_select_directories(
    task: Path, invoke: Invoke, cluster: CliCluster, options: list[str], tasks: list[str]
) -> None:
    for name in ("a", "b"):
        shutil.copytree(task, task.parent / name)
    for each in ("a", "b", "my-task"):
        toml = task.parent / each / "task.toml"
        toml.write_text(toml.read_text().replace("org/My_Task", f"org/{each}"))
    result = invoke("sweep", "run", task.parent, "--detach", *options)
    assert result.exit_code == 0, result.stderr
    (sweep,) = cluster.of("TrialSweep")
    assert [each["name"] for each in sweep["spec"]["tasks"]] == tasks
    assert (f"{len(tasks)} of 3 tasks\n" in result.stderr) == (len(tasks) < 3)


def test_a_pattern_that_no_directory_matches_is_reported_with_their_names(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    result = invoke("sweep", "run", task, "--task", "x*")
    assert (result.exit_code, result.stderr) == (2, f"error: {task}: no task matches 'x*'; it has 'my-task'\n")


def test_patterns_do_not_apply_to_a_file(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    file = task.parent / "sweep.yaml"
    file.write_text("")
    assert "--task applies to directories of tasks only" in invoke("sweep", "run", file, "--task", "x").stderr


def test_another_namespace_than_that_of_the_file_is_rejected(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    spec = {"tasks": [{"name": "t", "inline": {"config": {}}}], "agents": [{"name": "o", "agent": {"name": "oracle"}}]}
    metadata = {"name": "s", "namespace": "a"}
    file = task.parent / "sweep.yaml"
    file.write_text(yaml.safe_dump({"kind": "TrialSweep", "metadata": metadata, "spec": spec}))
    result = invoke("sweep", "run", file, "-n", "b")
    assert (result.exit_code, result.stderr) == (2, f"error: --namespace b: the sweep in {file} has namespace a\n")
    assert invoke("sweep", "run", file, "-n", "a", "--detach").exit_code == 0


@pytest.mark.parametrize("agent", ["claude-code", "mine=claude-code"])
def test_an_agent_without_its_model_is_reported_with_its_form(task: Path, invoke: Invoke, cluster: CliCluster, agent: str) -> None:
    result = invoke("sweep", "run", task, "--agent", agent)
    assert (result.exit_code, result.stderr) == (
        2,
        f"error: --agent {agent}: needs a model: --agent {agent}@PROVIDER/NAME\n",
    )


def test_an_agent_of_multistep_may_have_a_name(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    assert invoke("sweep", "run", task, "--agent", "mine=oracle", "--detach").exit_code == 0
    (sweep,) = cluster.of("TrialSweep")
    assert sweep["spec"]["agents"] == [{"name": "mine", "agent": {"name": "oracle"}}]


@pytest.mark.parametrize(
    ("names", "reported"),
    [
        (["my-task", "sweep.yaml"], "sweep.yaml is a file: give one file alone, or directories only"),
        (["nope.yaml"], "nope.yaml does not exist: name the directory of a task, or of tasks"),
        (["sweep.yaml"], "sweep.yaml: spec.agents: is required, but missing"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(
    task: Path, invoke: Invoke, cluster: CliCluster, names: list[str], reported: str
) -> None:
    sweep = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "metadata": {"name": "s"}, "spec": {}}
    (task.parent / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    result = invoke("sweep", "run", *(task.parent / name for name in names))
    assert result.exit_code == 2 and f"error: {task.parent}/{reported}" in result.stderr, result.stderr


def test_an_image_for_tasks_without_one_is_used(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    toml = task / "task.toml"
    toml.write_text(toml.read_text().replace('docker_image = "registry.example/image:1"', ""))
    assert invoke("sweep", "run", task, "--detach").exit_code == 2
    result = invoke("sweep", "run", task, "--detach", "--image", "registry.example/image:2")
    assert result.exit_code == 0, result.stderr
    (sweep,) = cluster.of("TrialSweep")
    assert sweep["spec"]["tasks"][0]["environment"] == {"image": "registry.example/image:2"}


@pytest.mark.parametrize("options", [("--runner-in-image",), ("--timeout-multiplier", 0)])
def test_options_do_not_apply_to_a_file_whatever_their_value(
    task: Path, invoke: Invoke, cluster: CliCluster, options: tuple[object, ...]
) -> None:
    file = task.parent / "sweep.yaml"
    file.write_text("")
    assert f"{options[0]} applies to directories of tasks only" in invoke("sweep", "run", file, *options).stderr


@pytest.mark.parametrize("agent", [("--agent", "oracle"), ("--agent", "mine=./agent.sh"), ()])
def test_options_of_a_model_without_an_agent_that_uses_one_are_rejected(
    task: Path, invoke: Invoke, cluster: CliCluster, agent: tuple[str, ...]
) -> None:
    """A command's model requests would have no budget, although the user set one."""
    result = invoke("sweep", "run", task, *agent, "--max-cost", 1)
    assert (result.exit_code, "no agent uses a model: --max-cost" in result.stderr) == (2, True), result.stderr


def test_an_empty_image_is_none(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    for command in (("sweep", "run"), ("run",)):
        result = invoke(*command, task, "--detach", "--image", "")
        assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("metadata", [{"generateName": "x"}, {"name": 3}])
def test_every_object_of_a_file_needs_a_name(task: Path, invoke: Invoke, cluster: CliCluster, metadata: dict[str, object]) -> None:
    file = task.parent / "sweep.yaml"
    documents = [{"kind": "TrialSweep", "metadata": {"name": "s"}}, {"kind": "Secret", "metadata": metadata}]
    file.write_text(yaml.safe_dump_all(documents))
    result = invoke("sweep", "run", file)
    assert (result.exit_code, result.stderr) == (2, f"error: {file}: the Secret needs metadata.name, a string\n")
