"""Test `multistep sweep run` with two tasks that have a Dockerfile. The image of one of them cannot be built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hack import image
from multistep.cli.image.engines import Command, Localkube
from multistep.client.kubeconfig import CurrentCluster
from tests.unit.report.samples import trial

from .conftest import TASK_TOML, Invoke
from .fakes import CliCluster
from .test_sweep_run import GOOD, LOSSY, RUNNING, made


class Programs(Localkube):
    """A fake engine whose builds run the Dockerfile as a shell script. Loading an image does nothing."""

    def build(self, image: str, context: Path, dockerfile: Path) -> Command:
        return Command(["/bin/sh", str(dockerfile)])

    def load(self, image: str) -> Command:
        return Command(["/bin/true"])


@pytest.fixture
def tasks(task: Path, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with the tasks "good" and "bad". The image of "bad" cannot be built."""
    monkeypatch.setattr("multistep.cli.trial.run_trial.choose_engine", lambda _: Programs())
    monkeypatch.setattr(
        "multistep.cli.trial.run_trial.current_cluster", lambda *_: CurrentCluster("localkube", "https://10.243.0.2:6443")
    )
    cluster.story = [GOOD]
    directory = task.parent / "tasks"
    for name, dockerfile in {"bad": "echo no such package >&2; exit 7\n", "good": "exit 0\n"}.items():
        for path in (each for each in task.rglob("*") if each.is_file()):
            copy = directory / name / path.relative_to(task)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        toml = TASK_TOML.replace("My_Task", name).replace('docker_image = "registry.example/image:1"', "")
        (directory / name / "task.toml").write_text(toml)
        (directory / name / "environment").mkdir()
        (directory / name / "environment/Dockerfile").write_text(dockerfile)
    return directory


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_a_task_that_cannot_be_built_is_named_and_the_others_run(
    tasks: Path, invoke: Invoke, cluster: CliCluster, options: tuple[str, ...]
) -> None:
    result = invoke("sweep", "run", tasks, *options)
    assert result.exit_code == 1
    assert [each["name"] for each in made(cluster)["spec"]["tasks"]] == ["good"]
    assert made(cluster)["spec"]["tasks"][0]["environment"]["image"].startswith("localhost/multistep/good:")
    assert "error: task bad is left out of the sweep, as its image cannot be built: `/bin/sh" in result.stderr
    assert "no such package" in result.stderr
    assert result.stderr.endswith("error: 1 of 2 tasks could not be built and are not in the sweep: bad\n")


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_the_document_has_the_exit_code_of_unbuilt_tasks(
    tasks: Path, invoke: Invoke, cluster: CliCluster, options: tuple[str, ...]
) -> None:
    found = json.loads(invoke("sweep", "run", tasks, "-o", "json", *options).stdout)
    assert (found["exitCode"], found["faults"]) == (1, ["1 of 2 tasks could not be built and are not in the sweep: bad"])


def test_excluded_trials_and_unbuilt_tasks_have_the_same_exit_code(tasks: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [LOSSY]
    assert invoke("sweep", "run", tasks).exit_code == 1


def test_no_sweep_starts_if_no_task_can_be_built(tasks: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (tasks / "good/environment/Dockerfile").write_text("exit 1\n")
    result = invoke("sweep", "run", tasks)
    assert result.exit_code == 2 and cluster.of("TrialSweep") == []
    assert "error: task bad is left out" in result.stderr and "failed with status 1" in result.stderr


def test_a_cluster_that_takes_no_image_aborts_the_sweep(
    tasks: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Programs, "load", lambda *_: Command(["/bin/false"]))
    result = invoke("sweep", "run", tasks)
    assert result.exit_code == 2 and cluster.of("TrialSweep") == []
    assert "`/bin/false` failed" in result.stderr


def test_a_build_that_the_compose_file_changes_is_left_to_the_cluster(tasks: Path, invoke: Invoke, cluster: CliCluster) -> None:
    image.ensure_compose_reader()
    (tasks / "good/environment/docker-compose.yaml").write_text("services: {main: {build: {context: ., target: dev}}}\n")
    result = invoke("sweep", "run", tasks / "good", "--name", "s")
    assert "the compose file has a build of its own for main: the cluster builds it" in result.stderr, result.stderr
    assert "environment" not in made(cluster)["spec"]["tasks"][0]


def test_the_reasons_of_excluded_trials_are_named_at_the_end(invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [LOSSY]
    uid = cluster.put("TrialSweep", "s", status=RUNNING)["metadata"]["uid"]
    owner = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "s", "uid": uid, "controller": True}
    for attempt, task in enumerate(["t-6", "t-6", *(f"t-{number}" for number in range(6))], 1):
        made = trial(task, attempt=attempt, ended="Failed", failure=("Task", "ImageBuildFailed"))
        made["metadata"] |= {"labels": {"multistep.dev/sweep": "s"}, "ownerReferences": [owner]}
        cluster.objects["MultiStepTrial", f"{task}-{attempt}"] = made
    told = invoke("sweep", "status", "s", "--follow").stderr.splitlines()
    assert told[-6] == "task t-0: 1 trial excluded: ImageBuildFailed"
    assert told[-1] == "2 more tasks or reasons: multistep sweep report s"
