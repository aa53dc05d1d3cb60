"""A trial's directory over its life: attempts, final files, log, archive, deletion."""

from __future__ import annotations

import asyncio
import os
import stat
import tarfile
import threading
import tracemalloc
from pathlib import Path

import pytest

from multistep.errors import StoreError
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial import directory
from multistep.store.trial.disk_calls import Disk
from tests.support.full_disk import file_on_a_full_disk

from .helpers import KEY, Step, keep, link, member, opened, snapshot, tar, trial_path

OTHER = TrialKey("other", "trial-2", "11111111-2222-3333-4444-555555555555")


async def archived(volume: ResultsVolume, key: TrialKey = KEY) -> bytes:
    return b"".join([chunk async for chunk in volume.archive(key)])


def names(volume: ResultsVolume) -> set[str]:
    return {name for name in snapshot(trial_path(volume)) if not name.startswith(".")}


@pytest.mark.parametrize(
    "parts",
    [("..", "a", "u"), ("a", "..", "u"), ("a", "b", ".."), ("", "b", "u"), ("a/b", "c", "u"), (".x", "b", "u"), ("A", "b", "u")],
)
def test_a_key_is_never_a_way_out(parts: tuple[str, str, str]) -> None:
    with pytest.raises(StoreError):
        TrialKey(*parts)


async def test_an_unusable_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="results directory"):
        ResultsVolume(tmp_path / "file" / "results")


async def test_a_download_past_its_limit_is_refused(volume: ResultsVolume) -> None:
    with pytest.raises(StoreError, match="more than 10 bytes"):
        async with volume.collections.spool(KEY, max_bytes=10) as spool:
            await spool.write(b"12345678901")


