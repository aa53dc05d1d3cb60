"""Upload of finished trials' results to an object store: a real S3 server, or a store in memory if only the calls matter."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import aiohttp
import obstore
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from obstore.store import MemoryStore

from multistep.engine.journal.results_limits import LargeFile, SentFile
from multistep.errors import NotLeading, StoreError
from multistep.store import results_server as server
from multistep.store.bucket import bucket_results
from multistep.store.bucket.object_store import Bucket
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.files.trial_key import ResultsStore, TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial.object_manifest import object_name
from multistep.store.trial.unpack_download import UploadedObject
from tests.support import servers

from .helpers import KEY, Step, entries, member, tar, trial_path

OTHER = TrialKey("default", "trial-1", "11111111-6d1f-4c0e-9b4e-1d1c6f1b2a3c")


@pytest.fixture
async def s3(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[servers.S3]:
    async with servers.s3() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def memory(check: Callable[[], None] = lambda: None) -> Bucket:
    return Bucket(MemoryStore(), "memory://", check)


def awkward(top: Path) -> None:
    """Create results with file types and names that a file system accepts, but an archive or object store may not."""
    (top / "steps/one/artifacts").mkdir(parents=True)
    (top / "steps/one/empty").mkdir()
    files = {
        b"result.json": b"{}",
        b"steps/one/artifacts/empty": b"",
        b"steps/one/artifacts/binary": bytes(range(256)) * 9000,  # larger than one part of a multipart upload
        "steps/one/artifacts/größe 大.txt".encode(): b"unicode",
        b"steps/one/artifacts/not-\xff-utf-8": b"bytes",
        b"steps/one/artifacts/#?%{}\\^`'\"<>|": b"signs",
        b"steps/one/artifacts/line\nbreak": b"newline",
        b"steps/one/artifacts/...": b"dots",
        b"steps/one/artifacts/" + b"x" * 250: b"long",
    }
    for name, data in files.items():
        (top / os.fsdecode(name)).write_bytes(data)
    (top / "steps/one/artifacts/binary").chmod(0o755)
    (top / "steps/one/artifacts/link").symlink_to("../nowhere/\udcff")
    (top / ".hidden").write_text("not among the results")


async def tar_of(place: ResultsStore, key: TrialKey = KEY) -> bytes:
    async with aclosing(place.archive(key)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def test_results_come_back_from_s3_byte_for_byte(s3: servers.S3, volume: ResultsVolume) -> None:
    awkward(trial_path(volume))
    wanted = await tar_of(volume)
    shipped = ResultsUploader(Bucket.open(f"s3://{s3.bucket}/some/prefix"), volume)
    assert not await shipped.results.exists(KEY)
    assert await shipped.ship(KEY) == f"s3://bucket/some/prefix/{KEY}"
    assert await tar_of(shipped.results) == wanted
    stored = s3.directory / "bucket/some/prefix" / str(KEY)
    assert (stored / "files/steps/one/artifacts/größe 大.txt").read_text() == "unicode"
    assert not (stored / "files/.hidden").exists()
    assert await shipped.results.trials() == {KEY: None}

    await volume.remove(KEY)
    app = web.Application()
    server.add_routes(app, volume, shipped)
    async with TestClient(TestServer(app)) as client:
        assert await (await client.get(volume.access.uri("", KEY))).read() == wanted
        assert (await client.get(volume.access.uri("", OTHER))).status == 404

    await shipped.results.remove(KEY)
    assert (await shipped.results.exists(KEY), await shipped.results.trials()) == (False, {})
    assert [each for each in s3.directory.rglob("bucket/some/*/*") if each.is_file()] == []


async def test_parts_of_a_file_are_the_same_from_the_store(volume: ResultsVolume) -> None:
    awkward(trial_path(volume))
    shipped = ResultsUploader(memory(), volume)
    await shipped.ship(KEY)
    for path in ("result.json", "steps/one/artifacts/binary", "steps/one/artifacts/größe 大.txt", "none", ".hidden", "a/../b", ""):
        for offset, limit in ((0, 10), (5, 1 << 20), (-7, 3), (1 << 40, 1)):
            there = await volume.part(KEY, path, offset=offset, limit=limit)
            assert await shipped.results.part(KEY, path, offset=offset, limit=limit) == there, (path, offset)


async def test_what_is_there_is_not_sent_again(volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    awkward(trial_path(volume))
    bucket = memory()
    shipped = ResultsUploader(bucket, volume)
    names: list[str] = []
    away_after: list[int] = [4]
    put = Bucket.put

    async def counted(self: Bucket, name: str, data: bytes) -> str:
        if len(names) in away_after:
            raise StoreError("the store is away")
        names.append(name)
        return await put(self, name, data)

    monkeypatch.setattr(Bucket, "put", counted)
    with pytest.raises(StoreError, match="away"):
        await shipped.ship(KEY)
    assert not await shipped.results.exists(KEY)
    before = set(names)
    names.clear()
    away_after.clear()
    await shipped.ship(KEY)
    assert before & set(names) == {f"_trials/{KEY}"}
    names.clear()
    (trial_path(volume) / "result.json").write_text('{"again": true}')  # as if the trial were finished again
    await shipped.ship(KEY)
    assert set(names) == {f"_trials/{KEY}", f"{KEY}/files/result.json"}
    assert await tar_of(shipped.results) == await tar_of(volume)


async def test_what_was_lost_in_the_store_is_sent_again(volume: ResultsVolume) -> None:
    awkward(trial_path(volume))
    bucket = memory()
    shipped = ResultsUploader(bucket, volume)
    await shipped.ship(KEY)
    await bucket.delete([f"{KEY}/files/result.json"])
    await shipped.ship(KEY)
    assert await tar_of(shipped.results) == await tar_of(volume)


async def test_an_object_that_was_changed_is_not_served_as_what_was_stored(volume: ResultsVolume) -> None:
    awkward(trial_path(volume))
    bucket = memory()
    shipped = ResultsUploader(bucket, volume)
    await shipped.ship(KEY)
    await bucket.put(f"{KEY}/files/result.json", b"[]")
    with pytest.raises(StoreError, match="is not what was stored"):
        await tar_of(shipped.results)


async def test_of_two_that_finish_a_trial_at_once_one_is_refused(volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica may notice late that it lost its lease; the first writer of the manifest wins."""
    awkward(trial_path(volume))
    bucket = memory()
    first, second = ResultsUploader(bucket, volume), ResultsUploader(bucket, volume)
    put_if = Bucket.put_if

    async def meanwhile(self: Bucket, *args: object) -> None:
        monkeypatch.setattr(Bucket, "put_if", put_if)
        await second.ship(KEY)
        await put_if(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Bucket, "put_if", meanwhile)
    with pytest.raises(StoreError, match="another writer changed it concurrently"):
        await first.ship(KEY)


