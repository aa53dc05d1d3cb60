"""The operator signs the evidence of results. Fetched results verify offline with its public key, also from an object store."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.given import Object
from tests.e2e.test_cli import multistep
from tests.simulated.given import Given, OwnOperators, Step, trial
from tests.support import servers
from tests.support.signing_keys import write_keys

SOLVE = "write /logs/artifacts/work done"
EVIDENCE = ("evidence.json", "evidence.dsse.json", "evidence.files.jsonl")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Return the files of a private key for the operator, and of its public key."""
    return write_keys(tmp_path)


async def results_of(given: Given, name: str, to: Path) -> Object:
    """Run a trial of two steps and fetch its results."""
    found = await given.ended(trial(Step("a", solve=SOLVE), Step("b", solve=SOLVE), name=name))
    code, _, err = await multistep("results", name, str(to), "-n", given.namespace)
    assert code == 0, err
    return found


async def test_fetched_results_verify_and_every_forgery_is_named(
    own: OwnOperators, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    given, (private, key) = own.given, keys
    operator = await own.started(results_signing_key_file=str(private))
    mine, other = tmp_path / "out/mine", tmp_path / "out/other"
    found = await results_of(given, "mine", mine)
    await results_of(given, "other", other)
    code, out, err = await multistep("verify", str(tmp_path / "out"), "--key", str(key))
    assert code == 0, out + err
    async with aiohttp.ClientSession() as session, session.get(f"{operator.results_url}/signing-key.pem") as response:
        assert await response.text() == await asyncio.to_thread(key.read_text)

    said = json.loads((mine / "evidence.json").read_text())["predicate"]
    assert said["trial"]["uid"] == found["metadata"]["uid"] and said["rewards"] == {"reward": 1.0}
    assert said["environment"]["imageID"] == found["status"]["imageID"] and "sha256:" in said["environment"]["imageID"]
    assert said["runner"]["imageID"] == found["status"]["runnerImageID"] and "sha256:" in said["runner"]["imageID"]
    assert [len(each["tests"][0]["digest"]["sha256"]) for each in said["steps"]] == [64, 64]

    work = mine / "steps/a/artifacts/work"
    work.write_text("d0ne\n")
    code, out, _ = await multistep("verify", str(mine))
    assert code == 1 and "differs: steps/a/artifacts/work was changed" in out
    work.write_text("done\n")
    (mine / "result.json").write_text((mine / "result.json").read_text().replace('"reward": 1.0', '"reward": 2.0', 1))
    code, out, _ = await multistep("verify", str(mine))
    assert code == 1 and "result.json was changed" in out

    for name in EVIDENCE:
        shutil.copy(other / name, mine / name)
    code, out, _ = await multistep("verify", str(mine), "--key", str(key))
    assert code == 1 and "result.json the trial's UID is" in out
    _, strange = write_keys(tmp_path / "out")
    code, out, _ = await multistep("verify", str(other), "--key", str(strange))
    assert code == 1 and "evidence.dsse.json is not signed by the key" in out


@pytest.mark.long
async def test_objects_in_a_store_verify(
    own: OwnOperators, keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, key = keys
    async with servers.s3() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        await own.started(results_signing_key_file=str(private), results_store="s3://bucket/e2e")
        found = await results_of(own.given, "stored", tmp_path / "fetched")
        metadata = found["metadata"]
        place = s3.directory / "bucket/e2e" / metadata["namespace"] / metadata["name"] / metadata["uid"]
        objects = await asyncio.to_thread(shutil.copytree, place, tmp_path / "objects")
    for directory in (tmp_path / "fetched", objects):
        code, out, err = await multistep("verify", str(directory), "--key", str(key))
        assert code == 0, out + err
    (objects / "files/steps/b/artifacts/work").write_text("d0ne\n")
    code, out, _ = await multistep("verify", str(objects))
    assert code == 1 and "differs: steps/b/artifacts/work was changed" in out