async def test_a_download_onto_a_full_volume_is_an_error_of_the_store(
    volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the file fails, too. If that error replaced the StoreError, the wait would count towards the trial's deadline."""
    monkeypatch.setattr(Disk, "new_file", lambda _: file_on_a_full_disk(1 << 22))
    with pytest.raises(StoreError, match="writing the download: No space left on device"):
        async with volume.collections.spool(KEY) as spool:
            await spool.write(bytes(3_000_000))


async def test_a_spool_leaves_no_name_behind_not_even_while_it_is_used(volume: ResultsVolume) -> None:
    async with volume.collections.spool(KEY) as spool:
        await spool.write(bytes(3_000_000))
        await spool.flush()
        assert [path.name for path in volume.root.iterdir()] == [".access-key"]


async def test_an_earlier_attempt_is_kept_on_record(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/a", b"first")))
    await volume.append_log(KEY, "the node was lost")
    await volume.start_attempt(KEY, 2)
    await keep(volume, tar(member("0/a", b"second")), attempt=2)
    before = snapshot(trial_path(volume))
    await volume.start_attempt(KEY, 2)
    assert snapshot(trial_path(volume)) == before
    assert before["attempts/1/steps/one/agent/a"][2] == b"first"
    assert before["steps/one/agent/a"][2] == b"second"
    assert "trial.log" in before


async def test_a_collection_starts_its_attempt_and_a_late_one_is_refused(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/a", b"first")))
    await keep(volume, tar(member("0/a", b"third")), attempt=3)
    with pytest.raises(StoreError, match="attempt 1 has finished"):
        await keep(volume, tar(member("0/a", b"late")))
    assert {"attempts/1/steps/one/agent/a", "steps/one/agent/a"} <= names(volume)


async def test_an_attempt_whose_move_was_broken_off_is_moved_to_the_end(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/a", b"x")))
    (trial_path(volume) / "attempts/1/steps").mkdir(parents=True)
    await volume.start_attempt(KEY, 2)
    assert "attempts/1/steps.2/one/agent/a" in names(volume)


async def test_the_end_writes_all_files_and_the_directories_of_started_steps(volume: ResultsVolume) -> None:
    await volume.finish(KEY, {"result.json": b"{}", "exception.txt": b"x"}, ["steps/a/agent"])
    await volume.finish(KEY, {"result.json": b"[]"}, ["steps/a/agent"])
    assert names(volume) == {"result.json", "steps", "steps/a", "steps/a/agent"}
    assert (trial_path(volume) / "result.json").read_bytes() == b"[]"


async def test_the_end_removes_what_crashes_left(volume: ResultsVolume) -> None:
    for name in (".work-1/steps", ".new-1x", ".redact-1x"):
        path = trial_path(volume) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.startswith(".work") else path.write_text("")
    await volume.finish(KEY, {"result.json": b"{}"})
    assert set(snapshot(trial_path(volume))) == {"result.json"}


@pytest.mark.parametrize("files", [{"../x": b""}, {".attempt": b""}, {"steps/x": b""}])
async def test_the_end_writes_no_other_files(volume: ResultsVolume, files: dict[str, bytes]) -> None:
    with pytest.raises(StoreError, match="not the name of a file of a trial directory"):
        await volume.finish(KEY, files)


@pytest.mark.parametrize("place", ["../x", "/tmp/x", "steps/../../x"])
async def test_the_end_makes_no_directory_elsewhere(volume: ResultsVolume, place: str) -> None:
    with pytest.raises(StoreError, match="not below"):
        await volume.finish(KEY, {}, [place])


async def test_the_log_is_in_the_order_of_time_and_has_no_line_twice(volume: ResultsVolume) -> None:
    await volume.append_log(KEY, "left out\nsomething")
    await volume.append_log(KEY, "left out\nsomething")
    text = b"2020-01-01T00:00:00.000Z started\n9999-01-01T00:00:00.000Z ended\n"
    for _ in range(2):
        await volume.finish(KEY, {"trial.log": text})
        lines = (trial_path(volume) / "trial.log").read_text().splitlines()
        assert [line.partition(" ")[2] for line in lines] == ["started", "left out something", "ended"]


async def test_redacting_reaches_earlier_attempts_too_and_nothing_there_is_no_error(volume: ResultsVolume) -> None:
    await volume.redact(KEY, ["hunter2"])
    await keep(volume, tar(member("0/a", b"is hunter2")))
    await volume.start_attempt(KEY, 2)
    await volume.finish(KEY, {"trial.log": b"hunter2"})
    await volume.redact(KEY, ["hunter2"])
    found = snapshot(trial_path(volume))
    assert found["attempts/1/steps/one/agent/a"][2] == b"is [REDACTED]"
    assert b"hunter2" not in b"".join(each[2] for each in found.values())


async def test_trials_are_listed_and_removed_with_what_crashed_removals_left(volume: ResultsVolume) -> None:
    for key in (KEY, OTHER):
        await keep(volume, tar(member("0/a", b"x")), key=key)
    (volume.root / "lost+found/a/b").mkdir(parents=True)
    (volume.root / ".removed-1/a/b").mkdir(parents=True)
    assert await volume.trials() == {KEY: None, OTHER: None}
    await volume.remove(KEY)
    await volume.remove(KEY)
    assert set(await volume.trials()) == {OTHER}
    assert {path.name for path in volume.root.iterdir()} == {".access-key", "lost+found", "other"}
    assert not await volume.exists(KEY)


async def test_an_archive_is_the_directory(volume: ResultsVolume, tmp_path: Path) -> None:
    sent = tar(
        member("0/big", bytes(600_000)), member("0/" + "n" * 200, b"x"), link("0/l", "/" + "t" * 200),
        member("0/ünï", b"x"), member("0/" + os.fsdecode(b"\xff"), b"x", mode=0o755),
    )  # fmt: skip
    await keep(volume, sent)
    await volume.start_attempt(KEY, 1)
    (trial_path(volume) / ".work-crashed").mkdir()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy.tar").write_bytes(await archived(volume))
    with tarfile.open(tmp_path / "copy.tar") as archive:
        archive.extractall(tmp_path / "copy", filter="fully_trusted")
    (trial_path(volume) / ".work-crashed").rmdir()
    kept = {path: found for path, found in snapshot(trial_path(volume)).items() if not path.startswith(".")}
    assert snapshot(tmp_path / "copy") == kept


async def test_an_archive_of_nothing_is_an_error(volume: ResultsVolume) -> None:
    with pytest.raises(StoreError, match="No such file"):
        await archived(volume)


async def test_an_archive_and_a_collection_of_any_size_take_little_memory(volume: ResultsVolume) -> None:
    size = 48 * 2**20
    head = member("0/big", b"")
    async with volume.collections.spool(KEY) as spool:
        tracemalloc.start()
        await spool.write(_sized(head, size))
        for _ in range(size // 2**20):
            await spool.write(bytes(2**20))
        await spool.write(bytes(1024))
        await volume.collections.store_step(KEY, spool, attempt=1, step=Step(), types=("directory", "directory"))
        read = 0
        async for chunk in volume.archive(KEY):
            read += len(chunk)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert read > size
    assert peak < 12 * 2**20


def _sized(header: bytes, size: int) -> bytes:
    info = tarfile.TarInfo.frombuf(header[:512], "utf-8", "surrogateescape")
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


async def test_a_file_that_shrinks_while_it_is_sent_keeps_the_archive_whole(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/big", b"x" * 3_000_000), member("1/z", b"x")))
    chunks = volume.archive(KEY)
    data = await anext(chunks)
    os.truncate(trial_path(volume) / "steps/one/agent/big", 1000)
    data += b"".join([chunk async for chunk in chunks])
    assert opened(data)["steps/one/agent/big"].size in (1000, 3_000_000)
    assert "steps/one/verifier/z" in opened(data)


async def test_cancelling_waits_for_the_thread_that_uses_the_file(volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on, seen = threading.Event(), threading.Event(), []

    def slow(fd: int, *_: object) -> None:
        started.set()
        go_on.wait(60)
        seen.append(os.fstat(fd).st_nlink)  # fails, or reads another file, if the cancelled task has already closed the spool

    monkeypatch.setattr("multistep.store.trial.collect_files.unpack", slow)
    task = asyncio.create_task(keep(volume, tar()))
    await asyncio.to_thread(started.wait, 60)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [0]


async def test_tokens_differ_by_trial_survive_a_restart_and_are_all_it_takes(volume: ResultsVolume) -> None:
    again = ResultsVolume(volume.root)
    assert again.access.token(KEY) == volume.access.token(KEY) != volume.access.token(OTHER)
    assert len(volume.access.token(KEY)) == 32
    assert volume.access.grants(KEY, volume.access.token(KEY))
    assert not any(volume.access.grants(KEY, shown) for shown in ("", volume.access.token(OTHER), "é"))
    assert stat.S_IMODE((volume.root / ".access-key").stat().st_mode) == 0o600
    assert volume.access.uri("http://operator:8080/", KEY) == f"http://operator:8080/results/{KEY}/{volume.access.token(KEY)}"
    again.close()


async def test_another_volume_has_another_key(volume: ResultsVolume, tmp_path: Path) -> None:
    other = ResultsVolume(tmp_path / "other")
    assert other.access.token(KEY) != volume.access.token(KEY)
    other.close()


async def test_a_damaged_key_is_not_used(tmp_path: Path) -> None:
    (tmp_path / ".access-key").write_bytes(b"")
    with pytest.raises(StoreError, match="does not hold 32 bytes"):
        ResultsVolume(tmp_path)


async def test_free_bytes(volume: ResultsVolume) -> None:
    assert await volume.disk.free_bytes() > 0


# -- results of deleted trials


async def test_a_mark_reports_since_when_a_trial_is_gone_until_it_is_taken_away(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/log", b"x")))
    await volume.mark_gone(KEY, 1_700_000_000.5)
    assert await ResultsVolume(volume.root).trials() == {KEY: 1_700_000_000.5}
    assert "steps/one/agent/log" in opened(await archived(volume)), "its results are as they were"
    await volume.unmark(KEY)
    await volume.unmark(KEY)
    assert await volume.trials() == {KEY: None}


async def test_a_mark_is_no_result_and_takes_no_room(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/log", b"x")))
    before = opened(await archived(volume)).keys()
    await volume.mark_gone(KEY, 1.0)
    assert opened(await archived(volume)).keys() == before
    assert (trial_path(volume) / ".gone").stat().st_size == 0


async def test_what_has_no_results_gets_no_mark(volume: ResultsVolume) -> None:
    await volume.mark_gone(KEY, 1.0)
    assert await volume.trials() == {}


async def test_what_a_crash_left_in_the_directory_of_a_trial_that_is_gone_is_deleted(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/log", b"x")))
    before = snapshot(trial_path(volume)).keys()
    (trial_path(volume) / ".work-1234" / "agent").mkdir(parents=True)
    (trial_path(volume) / ".new-1234").write_bytes(b"half")
    await volume.mark_gone(KEY, 1.0)
    assert snapshot(trial_path(volume)).keys() == before | {".gone"}


async def test_what_crashes_left_at_the_top_is_deleted_when_it_is_old(volume: ResultsVolume) -> None:
    await keep(volume, tar(member("0/log", b"x")))
    whole = snapshot(volume.root)
    litter = [volume.root / name for name in (".removed-1", ".access-key-1", ".spool-1")]
    litter[0].mkdir()
    (litter[0] / "file").write_bytes(b"x")
    for each in litter[1:]:
        each.write_bytes(b"x")
    for each in litter:
        os.utime(each, (1000.0, 1000.0))
    young = volume.root / ".spool-2"
    young.write_bytes(b"x")
    assert await volume.disk.tidy(before=2000.0) == 3
    assert snapshot(volume.root).keys() == whole.keys() | {".spool-2"}


async def test_logs_of_services_are_files_of_the_trial(volume: ResultsVolume) -> None:
    await volume.finish(KEY, {"result.json": b"{}", "services/app.log": b"ready\n"})
    assert (trial_path(volume) / "services" / "app.log").read_bytes() == b"ready\n"


def test_a_file_that_cannot_be_written_keeps_its_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError("disk full")

    directory.write_file(tmp_path / "f", b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        directory.write_file(tmp_path / "f", b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("f", b"old")]
