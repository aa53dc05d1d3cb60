"""Test that `multistep run` submits a trial and the objects that the trial owns, and that a failed submission leaves no object."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.errors import ClusterError, Unavailable

from .conftest import TASK_TOML, Invoke
from .fakes import CliCluster


def test_a_name_that_is_taken(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.put("MultiStepTrial", "t")
    result = invoke("run", task, "--name", "t")
    assert (result.exit_code, result.stderr) == (2, "error: trial 't' already exists: delete it, or choose another --name\n")


@pytest.mark.parametrize("command", [("run",), ("sweep", "run")])
@pytest.mark.parametrize(
    ("failing", "reported"),
    [
        (
            {"missing_namespaces": ("evals",)},
            "error: namespace 'evals' does not exist: create it with `kubectl create namespace evals`",
        ),
        ({"denied": ("MultiStepTrial", "TrialSweep")}, "is forbidden"),
        ({"denied": ("ConfigMap",)}, "error: ConfigMap is forbidden"),
        ({"denied": ("Secret",)}, "error: Secret is forbidden"),
        ({"installed": False}, "install Multistep"),
    ],
)
def test_what_the_cluster_would_refuse_is_reported_before_anything_is_built(
    task: Path,
    invoke: Invoke,
    cluster: CliCluster,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    failing: Mapping[str, Any],
    reported: str,
) -> None:
    def build(*_: object, **__: object) -> None:
        raise AssertionError("built before the cluster was checked")

    monkeypatch.setattr("multistep.cli.trial.run_trial.build_image", build)
    (task / "task.toml").write_text(TASK_TOML.replace('docker_image = "registry.example/image:1"', ""))
    (task / "environment").mkdir()
    (task / "environment/Dockerfile").write_text("FROM scratch\n")
    for name, value in failing.items():
        setattr(cluster, name, value)
    result = invoke(*command, task, "-n", "evals", "--agent-env", "A=b")
    assert result.exit_code == 2 and reported in result.stderr, result.stderr
    assert cluster.objects == {}


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["--from-step", "nope"], "spec.fromStep: the task has no step 'nope'. Its steps are a\n"),
        (["--to-step", "nope"], "spec.toStep: the task has no step 'nope'. Its steps are a\n"),
        (["--from", "base:a"], "spec.from.step: 'a' is the task's last step: none is left to run. Its steps are a\n"),
    ],
)
def test_a_step_that_the_task_lacks_is_reported_before_the_cluster_is_used(
    task: Path, invoke: Invoke, cluster: CliCluster, options: list[str], reported: str
) -> None:
    cluster.reachable = False
    result = invoke("run", task, *options)
    assert result.exit_code == 2 and result.stderr.endswith(f"error: {reported}"), result.stderr


def test_no_cluster(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.reachable = False
    assert invoke("run", task).exit_code == 4


def test_no_kubeconfig(task: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = "set $KUBECONFIG, or use --kubeconfig and --context\n"
    result = invoke("run", task)
    assert result.exit_code == 4
    assert result.stderr.endswith(f"error: kubeconfig {tmp_path}/no-kubeconfig does not exist: {hint}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG")
    result = invoke("run", task)
    assert result.exit_code == 4
    assert result.stderr.endswith(f"error: no kubeconfig names a cluster: {hint}")


def test_a_cluster_without_multistep(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.installed = False
    result = invoke("run", task)
    assert result.exit_code == 2 and "install Multistep" in result.stderr


def test_a_refused_trial_leaves_nothing_behind(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.create_fails = ClusterError("spec is invalid", status=422)
    result = invoke("run", task, "--agent-env", "A=b")
    assert (result.exit_code, result.stderr) == (2, "error: spec is invalid\n")
    assert cluster.objects == {}


def test_a_trial_that_cannot_have_what_it_needs_is_withdrawn(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.apply_fails = ClusterError("exceeded quota: objects", status=403)
    result = invoke("run", task, "--agent-env", "A=b")
    assert (result.exit_code, result.stderr) == (2, "error: exceeded quota: objects\n")
    assert cluster.objects == {}


def test_control_c_while_it_is_submitted_leaves_nothing_behind(
    task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(manifest: Mapping[str, Any], *, dry_run: bool = False) -> Any:
        if not dry_run:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        return manifest

    monkeypatch.setattr(cluster, "apply", interrupted)
    assert invoke("run", task).exit_code == 130
    assert cluster.objects == {}


def test_nothing_is_ever_there_that_no_trial_owns(
    task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every ConfigMap and Secret is created with the trial as owner. So even if the command is killed, deleting the trial deletes
    them."""
    store = cluster._store

    def checked(manifest: Mapping[str, Any]) -> Any:
        stored = store(manifest)
        trials = {each["metadata"]["uid"] for each in cluster.of("MultiStepTrial")}
        for each in (*cluster.of("ConfigMap"), *cluster.of("Secret")):
            assert {owner["uid"] for owner in each["metadata"]["ownerReferences"]} == trials
        return stored

    monkeypatch.setattr(cluster, "_store", checked)
    assert invoke("run", task, "--var", "A=b").exit_code == 0
    assert len(cluster.of("ConfigMap")) == len(cluster.of("Secret")) == 1


def test_a_lost_answer_is_found(task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    create = cluster.create

    async def create_without_response(manifest: Mapping[str, Any], *, dry_run: bool = False, **options: Any) -> Any:
        created = await create(manifest, dry_run=dry_run, **options)
        if dry_run:
            return created
        raise Unavailable("connection reset")

    monkeypatch.setattr(cluster, "create", create_without_response)
    assert invoke("run", task).exit_code == 0


@pytest.mark.parametrize(("command", "kind"), [(("run",), "MultiStepTrial"), (("sweep", "run"), "TrialSweep")])
def test_when_the_answer_is_lost_an_object_that_somebody_else_created_is_not_taken_over(
    task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], kind: str
) -> None:
    create = cluster.create

    async def taken(manifest: Mapping[str, Any], *, dry_run: bool = False) -> Any:
        if dry_run:
            return await create(manifest, dry_run=True)
        cluster.put(kind, "t")
        raise Unavailable("connection reset")

    monkeypatch.setattr(cluster, "create", taken)
    result = invoke(*command, task, "--name", "t")
    assert (result.exit_code, "'t' already exists: delete it, or choose another --name" in result.stderr) == (2, True)
    assert list(cluster.objects) == [(kind, "t")]
