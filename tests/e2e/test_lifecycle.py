"""Test a trial as a Kubernetes user sees it, with kubectl."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.e2e.given import DEADLINE_SECONDS, Given

EXAMPLE = Path(__file__).parents[2] / "examples" / "inline-trial.yaml"


async def kubectl(given: Given, *arguments: str) -> str:
    """Run kubectl, assert that it succeeds, and return its output."""
    process = await asyncio.create_subprocess_exec(
        "kubectl", "-n", given.namespace, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_kubectl_applies_waits_lists_and_describes_the_example(given: Given) -> None:
    await kubectl(given, "apply", "-f", str(EXAMPLE))
    await kubectl(given, "wait", "--for=condition=Complete", "mst/hello-inline", f"--timeout={DEADLINE_SECONDS:.0f}s")
    await given.reported("hello-inline", "TrialComplete")
    header, row = (await kubectl(given, "get", "mst")).splitlines()
    assert header.split() == ["NAME", "TASK", "AGENT", "PHASE", "STEP", "OUTCOME", "SCORE", "REWARD", "FAILURE", "AGE"]
    assert row.split()[:4] == ["hello-inline", "hello-inline", "oracle", "Complete"]
    assert row.split()[4:7] == ["Passed", "1", "1"]
    described = await kubectl(given, "describe", "mst", "hello-inline")
    for reason in ("PodCreated", "StepStarted", "StepCompleted", "TrialComplete"):
        assert reason in described
    assert "unchanged" in await kubectl(given, "apply", "-f", str(EXAMPLE))