async def test_results_that_are_in_the_store_are_not_replaced_by_what_came_onto_the_volume_after_them(
    volume: ResultsVolume,
) -> None:
    """An operator that read an old version of the trial finishes it again, after the volume was cleared."""
    awkward(trial_path(volume))
    shipped = ResultsUploader(memory(), volume)
    await shipped.ship(KEY)
    wanted = await tar_of(volume)
    await volume.remove(KEY)
    await volume.finish(KEY, {"result.json": b"poorer"})
    with pytest.raises(StoreError, match="already has results of this trial"):
        await shipped.ship(KEY)
    assert await tar_of(shipped.results) == wanted


async def collected_directly(
    volume: ResultsVolume, s3: servers.S3, shown: str | None = None
) -> tuple[ResultsUploader, bytes, UploadedObject]:
    """Collect a step with one artifact, which its pod uploaded to the object store; return the artifact's data and pointer.

    shown: the digest that the pod reports; None: the correct digest.
    """
    data = bytes(range(256)) * 1000
    shipped = ResultsUploader(Bucket.open(f"s3://{s3.bucket}/x"), volume)
    invitation = await shipped.uploads.invite(KEY, 1, 0, 0)
    assert "ignature" not in repr(invitation)
    async with aiohttp.ClientSession() as session, session.put(invitation.url, data=data) as answer:
        version = answer.headers["ETag"]
        assert answer.status == 200
    digest = shown or hashlib.sha256(data).hexdigest()
    large = LargeFile(2, "", len(data))
    assert await shipped.uploads.sent(KEY, 1, 0, SentFile(0, large, digest, "another")) is None
    assert await shipped.uploads.sent(KEY, 1, 0, SentFile(1, large, digest, version)) is None
    pointer = await shipped.uploads.sent(KEY, 1, 0, SentFile(0, large, digest, version))
    assert pointer is not None
    step = Step(artifacts=entries("/app/large"))
    async with volume.collections.spool(KEY) as spool:
        await spool.write(tar(member("2", b"", mode=0o640)))
        types = ("directory", "directory", "file")
        kept = await volume.collections.store_step(KEY, spool, attempt=1, step=step, types=types, sent={"2": pointer})
    assert (kept.count, kept.bytes) == (1, len(data))
    return shipped, data, pointer


