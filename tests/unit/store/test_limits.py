"""Limits of the results' size, and the report of files left out."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multistep.engine.journal.journal import Collected
from multistep.engine.journal.operations import Part
from multistep.engine.journal.results_limits import Amount, Headroom, ResultsLimits
from multistep.errors import CollectionCut, StoreError
from multistep.store.files.file_trees import MAX_DEPTH
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial import unpack_download
from multistep.store.trial.unpack_download import DownloadFacts
from multistep.store.trial.volume_usage import ADMITTED_BYTES, Collection

from .helpers import KEY, Step, directory, entries, member, snapshot, tar, trial_path

STEP = Step(artifacts=entries("/logs/artifacts", "/app/out"))
TYPES = ("directory", "directory", "directory", "file")
OTHER = TrialKey("default", "other", "11111111-6d1f-4c0e-9b4e-1d1c6f1b2a3c")
STREAM = tar(
    directory("0"), member("0/log", b"x" * 10), directory("1"), member("1/reward.txt", b"1"),
    directory("2"), member("2/small", b"y" * 100), member("2/large", b"z" * 5000), member("3", b"out"),
)  # fmt: skip


def limited(root: Path, **changes: Amount) -> ResultsVolume:
    limits = ResultsLimits(step=Amount(10_000, 100), trial=Amount(50_000, 500), namespace=Amount(100_000, 1000))
    return ResultsVolume(root, limits=lambda _: replace(limits, **changes))


async def collect(
    volume: ResultsVolume,
    key: TrialKey = KEY,
    data: bytes = STREAM,
    step: Step = STEP,
    received: DownloadFacts | None = None,
    part: Part = "all",
) -> Collected:
    headroom = await volume.collections.headroom(key, Collection(1, step.index, part))
    async with volume.collections.spool(key, headroom=headroom) as spool:
        await spool.write(data)
        reported = replace(received or DownloadFacts(), headroom=headroom)
        return await volume.collections.store_step(key, spool, attempt=1, step=step, types=TYPES, received=reported)


def manifest(volume: ResultsVolume, key: TrialKey = KEY) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((trial_path(volume, key) / "steps/one/artifacts/manifest.json").read_text())
    return found


async def test_what_changed_or_could_not_be_read_is_reported(tmp_path: Path) -> None:
    volume = limited(tmp_path)
    collected = await collect(volume, received=DownloadFacts(changed=("2/small", "9/x", "0/log"), unreadable=("2/dir", "3")))
    assert collected.incomplete == (
        "/logs/agent: 1 file: changed while it was read",
        "/logs/artifacts: 1 file: changed while it was read; 1 file: could not be read",
        "/app/out: 1 file: could not be read",
    )
    top, out = manifest(volume)
    assert (top["status"], out["status"]) == ("failed", "failed")
    assert top["incomplete"] == [
        {"path": "small", "reason": "changed while it was read"},
        {"path": "dir", "reason": "could not be read"},
    ]
    assert "/app/out: 1 file: could not be read" in (trial_path(volume) / "trial.log").read_text()


async def test_what_came_whole_has_no_such_words(tmp_path: Path) -> None:
    volume = limited(tmp_path)
    assert (await collect(volume)).incomplete == ()
    assert [each["status"] for each in manifest(volume)] == ["ok", "ok"] and "incomplete" not in manifest(volume)[0]


async def test_a_file_beyond_the_steps_limit_is_left_out_and_named_and_all_others_are_kept(tmp_path: Path) -> None:
    volume = limited(tmp_path, step=Amount(1000, 100))
    collected = await collect(volume)
    found = snapshot(trial_path(volume) / "steps/one")
    assert "artifacts/large" not in found and found["artifacts/small"][2] == b"y" * 100 and found["artifacts/out"][2] == b"out"
    assert found["verifier/reward.txt"][2] == b"1"
    assert collected.incomplete == ("/logs/artifacts: 1 file: left out: no room within the results limits",)
    assert manifest(volume)[0]["incomplete"] == [
        {"path": "large", "reason": "its 5000 bytes exceed what is left of the step's results limit"}
    ]


async def test_a_file_whose_contents_were_not_asked_for_is_not_there_empty(tmp_path: Path) -> None:
    volume = limited(tmp_path)
    data = tar(directory("2"), member("2/huge", b""), member("2/small", b"y"))
    collected = await collect(volume, data=data, received=DownloadFacts(left_out={"2/huge": "its 3221225472 bytes exceed"}))
    assert sorted(each.name for each in (trial_path(volume) / "steps/one/artifacts").iterdir()) == ["manifest.json", "small"]
    assert collected.incomplete and manifest(volume)[0]["incomplete"][0]["path"] == "huge"


async def test_many_files_are_cut_to_the_limit_and_the_verdict_is_kept(tmp_path: Path) -> None:
    volume = limited(tmp_path, step=Amount(10_000, 20))
    data = tar(*(member(f"0/{number}", b"") for number in range(50)), member("1/reward.txt", b"1"), member("2/a", b"a"))
    collected = await collect(volume, data=data)
    found = snapshot(trial_path(volume) / "steps/one")
    assert sum(path.startswith("agent/") for path in found) == 10
    assert "verifier/reward.txt" in found and "artifacts/a" in found
    assert collected.incomplete == ("/logs/agent: 40 files: left out: no room within the results limits",)


async def test_what_a_trial_and_a_namespace_have_leaves_less_room_and_deleting_frees_it(tmp_path: Path) -> None:
    volume = limited(tmp_path, trial=Amount(6000, 500), namespace=Amount(11_000, 1000))
    await collect(volume)
    # the stored files of step 0 do not count for step 0: a new collection replaces them
    assert await room_of(volume, KEY, index=0) == Headroom(6000, 100, "trial", "step")
    assert await room_of(volume, KEY, index=1) == Headroom(6000 - 5114, 100, "trial", "step")
    await collect(volume, OTHER)
    assert (await room_of(volume, OTHER, index=1)).bytes == 11_000 - 2 * 5114
    assert (await room_of(volume, replace(KEY, namespace="elsewhere"), index=0)).bytes == 6000
    again = limited(tmp_path, trial=Amount(6000, 500), namespace=Amount(11_000, 1000))  # like a restarted operator
    assert await room_of(again, OTHER, index=1) == await room_of(volume, OTHER, index=1)
    await volume.remove(KEY)
    assert (await room_of(volume, OTHER, index=1)).bytes == 6000 - 5114


async def room_of(volume: ResultsVolume, key: TrialKey, *, index: int) -> Headroom:
    return await volume.collections.headroom(key, Collection(1, index, "all"))


async def test_results_of_an_earlier_release_count_as_they_lie_there(tmp_path: Path) -> None:
    volume = limited(tmp_path)
    old = trial_path(volume, OTHER)
    old.mkdir(parents=True)
    (old / "file").write_bytes(b"x" * 99_000)
    assert await room_of(volume, KEY, index=0) == Headroom(1000, 100, "namespace", "step")


LONE = Step(artifacts=entries("/app/out"))


async def handed_over(volume: ResultsVolume, *, cut: str = "", files: int | None = None) -> Collected:
    """Store the artifacts of a step with a separate verifier."""
    collection = Collection(1, LONE.index, "agent")
    room, alone = [await each(KEY, collection) for each in (volume.collections.headroom, volume.collections.most)]
    room = room if files is None else replace(room, files=files)
    received = DownloadFacts(headroom=room, alone=alone, cut=cut)
    async with volume.collections.spool(KEY) as spool:
        await spool.write(tar(directory("0"), member("0/log", b"x" * 10), member("1", b"z" * 5000)))
        return await volume.collections.store_step(
            KEY, spool, attempt=1, step=LONE, types=("directory", "file"), part="agent", received=received
        )


async def fill(volume: ResultsVolume, size: int) -> None:
    """Store results of another trial of the namespace."""
    old = trial_path(volume, OTHER)
    old.mkdir(parents=True)
    (old / "file").write_bytes(b"x" * size)


@pytest.mark.parametrize(("filled", "files"), [(96_000, None), (50_000, 1)], ids=["bytes", "files"])
async def test_artifacts_for_a_verifier_wait_for_the_room_that_other_trials_take(
    tmp_path: Path, filled: int, files: int | None
) -> None:
    volume = limited(tmp_path)
    await fill(volume, filled)
    with pytest.raises(StoreError, match="results of other trials leave no room"):
        await handed_over(volume, files=files)
    assert not (trial_path(volume) / "steps").exists()
    await volume.remove(OTHER)
    assert (await handed_over(volume)).incomplete == ()


async def test_artifacts_for_a_verifier_that_never_fit_do_not_wait(tmp_path: Path) -> None:
    volume = limited(tmp_path, step=Amount(4000, 100))
    await fill(volume, 99_000)
    assert (await handed_over(volume)).incomplete == ("/app/out: 1 file: left out: no room within the results limits",)


LIMIT_OF = "it has more bytes than what is left of the {}'s results limit"


@pytest.mark.parametrize(
    ("filled", "limits", "cut", "waits"),
    [
        (96_000, {}, LIMIT_OF.format("namespace"), True),
        (0, {}, LIMIT_OF.format("step"), False),
        (0, {}, "the trials of the namespace together exceed its results limit at this moment", True),
        (
            0,
            {"namespace": Amount(9000, 1000)},
            "the trials of the namespace together exceed its results limit at this moment",
            False,
        ),
        (96_000, {}, "it took longer than 300 s", True),
        (0, {}, "it took longer than 300 s", False),
    ],
)
async def test_a_download_for_a_verifier_that_other_trials_cut_off_is_repeated(
    tmp_path: Path, filled: int, limits: dict[str, Amount], cut: str, waits: bool
) -> None:
    volume = limited(tmp_path, **limits)
    await fill(volume, filled)
    if waits:
        with pytest.raises(StoreError, match="results of other trials"):
            await handed_over(volume, cut=cut)
    else:
        assert f"/app/out: cut off: {cut}" in (await handed_over(volume, cut=cut)).incomplete


async def test_a_download_beyond_its_room_is_cut_off_and_what_came_is_kept(tmp_path: Path) -> None:
    volume = limited(tmp_path, step=Amount(10_000, 10))
    headroom = await volume.collections.headroom(KEY, Collection(1, STEP.index, "all"))
    data = tar(member("0/log", b"log"), member("1/reward.txt", b"1"), member("2/flood", os.urandom(2 * ADMITTED_BYTES)))
    async with volume.collections.spool(KEY, headroom=headroom) as spool:
        with pytest.raises(CollectionCut, match="what is left of the step's results limit"):
            for start in range(0, len(data), 100_000):
                await spool.write(data[start : start + 100_000])
        received = DownloadFacts(cut="why", headroom=headroom)
        collected = await volume.collections.store_step(KEY, spool, attempt=1, step=STEP, types=TYPES, received=received)
    found = snapshot(trial_path(volume) / "steps/one")
    assert found["agent/log"][2] == b"log" and found["verifier/reward.txt"][2] == b"1" and "artifacts/flood" not in found
    assert collected.incomplete == tuple(f"{each}: cut off: why" for each in ("/logs/verifier", "/logs/artifacts", "/app/out"))
    assert (await volume.collections.headroom(KEY, Collection(1, 1, "all"))).bytes == 10_000


async def test_downloads_at_one_moment_share_the_namespaces_limit_and_the_first_mebibyte_always_comes(tmp_path: Path) -> None:
    volume = limited(tmp_path, step=Amount(2**30, 100), trial=Amount(2**30, 100), namespace=Amount(3 * 2**20, 1000))
    first, second = [await volume.collections.headroom(key, Collection(1, STEP.index, "all")) for key in (KEY, OTHER)]
    async with volume.collections.spool(KEY, headroom=first) as one, volume.collections.spool(OTHER, headroom=second) as two:
        for _ in range(3):
            await one.write(bytes(2**20))
        await two.write(bytes(2**20))
        with pytest.raises(CollectionCut, match="trials of the namespace"):
            await two.write(bytes(1))
            await two.write(bytes(1))
    assert (await volume.collections.headroom(KEY, Collection(1, STEP.index, "all"))).bytes == 3 * 2**20


async def test_a_file_whose_path_the_volume_cannot_have_is_reported(tmp_path: Path) -> None:
    volume = limited(tmp_path)
    deep = "/".join("d" * (MAX_DEPTH + 1))
    data = tar(directory("2"), member("2/" + "n" * 256, b"y"), member(f"2/{deep}", b"y"), member("2/a", b"a"), member("3", b"out"))
    collected = await collect(volume, data=data)
    assert collected.incomplete == ("/logs/artifacts: 2 files: left out: cannot be stored",)
    top, out = manifest(volume)
    assert (top["status"], out["status"]) == ("failed", "ok")
    assert [each["path"] for each in top["incomplete"]] == ["n" * 256, deep]


async def test_logs_of_very_many_files_do_not_displace_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack_download, "MAX_MEMBERS", 30)
    volume = limited(tmp_path, step=Amount(100_000, 100))
    logs, artifacts = (member(f"0/{number}", b"") for number in range(40)), (member(f"2/{number}", b"") for number in range(40))
    collected = await collect(volume, data=tar(*logs, member("1/reward.txt", b"1"), *artifacts, member("3", b"out")))
    found = snapshot(trial_path(volume) / "steps/one")
    assert sum(path.startswith("agent/") for path in found) == 40
    assert "verifier/reward.txt" in found and sum(path.startswith("artifacts/") for path in found) == 31  # one is the manifest
    assert collected.incomplete == (
        "/logs/artifacts: 10 files: left out: cannot be stored",
        "/app/out: 1 file: left out: cannot be stored",
    )


async def test_the_files_of_a_namespace_leave_inodes_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    small = os.statvfs_result([*real[:5], 1000, 900, *real[7:]])  # f_files: all inodes of the volume; f_ffree: free ones
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    limits = ResultsLimits(step=Amount(10_000, 5000), trial=Amount(50_000, 5000), namespace=Amount(100_000, 5000))
    headroom = await ResultsVolume(tmp_path, limits=lambda _: limits).collections.headroom(KEY, Collection(1, 0, "all"))
    assert (headroom.files, headroom.files_of) == (800, "namespace")
