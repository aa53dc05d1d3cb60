"""A finished sweep in the in-memory cluster of the CLI's tests. The operator's own code wrote the trials' results."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harbor.samples import HOSTED, SAMPLES, make_results
from tests.unit.cli.fakes import CliCluster, status

SWEEP = "nightly"
UID = "11111111-2222-4333-8444-555555555555"
TIME = "2027-01-15T08:00:00Z"
MODEL = {
    "attempt": 1,
    "steps": [{"name": "scaffold", "usage": {"inputTokens": 120, "cachedTokens": 20, "outputTokens": 7, "costUSD": 0.25}}],
}
AGENTS = {"a": {"name": "command", "command": ["a"]}, "b": {"name": "command", "command": ["b"]}}
# By trial name: agent, task, attempt and status. Two trials are excluded; "hosted" is the only one with model requests.
TRIALS: Mapping[str, tuple[str, str, int, Mapping[str, Any]]] = {
    "rewards": ("a", "t0", 1, {"rewards": {"reward": 0.5}}),
    "hosted": ("a", "t1", 1, {"rewards": {"reward": 1.0}, **MODEL}),
    "single-step": ("a", "t1", 2, {"rewards": {"reward": 1.0}}),
    "exceptions": ("b", "t0", 1, {"rewards": {"reward": 0.0}}),
    "early-stop": ("b", "t1", 1, {"rewards": {"reward": 0}}),
    "failed": ("b", "t1", 2, {"failure": {"class": "Infrastructure", "reason": "EnvironmentStartTimeout"}}),
    "environment": ("b", "t0", 2, {"failure": {"class": "Task", "reason": "HealthcheckError"}}),
}


MIXED: Mapping[str, tuple[str, str, int, Mapping[str, Any]]] = {
    **TRIALS,
    "limited": ("a", "t0", 2, {"rewards": {"reward": 0.5}}),
    "no-reward": ("b", "t2", 1, {"score": 0.0, "passed": False}),
    "setup": ("b", "t2", 2, {"score": 0.0, "passed": False}),
    "single-step-timeout": ("a", "t2", 1, {"score": 0.0, "passed": False}),
}
"""More kinds of ends: an exception after which the reward is not valid, and trials that count 0 without a reward."""


def put_sweep(
    cluster: CliCluster, results: Path, trials: Mapping[str, tuple[str, str, int, Mapping[str, Any]]] = TRIALS
) -> dict[str, Path]:
    """Add the sweep, its trials and their results to a cluster. Return the directory of each trial's results, by trial name."""
    directories = make_results(results)
    ended: dict[str, Any] = {"trials": dict.fromkeys(("total", "created", "finished"), len(trials)), "completionTime": TIME}
    # Without the record of its branches, the sweep's plan is unknown, so its trials may have the names of their results.
    ended["branches"] = {"trials": 0, "missing": 0, "configMap": "none", "digest": f"sha256:{'0' * 64}"}
    tasks: list[dict[str, Any]] = [
        {"name": name, "inline": {"config": {}}} for name in ("t0", "t1", "t2")[: 2 if trials is TRIALS else 3]
    ]
    agents = [{"name": name, "agent": agent} for name, agent in AGENTS.items()]
    sweep = cluster.put(
        "TrialSweep",
        SWEEP,
        spec={"tasks": tasks, "agents": agents, "attempts": 2, "parallelism": 3},
        status=status("Complete", startTime="2027-01-15T07:59:00Z", **ended),
    )
    sweep["metadata"]["uid"] = UID
    for name in trials:
        put_trial(cluster, name, directories[name])
    return {name: directories[name] for name in trials}


def put_trial(cluster: CliCluster, name: str, directory: Path) -> None:
    """Add one trial and its results."""
    agent, task, attempt, fields = MIXED[name]
    path = f"/results/default/{name}/uid/token"
    phase = "Failed" if name == "failed" else "Complete"
    trial = cluster.put(
        "MultiStepTrial",
        name,
        spec={"task": {"inline": {"config": {}}}, "agent": HOSTED["agent"] if name == "hosted" else AGENTS[agent]},
        status=status(phase, results=f"service://multistep/multistep-operator:8080{path}")
        | {**_exceptions(name), **fields, **_score(fields)},
    )
    trial["metadata"] |= {
        "uid": f"00000000-0000-4000-8000-{sum(name.encode()):012d}",
        "labels": {"multistep.dev/sweep": SWEEP},
        "annotations": {"multistep.dev/task": task, "multistep.dev/agent": agent, "multistep.dev/attempt": str(attempt)},
        "ownerReferences": [
            {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": SWEEP, "uid": UID, "controller": True}
        ],
    }
    cluster.served[f"/api/v1/namespaces/multistep/services/multistep-operator:8080/proxy{path}"] = _tar(directory)


def _exceptions(name: str) -> dict[str, Any]:
    """Return the exceptions of a trial's results, as the operator writes them to the status."""
    (sample,) = (each for each in SAMPLES if each.name == name)
    raised = sample.journal.exception or sample.failure
    steps = [
        {"name": each.name, **({"exception": {"type": each.exception.type}} if each.exception else {})}
        for each in sample.journal.steps
    ]
    return {"attempt": 1, "steps": steps, **({"exception": {"type": raised.type}} if raised else {})}


def _score(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the score fields in the status of a trial with one step."""
    if "rewards" not in fields:
        return {}
    score = fields["rewards"]["reward"]
    return {"score": score, "passed": score >= 1, "scoreRule": {"steps": 1, "strategy": "Mean"}}


def _tar(directory: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for each in sorted(directory.iterdir()):
            if not each.name.startswith("."):  # the operator's own files
                tar.add(each, each.name)
    return out.getvalue()
