"""The verbs of the command line that change trials and sweeps: retry, stop and delete."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from multistep.kube.resources import TRIALS
from tests.e2e.given import Object, finished, in_agent
from tests.e2e.test_cli import multistep
from tests.simulated.given import HOLD, NO_IMAGE, Given, Step, trial


def sweep(name: str, solve: str = "# nothing", **spec: object) -> Object:
    """Return a sweep of one task and the oracle."""
    task = trial(Step("a", solve=solve))["spec"]["task"]
    return {
        "apiVersion": "multistep.dev/v1alpha1",
        "kind": "TrialSweep",
        "metadata": {"name": name},
        "spec": {
            "tasks": [{"name": "t", **task}],
            "agents": [{"name": "o", "agent": {"name": "oracle"}}],
            **spec,
        },
    }


async def test_a_trial_without_a_score_runs_again_and_outlives_the_first(given: Given) -> None:
    manifest = trial(Step("a"), activeDeadlineSeconds=1, environment={"image": NO_IMAGE})
    await given.ended(manifest)
    name, there = manifest["metadata"]["name"], ("-n", given.namespace)
    code, out, err = await multistep("retry", name, *there)
    assert (code, out) == (0, f"{name}-r1\n"), err
    await given.until(f"{name}-r1", finished)
    assert (await multistep("retry", f"{name}-r1", *there))[1] == f"{name}-r2\n"
    scored = trial(Step("a"))
    await given.ended(scored)
    code, _, err = await multistep("retry", scored["metadata"]["name"], *there)
    assert code == 2 and "has a score" in err


@pytest.mark.long
async def test_exactly_the_excluded_trials_of_a_sweep_run_again(given: Given, tmp_path: Path) -> None:
    """The agents hold. Two of the trials are stopped, so the sweep excludes them. A retry of each then counts instead."""
    there, selector = ("-n", given.namespace), "multistep.dev/sweep=again"
    await given.applied(sweep("again", solve="if *-o-[123]-????????-1 hold", attempts=3, parallelism=3))
    await given.sweep_until("again", lambda each: (each.get("status") or {}).get("trials", {}).get("created") == 3)
    made = await given.client.list_all(TRIALS, given.namespace, label_selector=selector)
    *stopped, other = sorted(each["metadata"]["name"] for each in made)
    for each in stopped:
        await given.client.patch(TRIALS, given.namespace, each, {"spec": {"stop": True}})
        await given.until(each, finished)
    await given.until(other, in_agent)
    await given.go(other)
    ended = await given.sweep_ended("again")
    assert ended["status"]["excluded"] == {"User": 2}
    code, out, err = await multistep("sweep", "retry", "again", "--excluded", *there)
    assert (code, sorted(out.split())) == (0, stopped), err
    code, out, err = await multistep("sweep", "status", "again", "--follow", "-o", "json", *there)
    assert code == 0, err
    trials = json.loads(out)["status"]["trials"]
    assert (trials["total"], trials["counted"], trials["retried"]) == (3, 3, 2)
    assert len(await given.client.list_all(TRIALS, given.namespace, label_selector=selector)) == 5
    report = tmp_path / "again.json"
    assert (await multistep("sweep", "report", "again", "-o", str(report), *there))[0] == 0
    document = json.loads(report.read_text())
    assert (len(document["trials"]), document["retried"]) == (3, 2)
    assert [each["counted"] for each in document["agents"]] == [3]


async def test_a_sweep_is_listed_stopped_opened_and_deleted(given: Given) -> None:
    there = ("-n", given.namespace)
    await given.applied(sweep("long", solve=HOLD, attempts=20, parallelism=1))
    assert (await multistep("sweep", "list", "-o", "name", *there))[1] == "long\n"
    code, _, err = await multistep("sweep", "stop", "long", *there)
    assert code == 0 and "long: Failed: Stopped" in err
    assert "long Failed" in (await multistep("show", "long", *there))[1]
    code, out, err = await multistep("open", "--no-browser", "long", *there)
    assert code == 0, err
    assert "Sweep long" in await asyncio.to_thread(Path(out.strip()).read_text)
    assert (await multistep("sweep", "delete", "--yes", "long", *there))[0] == 0
    assert (await multistep("sweep", "list", "-o", "name", *there))[1] == ""


async def test_results_of_a_deleted_and_remade_trial_are_not_mixed_up(given: Given, tmp_path: Path) -> None:
    name = "again"
    for value in ("first", "second"):
        await given.ended(trial(Step("a", solve=f"write /logs/artifacts/v {value}"), name=name))
        code, _, err = await multistep("results", name, str(tmp_path / value), "-n", given.namespace)
        assert code == 0, err
        assert (tmp_path / value / "steps/a/artifacts/v").read_text() == f"{value}\n"
        await given.deleted(name)
        await given.without_pods(name)
