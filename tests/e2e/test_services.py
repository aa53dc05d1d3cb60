"""Tasks with services: compose files as sidecars of the trial's pod, in a namespace under Pod Security baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.given import IMAGE, Given, Object, Step, tree, trial
from tests.e2e.test_cli import multistep

TASKS = Path(__file__).parent / "compose_tasks"
FILE = "environment/docker-compose.yaml"


@pytest.fixture
async def baseline(given: Given) -> Given:
    labels = {f"pod-security.kubernetes.io/{mode}": "baseline" for mode in ("enforce", "warn")}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": given.namespace, "labels": labels}}
    await given.client.apply(manifest, field_manager="e2e")
    return given


def composed(compose: str, *steps: Step, files: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a trial of an inline task with a compose file."""
    made = trial(*(steps or (Step("a"),)), config={"environment": {"docker_image": IMAGE}}, **spec)
    made["spec"]["task"]["inline"]["files"] |= {FILE: compose, **(files or {})}
    return made


@pytest.mark.parametrize("task", sorted(each.name for each in TASKS.iterdir()))
async def test_the_oracle_solves_a_task_with_services(baseline: Given, task: str, tmp_path: Path) -> None:
    arguments = ("--agent", "oracle", "-n", baseline.namespace, "--results", str(tmp_path / "out"))
    code, out, err = await multistep("run", str(TASKS / task), *arguments)
    files = tree(tmp_path / "out")
    assert code == 0 and b'"reward": 1' in files["result.json"], (out, err, files.get("verifier/test-stdout.txt"))
