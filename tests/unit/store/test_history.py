"""The history's files: each trial has one line, wherever the operator dies, and whichever trial is deleted."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from obstore.store import MemoryStore

from multistep.errors import StoreError
from multistep.store import results_server
from multistep.store.bucket.object_store import Bucket
from multistep.store.files.trial_key import TrialKey
from multistep.store.history import History, Place
from multistep.store.results_volume import ResultsVolume

DAY = date(2026, 11, 30)
LATER = time.time() + 3600
NAME = "date=2026-11-30/sweep-uid-0.jsonl.gz"
Client = TestClient[web.Request, web.Application]


@pytest.fixture(params=["volume", "bucket"])
def history(request: pytest.FixtureRequest, volume: ResultsVolume) -> History:
    return History(volume, Bucket(MemoryStore(), "memory://bucket") if request.param == "bucket" else None)


async def add(history: History, uid: str, score: float = 1.0, day: date = DAY, namespace: str = "default") -> None:
    place = Place(TrialKey(namespace, "trial", uid), day, "sweep-uid-0")
    await history.add(place, json.dumps({"uid": uid, "score": score}).encode() + b"\n")


async def pack(history: History, before: float = LATER) -> int:
    return sum([await history.pack(group, before) for group in await history.groups()])


async def rows(history: History, name: str = NAME) -> list[dict[str, object]]:
    packed = await history.read("default", name)
    return [json.loads(line) for line in gzip.decompress(packed or gzip.compress(b"")).splitlines()]


async def test_lines_are_open_until_they_are_packed(history: History) -> None:
    await add(history, "a")
    await add(history, "b", namespace="other")
    assert json.loads(await history.open_lines("default")) == {"uid": "a", "score": 1.0}
    assert await pack(history) == 2
    assert await history.open_lines("default") == b""
    assert [each.name for each in await history.packs("default")] == [NAME]
    assert await rows(history) == [{"uid": "a", "score": 1.0}]
    assert await history.namespaces() == ["default", "other"]


async def test_lines_join_the_pack_of_their_sweep_and_change_its_version(history: History) -> None:
    await add(history, "b")
    await pack(history)
    (former,) = await history.packs("default")
    await add(history, "a")
    await pack(history)
    (now,) = await history.packs("default")
    assert [row["uid"] for row in await rows(history)] == ["a", "b"]
    assert now.version != former.version


async def test_a_line_that_is_written_again_replaces_the_packed_one(history: History) -> None:
    await add(history, "a", score=0.0)
    await pack(history)
    await add(history, "a", score=1.0)
    await pack(history)
    assert await rows(history) == [{"uid": "a", "score": 1.0}]


async def test_a_crash_between_the_pack_and_the_deletion_of_lines_doubles_nothing(history: History, volume: ResultsVolume) -> None:
    await add(history, "a")
    (group,) = await history.groups()
    line = next(group.iterdir())
    saved = line.read_bytes()
    await pack(history)
    group.mkdir()
    line.write_bytes(saved)
    assert await pack(history) == 1
    assert await rows(history) == [{"uid": "a", "score": 1.0}]
    assert await history.groups() == []


async def test_a_line_that_changes_while_it_is_packed_stays_open(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(history, "a", score=0.0)
    packs = history._packs
    write = packs.write

    async def change_and_write(path: str, data: bytes, former: str | None) -> None:
        await add(history, "a", score=1.0)
        await write(path, data, former)

    monkeypatch.setattr(packs, "write", change_and_write)
    await pack(history)
    assert json.loads(await history.open_lines("default"))["score"] == 1.0


async def test_young_lines_stay_open(history: History) -> None:
    await add(history, "a")
    assert await pack(history, before=time.time() - 60) == 0
    assert await history.packs("default") == []


async def test_packs_before_a_day_are_deleted(history: History) -> None:
    await add(history, "a", day=date(2026, 11, 28))
    await add(history, "b", day=date(2026, 11, 29))
    await pack(history)
    assert await history.remove_older(date(2026, 11, 29)) == 1
    assert [each.name for each in await history.packs("default")] == ["date=2026-11-29/sweep-uid-0.jsonl.gz"]


async def test_another_writer_of_the_bucket_is_not_overwritten(volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(MemoryStore(), "memory://bucket")
    history = History(volume, bucket)
    await add(history, "a")
    read = history._packs.read

    async def read_before_another_writes(path: str) -> tuple[bytes, str | None]:
        found = await read(path)
        await bucket.put(f"_history/{path}", gzip.compress(b'{"uid":"of-another-cluster"}\n'))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(history._packs, "read", read_before_another_writes)
        with pytest.raises(StoreError, match="concurrently"):
            await pack(history)
    await pack(history)
    assert [row["uid"] for row in await rows(history)] == ["a", "of-another-cluster"]


async def test_a_damaged_pack_is_named_and_kept(history: History, volume: ResultsVolume) -> None:
    await add(history, "a")
    await history._packs.write(f"namespace=default/{NAME}", b"damaged", None)
    with pytest.raises(StoreError, match="damaged"):
        await pack(history)
    assert await history.open_lines("default")


async def test_a_pack_that_unpacks_to_more_than_the_operators_memory_is_not_unpacked(history: History) -> None:
    await add(history, "a")
    zeros = gzip.compress(b"0" * (1 << 20))
    await history._packs.write(f"namespace=default/{NAME}", zeros * 200, None)
    with pytest.raises(StoreError, match="more than 134217728 bytes of lines"):
        await pack(history)
    assert await history.open_lines("default")


async def test_a_pack_in_the_bucket_that_is_too_large_is_not_read(volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(volume, Bucket(MemoryStore(), "memory://bucket"))
    await add(history, "a")
    await pack(history)
    monkeypatch.setattr("multistep.store.history.MAX_BYTES", 10)
    with pytest.raises(StoreError, match="more than 10 bytes"):
        await history.read("default", NAME)


async def test_results_and_temporary_files_are_no_concern_of_each_other(volume: ResultsVolume) -> None:
    history = History(volume)
    await add(history, "a")
    assert await volume.trials() == {}
    await volume.disk.tidy(LATER)
    assert await history.open_lines("default")


async def test_a_replica_without_the_lease_writes_nothing(tmp_path: Path) -> None:
    def refuse() -> None:
        raise StoreError("not leading")

    volume = ResultsVolume(tmp_path, check=refuse)
    with pytest.raises(StoreError, match="not leading"):
        await add(History(volume), "a")
    assert not (tmp_path / ".history").exists()
    volume.close()


@pytest.fixture
async def client(volume: ResultsVolume) -> AsyncIterator[Client]:
    history = History(volume)
    await add(history, "a")
    await pack(history)
    await add(history, "b")
    app = web.Application()
    results_server.add_routes(app, volume, history=history)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_the_history_is_served_to_those_with_the_token_of_its_namespace(volume: ResultsVolume, client: Client) -> None:
    url = volume.access.history_uri("", "default")
    (listed,) = await (await client.get(url)).json()
    packed = await (await client.get(f"{url}/packs/{listed['name']}")).read()
    assert (listed["name"], json.loads(gzip.decompress(packed))["uid"]) == (NAME, "a")
    assert json.loads(await (await client.get(f"{url}/open")).read())["uid"] == "b"


@pytest.mark.parametrize(
    "path",
    [
        "/history/default/" + "0" * 32,
        "/history/other/{token}",
        "/history/default/{token}/packs/date=2026-11-30/none.jsonl.gz",
        "/history/default/{token}/packs/..%2F..%2F.access-key",
        "/history/default/{token}/packs/%2Fetc%2Fpasswd",
        "/history/default/{token}x/open",
        "/history/default/{token}/closed",
    ],
)
async def test_nothing_else_of_the_history_is_served(volume: ResultsVolume, client: Client, path: str) -> None:
    assert (await client.get(path.format(token=volume.access.history_token("default")))).status == 404


async def test_an_old_line_is_found_by_its_time(history: History) -> None:
    await add(history, "a")
    (group,) = await history.groups()
    os.utime(next(group.iterdir()), (1, 1))
    assert await pack(history, before=2) == 1
