"""Test that pods send large files to an object store: a real S3 server beside the cluster, which an operator of the test uses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.given import Given, Object, Step, in_shard, trial
from tests.e2e.test_cli import multistep
from tests.support import servers
from tests.support.simulation.operator import Operator, Shard

MIB = 1024 * 1024
LARGE_BYTES = 256 * MIB  # size of the large artifact; `make bench` measures with 2 GiB
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
SOLVE_LARGE = f"""
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


@pytest.fixture
async def store(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """Run an S3 server, and an operator that stores results there."""
    async with servers.s3(servers.node()) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        async with Operator(shard, settings={"RESULTS_STORE": "s3://bucket/e2e"}):
            yield Store(server)


def assert_same_artifacts(artifacts: Path, stored: Path) -> None:
    """Assert that the artifacts that AWKWARD wrote are the same in the fetched directory and in the object store."""
    assert (artifacts / "binary").read_bytes() == (stored / "binary").read_bytes()
    assert (artifacts / "binary").stat().st_size == 3_000_000 and os.access(artifacts / "binary", os.X_OK)
    assert (artifacts / "empty").read_bytes() == b"" and (artifacts / "nothing").is_dir()
    assert (artifacts / "größe 大.txt").read_text() == "grüße"
    assert (artifacts / os.fsdecode(b"not-\xff-utf-8")).read_text() == (artifacts / "line\nbreak").read_text() == "x"
    assert str((artifacts / "deep/link").readlink()) == "../binary"


async def test_files_come_back_byte_for_byte_and_a_large_one_goes_straight_to_the_store(
    given: Given, store: Store, shard: Shard, tmp_path: Path
) -> None:
    """This test checks the content; `make bench SECTIONS=store` measures the operator's memory."""
    manifest = trial(Step("a", solve=f"{AWKWARD}{SOLVE_LARGE}"), name="large")
    found = await given.ended(in_shard(shard.name, manifest))

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
    code, _, err = await multistep("results", "large", str(tmp_path / "out"), "-n", given.namespace)
    assert code == 0, err
    assert_same_artifacts(tmp_path / "out/steps/a/artifacts", store.of(found) / "files/steps/a/artifacts")
    assert "signature" not in (store.of(found) / "files/trial.log").read_text().lower()


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
