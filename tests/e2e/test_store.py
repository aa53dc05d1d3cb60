"""Test results in an object store: a real S3 server beside the cluster, which the deployed operator is configured to use."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.given import WAITS, Given, Object, Step, condition, finished, in_agent, trial
from tests.e2e.operators import off_volume, on_volume, with_variables
from tests.e2e.test_cli import multistep
from tests.support import servers
from tests.support.waiting import eventually

pytestmark = pytest.mark.alone

MIB = 1024 * 1024
LARGE_BYTES = 256 * MIB  # size of the large artifact; `make bench` measures with 2 GiB
RETENTION = {"MULTISTEP_ORPHANS_SECONDS": "1", "MULTISTEP_ORPHANS_GRACE_SECONDS": "1", "MULTISTEP_RESULTS_RETENTION_SECONDS": "1"}
AWKWARD = r"""#!/bin/bash
cd /logs/artifacts
head -c 3000000 /dev/urandom > binary
: > empty
mkdir -p nothing deep/er
printf 'grüße' > 'größe 大.txt'
printf x > $'not-\xff-utf-8'
printf x > $'line\nbreak'
ln -s ../binary deep/link
chmod 755 binary
"""
SOLVE_LARGE = f"""#!/bin/bash
cd /logs/artifacts
head -c {16 * MIB} /dev/urandom > /tmp/piece
for _ in $(seq {LARGE_BYTES // (16 * MIB)}); do cat /tmp/piece; done > large
sha256sum large > sum
"""


@dataclass(frozen=True)
class Store:
    """The S3 server that the operator is configured to use."""

    server: servers.S3

    def of(self, found: Object) -> Path:
        """Return the directory in which the S3 server stores the trial's objects."""
        metadata: dict[str, str] = found["metadata"]
        return self.server.directory / "bucket/e2e" / metadata["namespace"] / metadata["name"] / metadata["uid"]

    def objects(self, found: Object) -> set[str]:
        """Return the names of a trial's objects, relative to the trial's directory."""
        top = self.of(found)
        walk = os.walk(top)  # os.walk tolerates directories that are deleted meanwhile
        return {str((Path(directory) / name).relative_to(top)) for directory, _, names in walk for name in names}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[servers.S3]:
    async with servers.s3(servers.node()) as found:
        yield found


@pytest.fixture(scope="module")
def store(server: servers.S3) -> Iterator[Store]:
    variables = {"MULTISTEP_RESULTS_STORE": "s3://bucket/e2e", **RETENTION, **server.environment}
    with with_variables(variables):
        yield Store(server)


def not_writable(found: Object) -> bool:
    return bool(condition(found, "Reconciling")["reason"] == "ResultsNotWritable")


def assert_same_artifacts(artifacts: Path, stored: Path) -> None:
    """Assert that the artifacts that AWKWARD wrote are the same in the fetched directory and in the object store."""
    assert (artifacts / "binary").read_bytes() == (stored / "binary").read_bytes()
    assert (artifacts / "binary").stat().st_size == 3_000_000 and os.access(artifacts / "binary", os.X_OK)
    assert (artifacts / "empty").read_bytes() == b"" and (artifacts / "nothing").is_dir()
    assert (artifacts / "größe 大.txt").read_text() == "grüße"
    assert (artifacts / os.fsdecode(b"not-\xff-utf-8")).read_text() == (artifacts / "line\nbreak").read_text() == "x"
    assert str((artifacts / "deep/link").readlink()) == "../binary"


async def test_results_go_to_s3_and_come_back_byte_for_byte_also_when_the_store_was_away(
    given: Given, store: Store, tmp_path: Path
) -> None:
    bucket = store.server.directory / "bucket"
    name = "awkward"
    await given.applied(trial(Step("a", solve=f"{AWKWARD}echo said\n{WAITS}"), name=name))
    await given.until(name, in_agent)
    bucket.rename(bucket.with_name("away"))
    bucket.write_text("no bucket")
    await given.go(name)
    waiting = await given.until(name, not_writable)
    assert "s3://bucket/e2e" in condition(waiting, "Reconciling")["message"]
    bucket.unlink()
    bucket.with_name("away").rename(bucket)
    done = await given.until(name, finished)

    assert condition(done, "Complete")["status"] == "True"
    objects = store.objects(done)
    assert {
        "manifest.jsonl",
        "files/result.json",
        "files/steps/a/artifacts/binary",
        "files/steps/a/artifacts/größe 大.txt",
    } <= objects
    assert done["status"]["resultsStore"] == f"s3://bucket/e2e/{given.namespace}/{name}/{done['metadata']['uid']}"
    await off_volume(done)
    code, out, err = await multistep("logs", name, "-n", given.namespace, "--step", "1", "--phase", "agent")
    assert (code, out) == (0, "said\n"), err
    code, _, err = await multistep("results", name, str(tmp_path / "out"), "-n", given.namespace)
    assert code == 0, err
    assert_same_artifacts(tmp_path / "out/steps/a/artifacts", store.of(done) / "files/steps/a/artifacts")

    await given.deleted(name)

    async def nothing_left() -> bool:
        return not store.objects(done)

    await eventually(nothing_left)


@pytest.mark.long
async def test_trials_whose_results_are_in_the_store_are_regraded_and_started_from(given: Given, store: Store) -> None:
    """The operator moves the results to the object store, but keeps the checkpoints on the volume until the results are deleted."""
    test = "#!/bin/sh\nwc -l < /srv/lines > /logs/verifier/reward.txt\n"
    steps = [Step(name, solve="#!/bin/sh\necho line >> /srv/lines\n", test=test) for name in ("a", "b")]
    made = await given.ended(trial(*steps, checkpoints={"policy": "AfterStep", "keep": "WithResults"}))
    assert "resultsStore" in made["status"] and await on_volume(made)
    name = made["metadata"]["name"]
    start: dict[str, Any] = {"from": {"trial": name, "step": "a"}}
    again, branch = await asyncio.gather(
        given.ended(trial(*steps, regrade={"trial": name}, agent={"name": "nop"})), given.ended(trial(*steps, **start))
    )
    assert [step["rewards"] for step in made["status"]["steps"]] == [{"reward": 1}, {"reward": 2}]
    for found in (again, branch):
        assert [step["rewards"] for step in found["status"]["steps"]] == [{"reward": 1}, {"reward": 2}], found["status"]
        assert "resultsStore" in found["status"]
    await off_volume(again, branch)
    assert again["status"]["regraded"]["steps"][0]["tests"], "the evidence of the source was read from the store"
    await given.deleted(name)

    async def nothing_left() -> bool:
        return not store.objects(made) and not await on_volume(made)

    await eventually(nothing_left)


async def test_a_large_artifact_goes_straight_to_the_store(given: Given, store: Store) -> None:
    """This test checks the content; `make bench SECTIONS=store` measures the operator's memory."""
    found = await given.ended(trial(Step("a", solve=SOLVE_LARGE), name="large"))

    sent = [each for each in store.objects(found) if each.startswith("sent/")]
    assert len(sent) == 1 and found["status"]["steps"][0]["artifacts"]["bytes"] > LARGE_BYTES, (
        found["status"],
        store.objects(found),
    )
    large = store.of(found) / sent[0]
    reported = [json.loads(line) for line in (store.of(found) / "manifest.jsonl").read_text().splitlines()]
    [line] = [each for each in reported if each.get("path") == "steps/a/artifacts/large"]
    wanted = (store.of(found) / "files/steps/a/artifacts/sum").read_text().split()[0]
    assert (line["size"], line["sha256"], line["object"]) == (LARGE_BYTES, wanted, sent[0])
    assert await asyncio.to_thread(digest_of, large) == wanted
    assert "signature" not in (store.of(found) / "files/trial.log").read_text().lower()


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