async def test_what_a_pod_sent_itself_is_served_also_of_an_earlier_attempt(s3: servers.S3, volume: ResultsVolume) -> None:
    shipped, data, pointer = await collected_directly(volume, s3)
    assert await volume.collections.pointers(KEY) == {"steps/one/artifacts/large": pointer}
    await volume.start_attempt(KEY, 2)
    await volume.finish(KEY, {"result.json": b"{}"})
    await shipped.ship(KEY)
    found = unpacked(await tar_of(shipped.results))
    assert found["attempts/1/steps/one/artifacts/large"] == data and found["result.json"] == b"{}"


async def test_parts_of_what_a_pod_sent_itself_are_served_when_the_volume_is_cleared(s3: servers.S3, volume: ResultsVolume) -> None:
    """A log can be large enough for a direct upload, and `multistep logs` reads files in parts."""
    shipped, data, pointer = await collected_directly(volume, s3)
    await shipped.ship(KEY)
    await volume.remove(KEY)
    app = web.Application()
    server.add_routes(app, volume, shipped)
    async with TestClient(TestServer(app)) as client:
        file = f"{volume.access.uri('', KEY)}/files/steps/one/artifacts/large"
        assert await (await client.get(file, params={"offset": "1000", "limit": "500"})).read() == data[1000:1500]
        assert await (await client.get(file, params={"offset": "-9"})).read() == data[-9:]
        assert (await client.get(f"{file}r")).status == 404
        (s3.directory / "bucket/x" / str(KEY) / pointer.object).unlink()
        await Bucket.open("s3://bucket/x").put(f"{KEY}/{pointer.object}", b"forged")
        changed = await client.get(file)
        assert changed.status == 503 and "is not what was collected" in await changed.text()


async def test_what_was_changed_after_its_collection_is_not_served_and_spoils_nothing(
    s3: servers.S3, volume: ResultsVolume
) -> None:
    shipped, _, pointer = await collected_directly(volume, s3)
    await volume.finish(KEY, {"result.json": b"{}"})
    await shipped.ship(KEY)
    (s3.directory / "bucket/x" / str(KEY) / pointer.object).unlink()
    await Bucket.open("s3://bucket/x").put(f"{KEY}/{pointer.object}", b"forged")
    found = unpacked(await tar_of(shipped.results))
    assert "steps/one/artifacts/large" not in found and found["result.json"] == b"{}"
    assert b"is not what was collected" in found["steps/one/artifacts/large.remark.txt"]


async def test_a_pod_that_sent_another_digest_is_found_out(s3: servers.S3, volume: ResultsVolume) -> None:
    shipped, data, _ = await collected_directly(volume, s3, shown="ab" * 32)
    await shipped.ship(KEY)
    found = unpacked(await tar_of(shipped.results))
    assert found["steps/one/artifacts/large"] == data
    assert b"reported another digest" in found["steps/one/artifacts/large.remark.txt"]


