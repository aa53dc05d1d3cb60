"""Test that Harbor 0.26's own models and viewer read a sweep that `multistep sweep results` fetched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from multistep.cli import cluster as cluster_module
from multistep.cli.main import cli
from tests.harbor.environment import harbor_python
from tests.support.sweep_jobs import MIXED, SWEEP, UID, put_sweep
from tests.unit.cli.fakes import CliCluster

LOAD = Path(__file__).with_name("load_job.py")
Jobs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Jobs:
    """Return what Harbor reads from the jobs of a fetched sweep."""
    cluster, top = CliCluster(), tmp_path_factory.mktemp("job")
    put_sweep(cluster, top / "results")
    return in_harbor(cluster, top / "jobs", request)


def multistep(cluster: CliCluster, *arguments: str) -> str:
    """Return what a command prints to stdout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_module, "connect", cluster.connect)
        result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def in_harbor(cluster: CliCluster, directory: Path, request: pytest.FixtureRequest) -> Jobs:
    """Fetch the sweep into a jobs directory, and return what Harbor reads from it."""
    multistep(cluster, "sweep", "results", SWEEP, str(directory))
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():  # show output of the installation
        python = harbor_python()
    done = python.run(LOAD, directory)
    assert done.returncode == 0, done.stderr[-4000:]
    found: Jobs = json.loads(done.stdout)
    return found


def test_the_viewer_lists_the_sweep_as_a_completed_job(jobs: Jobs) -> None:
    summary = jobs[SWEEP]["summary"]
    assert summary["id"] == UID
    assert (summary["n_total_trials"], summary["n_completed_trials"], summary["n_errored_trials"]) == (5, 5, 1)
    assert summary["finished_at"] == "2027-01-15T08:00:00Z"
    assert (summary["total_input_tokens"], summary["total_cached_input_tokens"], summary["total_output_tokens"]) == (100, 20, 7)
    assert summary["total_cost_usd"] == 0.25


def test_each_agent_of_the_sweep_has_its_score_although_both_run_a_command(jobs: Jobs) -> None:
    evals = jobs[SWEEP]["job"]["stats"]["evals"]
    scores = {name: each["metrics"] for name, each in evals.items()}
    assert scores == {
        "a__adhoc": [{"score": 0.75}, {"mean": 0.75}],
        "a__claude-sonnet-4-5__adhoc": [{"score": 0.75}, {"mean": 1.0}],
        "b__adhoc": [{"score": 0.0}, {"mean": 0.0}],
    }
    assert evals["a__adhoc"]["pass_at_k"] == {"1": 0.5, "2": 1.0}
    assert evals["a__adhoc"]["reward_stats"] == {"reward": {"0.5": ["rewards"], "1.0": ["single-step"]}}


def test_the_trials_are_those_of_the_sweep_with_their_rewards(jobs: Jobs) -> None:
    rewards = {each["name"]: each["reward"] for each in jobs[SWEEP]["trials"]}
    assert rewards == {"rewards": 0.5, "hosted": 1.0, "single-step": 1.0, "exceptions": 0.0, "early-stop": 0.0}
    assert (jobs[SWEEP]["attempts"], jobs[SWEEP]["task_names"]) == (2, ["t0", "t1"])


def totals(stats: dict[str, Any]) -> tuple[int, int, int, set[tuple[str, str]], set[tuple[str, float, str]]]:
    """Return the counts of a job, the trials by exception and the trials by reward, over all agents: the names of these differ."""
    evals = stats["evals"].values()
    return (
        stats["n_errored_trials"],
        sum(each["n_trials"] for each in evals),
        sum(each["n_errors"] for each in evals),
        {(type_, name) for each in evals for type_, names in each["exception_stats"].items() for name in names},
        {
            (key, float(value), name)
            for each in evals
            for key, values in each["reward_stats"].items()
            for value, names in values.items()
            for name in names
        },
    )


def test_the_counts_are_those_that_harbor_computes_from_the_trials(jobs: Jobs) -> None:
    for job in jobs.values():
        assert totals(job["job"]["stats"]) == totals(job["harbors"])


def test_excluded_trials_are_a_job_of_their_own_and_lower_no_average(jobs: Jobs) -> None:
    excluded = jobs[f"{SWEEP}.excluded"]
    assert set(jobs) == {SWEEP, f"{SWEEP}.excluded"}
    assert {each["name"]: each["error_type"] for each in excluded["trials"]} == {
        "environment": "HealthcheckError",
        "failed": "EnvironmentStartTimeoutError",
    }
    assert (excluded["summary"]["n_completed_trials"], excluded["summary"]["n_errored_trials"]) == (2, 2)
    assert excluded["summary"]["evals"] == {}


def test_the_report_as_harbor_has_the_numbers_of_harbors_viewer(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    cluster = CliCluster()
    put_sweep(cluster, tmp_path / "results", MIXED)
    viewed = in_harbor(cluster, tmp_path / "jobs", request)
    reported = json.loads(multistep(cluster, "sweep", "report", SWEEP, "--as", "harbor", "-o", "json"))
    assert reported.keys() == viewed.keys()
    for name, stats in reported.items():
        summary = viewed[name]["summary"]
        counts = ("n_completed_trials", "n_errored_trials")
        assert [stats[each] for each in counts] == [summary[each] for each in counts]
        assert totals(stats) == totals(viewed[name]["harbors"])
        for row in viewed[name]["tasks"]:  # the viewer has one row for both agents that run a command
            rows = [each for key, each in stats["evals"].items() if (row["model_name"] or "") == "__".join(key.split("__")[1:-1])]
            assert row["n_errors"] == sum(each["n_errors"] for each in rows)
            assert row["avg_reward"] == mean_reward(rows)


def mean_reward(evals: Sequence[dict[str, Any]]) -> float | None:
    """Return the mean over all rewards that count, from the means of some evaluations; None without a reward."""
    means = [(each["n_trials"], metric["mean"]) for each in evals for metric in each["metrics"] if "mean" in metric]
    return sum(count * mean for count, mean in means) / sum(count for count, _ in means) if means else None
