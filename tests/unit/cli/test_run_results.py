"""Test how `multistep run`, `show` and `results` fetch and show results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from .conftest import Invoke
from .fakes import FAILED, GATE, GOOD, RESULTS_PATH, CliCluster, status, tar_of


def test_results_are_fetched(task: Path, invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    assert invoke("run", task, "--results", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out/result.json").read_text() == "{}"


@pytest.mark.parametrize(("end", "code"), [(GOOD, 4), (GATE, 1)])
def test_lost_results_do_not_hide_the_outcome(
    task: Path, invoke: Invoke, cluster: CliCluster, tmp_path: Path, end: Mapping[str, Any], code: int
) -> None:
    cluster.story, cluster.served = [end], {}
    result = invoke("run", task, "--results", tmp_path / "out")
    assert result.exit_code == code and "Complete" in result.stdout
    assert "error: results were not fetched: no results exist at service://multistep/..." in result.stderr


def test_show(invoke: Invoke, cluster: CliCluster) -> None:
    cluster.put("MultiStepTrial", "t", status=dict(GOOD))
    assert invoke("show", "t").stdout.endswith("t Complete: passed, score 1, reward 1: ran 1 step\n")
    assert json.loads(invoke("show", "t", "-o", "json").stdout)["outcome"] == "Passed"
    assert invoke("show", "other").exit_code == 2


def test_the_place_of_the_results_in_an_object_store_is_reported(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    cluster.put("MultiStepTrial", "t", status={**GOOD, "resultsStore": "s3://b/p/evals/t/1"})
    reported = "its results are in the object store: s3://b/p/evals/t/1\n"
    assert invoke("show", "t").stdout.endswith(reported)
    assert invoke("results", "t", tmp_path / "out").stderr.endswith(reported)


def test_results_of_a_trial(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    cluster.put("MultiStepTrial", "t", status=dict(GOOD))
    result = invoke("results", "t", tmp_path / "out")
    assert result.exit_code == 0 and result.stderr.endswith(f"1 file (2 B) in {tmp_path / 'out'}\n")
    again = invoke("results", "t", tmp_path / "out")
    assert again.exit_code == 2 and "is not empty" in again.stderr
    assert invoke("results", "t", tmp_path / "out", "--force").exit_code == 0


def test_results_that_lack_what_a_finished_trial_has_are_reported(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    """The results volume was put back from a copy that was made while the trial ran."""
    cluster.put("MultiStepTrial", "t", status=dict(GOOD))
    cluster.served = {RESULTS_PATH: tar_of({"steps/a/agent/log.txt": b"x"})}
    result = invoke("results", "t", tmp_path / "out")
    assert result.exit_code == 0 and "warning: result.json is missing" in result.stderr
    cluster.served = {RESULTS_PATH: tar_of({"result.json": b"{}"})}
    assert "warning" not in invoke("results", "t", tmp_path / "whole").stderr


@pytest.mark.parametrize(("document", "code", "reported"), [(status("Running"), 2, "is Running"), (FAILED, 4, "has no results")])
def test_there_are_no_results(
    invoke: Invoke, cluster: CliCluster, tmp_path: Path, document: dict[str, Any], code: int, reported: str
) -> None:
    cluster.put("MultiStepTrial", "t", status=document)
    result = invoke("results", "t", tmp_path / "out")
    assert result.exit_code == code and reported in result.stderr


def test_results_of_a_deleted_trial_are_elsewhere(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    result = invoke("results", "t", tmp_path / "out", "-n", "evals")
    assert result.exit_code == 2
    assert "trial 't' does not exist in namespace 'evals'" in result.stderr
    assert "may still be on the operator's volume, in evals/t/" in result.stderr and "docs/how-to/operations.md" in result.stderr
    assert not (tmp_path / "out").exists()


def test_results_that_are_no_tar(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    cluster.put("MultiStepTrial", "t", status=dict(GOOD))
    cluster.served[RESULTS_PATH] = b"<html>"
    assert invoke("results", "t", tmp_path / "out").exit_code == 4
