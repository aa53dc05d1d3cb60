"""Test results in an object store: a real S3 server, which the test's operator is configured to use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.given import Object, condition, finished, in_agent
from tests.e2e.test_cli import multistep
from tests.simulated.given import HOLD, OwnOperators, Step, trial
from tests.support import servers
from tests.support.waiting import eventually

STORE = "s3://bucket/e2e"
RETENTION = {"orphans_seconds": "1", "orphans_grace_seconds": "1", "results_retention_seconds": "1"}


@dataclass(frozen=True)
class Store:
    """The S3 server that the operator is configured to use."""

    server: servers.S3

    def objects(self, found: Object) -> set[str]:
        """Return the names of a trial's objects, relative to the trial's directory."""
        metadata: dict[str, str] = found["metadata"]
        top = self.server.directory / "bucket/e2e" / metadata["namespace"] / metadata["name"] / metadata["uid"]
        walk = os.walk(top)  # os.walk tolerates directories that are deleted meanwhile
        return {str((Path(directory) / name).relative_to(top)) for directory, _, names in walk for name in names}


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """Run an S3 server, and set the variables by which the operator finds it."""
    async with servers.s3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield Store(server)


def not_writable(found: Object) -> bool:
    return bool(condition(found, "Reconciling")["reason"] == "ResultsNotWritable")


async def test_results_go_to_s3_and_come_back_also_when_the_store_was_away(own: OwnOperators, store: Store, tmp_path: Path) -> None:
    given, operator = own.given, await own.started(results_store=STORE, **RETENTION)
    bucket = store.server.directory / "bucket"
    name = "awkward"
    await given.applied(trial(Step("a", solve=f"print said\nwrite /logs/artifacts/größe grüße\n{HOLD}"), name=name))
    await given.until(name, in_agent)
    bucket.rename(bucket.with_name("away"))
    bucket.write_text("no bucket")
    await given.go(name)
    waiting = await given.until(name, not_writable)
    assert STORE in condition(waiting, "Reconciling")["message"]
    bucket.unlink()
    bucket.with_name("away").rename(bucket)
    done = await given.until(name, finished)

    assert condition(done, "Complete")["status"] == "True"
    assert {"manifest.jsonl", "files/result.json", "files/steps/a/artifacts/größe"} <= store.objects(done)
    assert done["status"]["resultsStore"] == f"{STORE}/{given.namespace}/{name}/{done['metadata']['uid']}"
    await eventually(partial(operator.has_no_results, done))
    code, out, err = await multistep("logs", name, "-n", given.namespace, "--step", "1", "--phase", "agent")
    assert (code, out) == (0, "said\n"), err
    code, _, err = await multistep("results", name, str(tmp_path / "out"), "-n", given.namespace)
    assert code == 0, err
    assert (tmp_path / "out/steps/a/artifacts/größe").read_text() == "grüße\n"

    await given.deleted(name)

    async def nothing_left() -> bool:
        return not store.objects(done)

    await eventually(nothing_left)


@pytest.mark.long
async def test_trials_whose_results_are_in_the_store_are_regraded_and_started_from(own: OwnOperators, store: Store) -> None:
    """The operator moves the results to the object store, but keeps the checkpoints on the volume until the results are deleted."""
    given, operator = own.given, await own.started(results_store=STORE, **RETENTION)
    steps = [Step(name, solve="append /srv/lines line", test="reward-lines /srv/lines") for name in ("a", "b")]
    made = await given.ended(trial(*steps, checkpoints={"policy": "AfterStep", "keep": "WithResults"}))
    assert "resultsStore" in made["status"] and not await operator.has_no_results(made)
    name = made["metadata"]["name"]
    start: dict[str, Any] = {"from": {"trial": name, "step": "a"}}
    again, branch = await asyncio.gather(
        given.ended(trial(*steps, regrade={"trial": name}, agent={"name": "nop"})), given.ended(trial(*steps, **start))
    )
    assert [step["rewards"] for step in made["status"]["steps"]] == [{"reward": 1}, {"reward": 2}]
    for found in (again, branch):
        assert [step["rewards"] for step in found["status"]["steps"]] == [{"reward": 1}, {"reward": 2}], found["status"]
        assert "resultsStore" in found["status"]
    for found in (again, branch):
        await eventually(partial(operator.has_no_results, found))
    assert again["status"]["regraded"]["steps"][0]["tests"], "the evidence of the source was read from the store"
    await given.deleted(name)

    async def nothing_left() -> bool:
        return not store.objects(made) and await operator.has_no_results(made)

    await eventually(nothing_left)
