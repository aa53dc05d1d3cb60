"""Test the options that replace the resources of the task: --override-cpus and so on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from multistep.api.sweep.sweep import parse_sweep
from multistep.api.trial.trial import parse_trial
from multistep.client.submit.manifests import TrialImage
from multistep.client.submit.sweep_manifest import SweepOptions, sweep_of_source

from .conftest import Invoke
from .fakes import CliCluster

ALL = ("--override-cpus", "2", "--override-memory-mb", "4096", "--override-storage-mb", "100", "--override-gpus", "0")
RESOURCES = {"cpus": 2, "memoryMB": 4096, "storageMB": 100, "gpus": 0}


def _packaged(invoke: Invoke, task: Path, *options: str) -> dict[str, Any]:
    *_, trial = yaml.safe_load_all(invoke("package", task, *options).stdout)
    parse_trial(trial)
    environment: dict[str, Any] = trial["spec"]["environment"]
    return environment


def _template(cluster: CliCluster) -> dict[str, Any]:
    (sweep,) = cluster.of("TrialSweep")
    parse_sweep(sweep)
    template: dict[str, Any] = sweep["spec"]["template"]
    return template


def test_the_manifest_of_a_trial_has_the_resources(task: Path, invoke: Invoke) -> None:
    assert _packaged(invoke, task, *ALL) == {"resources": RESOURCES}
    assert _packaged(invoke, task, *ALL, "--image", "i:1") == {"image": "i:1", "resources": RESOURCES}
    assert _packaged(invoke, task, "--override-cpus", "0.5") == {"resources": {"cpus": 0.5}}


def test_run_creates_a_trial_with_the_resources(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    assert invoke("run", task, *ALL, "--detach").exit_code == 0
    (trial,) = cluster.of("MultiStepTrial")
    assert trial["spec"]["environment"]["resources"] == RESOURCES


def test_the_template_of_a_sweep_has_the_resources(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    assert invoke("sweep", "run", task, *ALL, "--image", "i:1", "--detach").exit_code == 0
    assert _template(cluster) == {"spec": {"environment": {"resources": RESOURCES}}}
    (sweep,) = cluster.of("TrialSweep")
    assert sweep["spec"]["tasks"][0]["environment"] == {"image": "i:1"}


def test_the_template_of_a_sweep_from_a_source_has_image_and_resources() -> None:
    source = {"dataset": {"registry": "https://example.com/registry.json", "name": "bench"}}
    planned = sweep_of_source(source, TrialImage("i:1"), SweepOptions("s", resources=RESOURCES))
    assert planned.main["spec"]["template"]["spec"]["environment"] == {"image": "i:1", "resources": RESOURCES}


def test_a_file_with_a_sweep_sets_its_resources_itself(tmp_path: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (tmp_path / "x.yaml").write_text("{}")
    result = invoke("sweep", "run", tmp_path / "x.yaml", "--override-gpus", "0")
    assert (result.exit_code, cluster.objects) == (2, {})
    assert "--override-* applies to directories of tasks only: set it in" in result.stderr


@pytest.mark.parametrize("command", [("package",), ("run",), ("sweep", "run")])
@pytest.mark.parametrize(
    ("option", "values", "right"),
    [
        ("--override-cpus", ["0", "-1", "500m", "nan", "inf"], "a number of CPU cores, at least 0.001, such as 2 or 0.5"),
        ("--override-memory-mb", ["0", "4Gi", "1.5"], "a whole number of mebibytes, at least 1, such as 4096 for 4 GiB"),
        ("--override-storage-mb", ["0", "10G", ""], "a whole number of mebibytes, at least 1, such as 4096 for 4 GiB"),
        ("--override-gpus", ["-1", "H100"], "a whole number of GPUs, such as 1, or 0 for none"),
    ],
)
def test_an_invalid_amount_is_reported_with_its_option_and_what_is_valid(
    task: Path, invoke: Invoke, cluster: CliCluster, command: tuple[str, ...], option: str, values: list[str], right: str
) -> None:
    for value in values:
        result = invoke(*command, task, option, value)
        assert (result.exit_code, result.stdout, cluster.objects) == (2, "", {})
        assert f"Invalid value for '{option}': {value!r} must be {right}" in " ".join(result.stderr.split())
