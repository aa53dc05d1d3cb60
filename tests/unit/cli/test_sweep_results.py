"""Test `multistep sweep results`, which fetches a sweep as a Harbor job and resumes incomplete downloads, and `multistep view`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.error_policy import ErrorPolicyOverride
from multistep.store.harbor.job_files import JobStats
from tests.support.sweep_jobs import MIXED, SWEEP, TRIALS, UID, put_sweep

from .conftest import Invoke
from .fakes import CliCluster

JOB = {"config.json", "lock.json", "result.json"}
EXCLUDED = {"failed", "environment"}


@pytest.fixture
def sweep(cluster: CliCluster, tmp_path: Path) -> CliCluster:
    """Return a cluster with a finished sweep, two of whose trials are excluded."""
    put_sweep(cluster, tmp_path / "results")
    return cluster


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.client.results.fetch_sweep._PAUSE_SECONDS", 0.0)


def remove_results(cluster: CliCluster, trial: str) -> bytes:
    """Remove a trial's results from the cluster, and return their tar."""
    (path,) = [each for each in cluster.served if f"/{trial}/" in each]
    return cluster.served.pop(path)


def job(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / SWEEP / "result.json").read_text())
    return found


def test_all_finished_trials_are_fetched(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    result = invoke("sweep", "results", SWEEP, tmp_path / "jobs", "-o", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["trials"], document["fetched"], document["present"], document["failed"]) == (7, 7, 0, {})
    assert {each.name for each in (tmp_path / "jobs" / SWEEP).iterdir()} == JOB | (TRIALS.keys() - EXCLUDED)
    assert {each.name for each in (tmp_path / "jobs" / f"{SWEEP}.excluded").iterdir()} == JOB | EXCLUDED
    assert (tmp_path / "jobs" / SWEEP / "rewards/steps/scaffold/verifier/reward.json").exists()


def test_a_second_call_fetches_nothing_that_is_complete(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    assert invoke("sweep", "results", SWEEP, tmp_path).exit_code == 0
    sweep.served.clear()
    result = invoke("sweep", "results", SWEEP, tmp_path)
    assert result.exit_code == 0 and "fetched 0 trials (0 files, 0 B), 7 were there already" in result.stderr


def test_a_failed_download_is_reported_and_resumed(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    (path,) = [each for each in sweep.served if "/rewards/" in each]
    content = remove_results(sweep, "rewards")
    result = invoke("sweep", "results", SWEEP, tmp_path)
    assert result.exit_code == 4
    assert "error: rewards: no results exist at" in result.stderr and "the same command resumes" in result.stderr
    assert job(tmp_path)["stats"]["n_completed_trials"] == 4 and job(tmp_path)["n_total_trials"] == 5
    sweep.served[path] = content
    result = invoke("sweep", "results", SWEEP, tmp_path, "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["fetched"], json.loads(result.stdout)["present"]) == (0, 1, 6)
    assert job(tmp_path)["stats"]["n_completed_trials"] == 5


def test_a_truncated_download_leaves_no_trial(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    (path,) = [each for each in sweep.served if "/rewards/" in each]
    sweep.served[path] = sweep.served[path][: 512 * 9]
    assert invoke("sweep", "results", SWEEP, tmp_path).exit_code == 4
    assert not (tmp_path / SWEEP / "rewards").exists() and not (tmp_path / SWEEP / ".partial").exists()


def test_active_trials_are_counted_and_named(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    sweep.objects["MultiStepTrial", "hosted"]["status"] = {"phase": "Running"}
    result = invoke("sweep", "results", SWEEP, tmp_path)
    assert result.exit_code == 0 and "1 trial not finished: fetch again later: hosted" in result.stderr
    assert job(tmp_path)["finished_at"] is None
    assert {key: job(tmp_path)["stats"][key] for key in ("n_completed_trials", "n_running_trials", "n_pending_trials")} == {
        "n_completed_trials": 4, "n_running_trials": 1, "n_pending_trials": 0,
    }  # fmt: skip


def test_trials_of_another_owner_are_not_fetched(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    sweep.objects["MultiStepTrial", "rewards"]["metadata"]["ownerReferences"][0]["uid"] = "another"
    assert invoke("sweep", "results", SWEEP, tmp_path).exit_code == 0
    assert not (tmp_path / SWEEP / "rewards").exists()


def test_the_directory_of_something_else_is_left_alone(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    (tmp_path / SWEEP).mkdir()
    (tmp_path / SWEEP / "notes.txt").write_text("mine")
    result = invoke("sweep", "results", SWEEP, tmp_path)
    assert result.exit_code == 2 and "is not a copy of sweep 'nightly': name another directory" in result.stderr
    assert [each.name for each in (tmp_path / SWEEP).iterdir()] == ["notes.txt"]


def test_a_file_in_the_place_of_the_directory_is_reported(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    (tmp_path / SWEEP).write_text("mine")
    result = invoke("sweep", "results", SWEEP, tmp_path)
    warned, told = result.stderr.splitlines()  # put_sweep leaves out the record of the branches
    assert "7 trials count by the owner reference alone" in warned
    assert (result.exit_code, told) == (2, f"error: {tmp_path / SWEEP}: Not a directory")


def test_the_numbers_of_the_job_are_of_one_trial_for_each_number_as_in_the_report(
    invoke: Invoke, sweep: CliCluster, tmp_path: Path
) -> None:
    """spec.retries may name a trial that has a score; the retry then has results, but does not count."""
    for name, labels in (("hosted", {"number": "1"}), ("single-step", {"number": "9", "retry-of": "1"})):
        found = sweep.objects["MultiStepTrial", name]["metadata"]["labels"]
        found |= {f"multistep.dev/{key}": value for key, value in labels.items()}
    assert invoke("sweep", "results", SWEEP, tmp_path).exit_code == 0
    evals = job(tmp_path)["stats"]["evals"]
    assert [list(each["pass_at_k"]) for key, each in evals.items() if key.startswith("a__")] == [["1"], ["1"]]


def test_the_trials_of_fetched_jobs_are_verified(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    assert invoke("sweep", "results", SWEEP, tmp_path / "jobs").exit_code == 0
    result = invoke("verify", tmp_path / "jobs", "-o", "json")
    assert (result.exit_code, len(json.loads(result.stdout)["trials"])) == (0, 7), result.output
    changed = tmp_path / "jobs" / SWEEP / "rewards"
    for name in ("evidence.json", "trial.log"):
        (changed / name).unlink()
    result = invoke("verify", tmp_path / "jobs" / SWEEP)
    assert (result.exit_code, "rewards/evidence.json is missing" in result.stdout) == (1, True), result.output


def test_the_results_of_an_earlier_sweep_of_the_same_name_do_not_mix(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    assert invoke("sweep", "results", SWEEP, tmp_path).exit_code == 0
    sweep.objects["TrialSweep", SWEEP]["metadata"]["uid"] = UID.replace("1", "9")
    assert invoke("sweep", "results", SWEEP, tmp_path).exit_code == 2


def fake_harbor(directory: Path, version: str = "0.26.0") -> None:
    """Put a program `harbor` on the PATH of `invoke`. It writes its arguments to the file "called" in the directory, or prints its
    version."""
    (directory / "bin").mkdir()
    script = f'#!/bin/sh\nif [ "$1" = --version ]; then echo {version}; else echo "$@" > {directory}/called; fi\n'
    (directory / "bin/harbor").write_text(script)
    (directory / "bin/harbor").chmod(0o755)


def test_view_fetches_a_sweep_and_opens_the_viewer(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    fake_harbor(tmp_path)
    assert invoke("view", SWEEP, "--jobs", tmp_path / "jobs", "--port", "9000").exit_code == 0
    assert (tmp_path / "called").read_text() == f"view {tmp_path}/jobs --jobs --port 9000\n"
    assert job(tmp_path / "jobs")["stats"]["n_completed_trials"] == 5


def test_view_takes_a_jobs_directory_or_a_job_in_it(invoke: Invoke, sweep: CliCluster, tmp_path: Path) -> None:
    fake_harbor(tmp_path)
    invoke("sweep", "results", SWEEP, tmp_path / "jobs")
    for named in (tmp_path / "jobs", tmp_path / "jobs" / SWEEP):
        assert invoke("view", named).exit_code == 0
        assert (tmp_path / "called").read_text() == f"view {tmp_path}/jobs --jobs --port 8080-8089\n"
    result = invoke("view", tmp_path / "jobs" / SWEEP / "rewards")
    assert result.exit_code == 2 and "has no jobs: name a directory that `multistep sweep results" in result.stderr


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.26.0", "the viewer of Harbor 0.26.0: its averages leave out trials whose reward is not valid"),
        ("1.0.1.dev2", "the viewer of Harbor 1.0.1.dev2: its averages leave out trials whose reward is not valid"),
        ("0.25.0", "the viewer of Harbor 0.25.0: its averages count a trial without a reward as 0"),
        ("no", "of an unknown version; from Harbor 0.26 on its averages leave out"),
    ],
)
def test_view_says_what_the_numbers_of_its_viewer_mean(
    invoke: Invoke, sweep: CliCluster, tmp_path: Path, version: str, told: str
) -> None:
    fake_harbor(tmp_path, version)
    invoke("sweep", "results", SWEEP, tmp_path / "jobs")
    result = invoke("view", tmp_path / "jobs")
    assert (result.exit_code, told in result.stderr) == (0, True), result.stderr


def test_the_statistics_of_the_job_count_valid_rewards_and_exceptions_of_steps(
    invoke: Invoke, sweep: CliCluster, tmp_path: Path
) -> None:
    """As in Harbor 0.26: the step's timeout is an error whose reward is valid; a rate limit is one whose reward is not."""
    assert invoke("sweep", "results", SWEEP, tmp_path).exit_code == 0
    stats = job(tmp_path)["stats"]
    assert (stats["n_errored_trials"], stats["evals"]["b__adhoc"]["exception_stats"]) == (1, {"AgentTimeoutError": ["exceptions"]})
    assert (stats["evals"]["b__adhoc"]["n_trials"], stats["evals"]["b__adhoc"]["n_errors"]) == (2, 1)
    limited = {"exception_info": None, "step_results": [{"exception_info": {"exception_type": "ApiRateLimitError"}}]}
    facts = {"agent_info": {"name": "x"}, "trial_name": "t", "verifier_result": {"rewards": {"reward": 1.0}}, **limited}
    found = {}
    for name, overrides in (("as is", {}), ("overridden", {"ApiRateLimitError": ErrorPolicyOverride(valid=True)})):
        counted = JobStats(overrides)
        counted.add("x", facts, None, 0)
        only = counted.json({}, 1, 0)["evals"]["x__adhoc"]
        found[name] = (only["n_trials"], only["n_errors"], only["metrics"], only["reward_stats"])
    assert found == {"as is": (0, 1, [], {}), "overridden": (1, 1, [{"mean": 1.0}], {"reward": {"1.0": ["t"]}})}


def test_the_report_as_harbor_has_the_statistics_of_the_fetched_jobs(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    put_sweep(cluster, tmp_path / "results", MIXED)
    cluster.objects["MultiStepTrial", "early-stop"]["status"] = {"phase": "Running"}
    assert invoke("sweep", "results", SWEEP, tmp_path / "jobs").exit_code == 0
    reported = json.loads(invoke("sweep", "report", SWEEP, "--as", "harbor", "-o", "json").stdout)
    jobs = {each.name: json.loads((each / "result.json").read_text())["stats"] for each in (tmp_path / "jobs").iterdir()}
    assert json.loads(json.dumps(reported)) == jobs


def test_the_report_as_harbor_is_a_table_of_each_job(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    put_sweep(cluster, tmp_path / "results", MIXED)
    result = invoke("sweep", "report", SWEEP, "--as", "harbor")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert (result.exit_code, lines) == (
        0,
        [
            "job nightly: 9 completed trials, 5 errored",
            "EVAL TRIALS ERRORS MEAN SCORE PASS@1 PASS@2 EXCEPTIONS",
            "a__adhoc 2 2 0.750 0.500 0.333 0.500 1 AgentTimeoutError, 1 ApiRateLimitError",
            "a__claude-sonnet-4-5__adhoc 1 0 1.000 0.500 0.333 0.500 -",
            "b__adhoc 2 3 0.000 0.000 0.000 0.000 1 AgentTimeoutError, 1 RewardFileNotFoundError, 1 RuntimeError",
            "job nightly.excluded: 2 completed trials, 2 errored",
            "EVAL TRIALS ERRORS MEAN SCORE EXCEPTIONS",
            "b__adhoc 0 2 - - 1 EnvironmentStartTimeoutError, 1 HealthcheckError",
        ],
    )
    refused = invoke("sweep", "report", SWEEP, "--as", "harbor", "-o", "x.csv")
    assert (refused.exit_code, "-o x.csv: with --as harbor it must be table or json" in refused.stderr) == (2, True)


def test_view_without_harbor_names_the_fix(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("view", tmp_path)
    assert result.exit_code == 2 and "pip install 'multistep[view]'" in result.stderr