def unpacked(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {each.name: opened.read() for each in archive if (opened := archive.extractfile(each)) is not None}


async def test_a_replica_that_does_not_lead_changes_nothing(volume: ResultsVolume) -> None:
    awkward(trial_path(volume))
    store = MemoryStore()
    leading = Bucket(store, "memory://")
    await ResultsUploader(leading, volume).ship(KEY)

    def refuse() -> None:
        raise NotLeading("standing by")

    standing_by = ResultsUploader(Bucket(store, "memory://", refuse), volume)
    for change in (
        standing_by.ship(KEY),
        standing_by.results.remove(KEY),
        standing_by.results.mark_gone(KEY, 0.0),
        standing_by.results.unmark(KEY),
    ):
        with pytest.raises(NotLeading):
            await change
    assert await tar_of(standing_by.results) == await tar_of(volume)


async def test_marks_report_since_when_a_trial_is_gone(volume: ResultsVolume) -> None:
    bucket = memory()
    shipped = ResultsUploader(bucket, volume)
    for key in (KEY, OTHER):
        trial_path(volume, key).mkdir(parents=True)
        await shipped.ship(key)
    await bucket.put("_trials/of-another-writer", b"")
    await shipped.results.mark_gone(KEY, 0.0)
    found = await shipped.results.trials()
    assert set(found) == {KEY, OTHER}
    assert found[OTHER] is None
    assert (found[KEY] or 0) > 1_600_000_000
    await shipped.results.unmark(KEY)
    await shipped.results.unmark(KEY)
    assert await shipped.results.trials() == {KEY: None, OTHER: None}


async def test_many_objects_are_removed_in_lots(volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_results, "_DELETED_AT_ONCE", 3)
    awkward(trial_path(volume))
    bucket = memory()
    shipped = ResultsUploader(bucket, volume)
    await shipped.ship(KEY)
    await shipped.results.remove(KEY)
    assert [each async for each in bucket.list("default")] == []


async def test_a_store_that_is_away_is_distinguished_from_results_that_are_not_there(
    volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    awkward(trial_path(volume))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-store")
    bucket = Bucket.open("s3://bucket/prefix", retries=0)
    app = web.Application()
    server.add_routes(app, volume, ResultsUploader(bucket, volume))
    async with TestClient(TestServer(app)) as client:
        response = await client.get(volume.access.uri("", KEY))
        assert response.status == 503
        assert "s3://bucket/prefix" in await response.text()
        assert "secret-of-the-store" not in await response.text()


@pytest.mark.parametrize("url", ["", "bucket", "file:///tmp", "s3://", "http://host/x", "S3://bucket"])
def test_a_store_that_cannot_be_meant_is_refused_by_name(url: str) -> None:
    with pytest.raises(StoreError, match=r"results_store = .* must be one of s3://NAME/PREFIX, gs://"):
        Bucket.open(url)


def test_certificates_that_are_not_there_are_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"results_store_ca_file = .*No such file"):
        Bucket.open("s3://bucket", tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("path", "plain"),
    [("a/b.txt", True), ("größe 大", True), ("a/../b", False), ("a/.", False), ("a\n", False), ("a%b", False), ("x" * 701, False)],
)
def test_files_have_their_own_names_where_every_store_can_take_them(path: str, plain: bool) -> None:
    name = object_name(path)
    assert (name == f"files/{path}") is plain
    assert name.startswith(("files/", "named/"))


async def test_a_missing_object_does_not_keep_others_from_being_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store, delete = MemoryStore(), obstore.delete_async

    async def delete_up_to_a_missing_one(_: MemoryStore, paths: str | Sequence[str]) -> None:
        """Delete as GCS and Azure do."""
        for path in [paths] if isinstance(paths, str) else paths:
            await obstore.head_async(store, path)
            await delete(store, path)

    monkeypatch.setattr(obstore, "delete_async", delete_up_to_a_missing_one)
    for name in ("a", "b"):
        await obstore.put_async(store, name, b"x")
    await Bucket(store, "memory://").delete(["a", "missing", "b"])
    assert [each["path"] for each in await obstore.list(store).collect_async()] == []
