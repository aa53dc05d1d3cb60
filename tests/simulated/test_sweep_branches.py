"""Branches of a sweep: each step runs from the state that the agent left, and from the reference state."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from multistep.kube.resources import SWEEPS, TRIALS
from tests.e2e.given import Object
from tests.e2e.test_cli import multistep
from tests.simulated.given import Given, Step, trial

NAME = "branched"
# Each step's work adds a line to /app/runs, so the verifier notices if another trial worked on the same files, or if earlier work
# is missing. The step "draft" accepts the agent's draft, but the step "build" cannot use it, and the step "end" does not need it.
WORK = "append /app/runs ran\nwhen /app/runs 1 write /app/draft {draft}"
TESTS = {
    "draft": "when /app/runs 1 reward 1",
    "build": "when /app/runs 2 reward-if /app/draft careful",
    "end": "when /app/runs 3 reward 1",
}


def sweep(attempts: int, k: int) -> Object:
    steps = [Step(name, solve=WORK.format(draft="careful"), test=test) for name, test in TESTS.items()]
    agent = {"name": "command", "command": [WORK.format(draft="sloppy")]}
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": NAME},
        "spec": {
            "tasks": [{"name": "chain", "inline": trial(*steps)["spec"]["task"]["inline"]}],
            "agents": [{"name": "sloppy", "agent": agent}],
            "attempts": attempts,
            "parallelism": 6,
            "branch": {"attempts": k},
        },
    }


@pytest.mark.parametrize(
    ("attempts", "k"), [(2, 2), pytest.param(3, 8, marks=pytest.mark.long)], ids=["2 from each state", "8 from each state"]
)
async def test_each_step_is_tried_from_the_agents_own_state_and_from_the_reference_state(
    attempts: int, k: int, given: Given, tmp_path: Path
) -> None:
    await given.applied(sweep(attempts, k))
    found = await given.sweep_ended(NAME)
    status = found["status"]
    assert status["phase"] == "Complete", status["conditions"]
    assert (status["trials"]["total"], status["branches"]["trials"]) == (attempts + 5 * k, 5 * k)
    assert status["agents"] == [
        {"name": "sloppy", "counted": attempts, "finished": attempts, "passed": 0, "mean": pytest.approx(2 / 3, abs=1e-4)}
    ]
    assert status["trials"]["counted"] == attempts + 5 * k

    trials = await given.client.list_all(TRIALS, given.namespace, label_selector=f"multistep.dev/sweep={NAME}")
    branches = [each for each in trials if "multistep.dev/branch" in each["metadata"]["labels"]]
    expected = {
        ("draft", "Start"): 1.0,
        ("build", "Own"): 0.0,
        ("build", "Reference"): 1.0,
        ("end", "Own"): 1.0,
        ("end", "Reference"): 1.0,
    }
    rewards = Counter((*what(each), each["status"]["steps"][-1]["rewards"]["reward"]) for each in branches)
    assert rewards == {(*which, reward): k for which, reward in expected.items()}
    assert all(each["status"]["steps"][-1]["name"] == what(each)[0] for each in branches), "each ends with its step"
    assert len({each["status"]["results"] for each in trials}) == attempts + 5 * k
    assert_spread(branches, attempts, k)
    await assert_one_report(given, tmp_path, attempts, k)


def what(branch: Object) -> tuple[str, str]:
    """Return the step of a branch and the kind of state from which it starts."""
    metadata = branch["metadata"]
    return metadata["annotations"]["multistep.dev/step"], metadata["labels"]["multistep.dev/branch"]


def assert_spread(branches: list[Object], attempts: int, k: int) -> None:
    """Check that the branches that start from the agent's own states are spread evenly over the ordinary trials."""
    for name in ("build", "end"):
        sources = Counter(each["spec"]["from"]["trial"] for each in branches if what(each) == (name, "Own"))
        assert len(sources) == min(attempts, k) and max(sources.values()) - min(sources.values()) <= 1, sources


async def assert_one_report(given: Given, tmp_path: Path, attempts: int, k: int) -> None:
    files = [tmp_path / f"report.{form}" for form in ("json", "csv", "html")]
    outputs = [word for file in files for word in ("-o", str(file))]
    code, out, err = await multistep("sweep", "report", NAME, "-n", given.namespace, "-o", "table", *outputs)
    assert code == 0, err
    report = json.loads(files[0].read_text())
    assert report["agents"][0]["trials"] == attempts
    draft, build, end = report["branches"]["steps"]
    assert (draft["start"]["passes"]["1"], draft["own"], draft["difference"]) == (1.0, None, None)
    assert (build["own"]["passes"]["1"], build["reference"]["passes"][str(k)]) == (0.0, 1.0)
    difference = build["difference"]
    assert difference["value"] == -1.0 and -1.0 <= difference["low"] < difference["high"] < 1.0
    assert end["difference"]["value"] == 0.0 and end["difference"]["low"] < 0.0 < end["difference"]["high"]
    assert (build["reached"], build["ordinary"], build["own"]["sources"]) == (attempts, attempts, min(attempts, k))
    lines = list(csv.DictReader(files[1].read_text().splitlines()))
    assert Counter(each["branch"] for each in lines) == {"": attempts, "Start": k, "Own": 2 * k, "Reference": 2 * k}
    assert '<section id="branches"' in files[2].read_text()
    assert "OWN - REFERENCE" in out and "-1.000" in out
