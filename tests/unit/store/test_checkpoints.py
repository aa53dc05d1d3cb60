"""Checkpoints on the results volume."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from multistep.engine.journal.results_limits import NO_LIMIT, Amount, Headroom, ResultsLimits
from multistep.errors import CollectionCut, StoreError
from multistep.store.checkpoints import checkpoint_files
from multistep.store.checkpoints.checkpoint_files import (
    CHECKPOINT_FILES,
    BaseCheckpoint,
    CheckpointCommit,
    CheckpointFile,
    StoredFile,
)
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial.volume_usage import Collection
from tests.support.full_disk import file_on_a_full_disk
from tests.unit.store.helpers import KEY, Step, keep, member, tar, trial_path

IMAGE = "docker.io/library/debian@sha256:1"
Id = tuple[int, int]


def data_of(id: Id) -> dict[CheckpointFile, bytes]:
    return {name: f"{name} of attempt {id[0]}, step {id[1]}".encode() * 1000 for name in CHECKPOINT_FILES}


def commit_of(id: Id, base: CheckpointCommit | None = None) -> CheckpointCommit:
    files = {name: StoredFile(sha256=hashlib.sha256(data).hexdigest(), size=len(data)) for name, data in data_of(id).items()}
    below = base and BaseCheckpoint(attempt=base.attempt, step=base.step, digest=base.digest)
    return CheckpointCommit(
        attempt=id[0], step=id[1], manifest=f"d of {id}", files=files, entries=3, image_id=IMAGE, base=below, attempts=(id[0],),
        records=({"id": f"{id[0]}/s{id[1]}/end"},),
    ).sealed()  # fmt: skip


async def store(volume: ResultsVolume, commit: CheckpointCommit, more: bytes = b"", key: TrialKey = KEY) -> None:
    async with volume.checkpoints.draft(key, await volume.checkpoints.headroom(key, commit.attempt, commit.step)) as draft:
        for name, data in data_of(commit.id).items():
            await draft.spools[name].write(data + more)
        await volume.checkpoints.store(key, draft, commit)


def file_of(volume: ResultsVolume, id: Id, name: str = "layer") -> Path:
    return trial_path(volume) / ".checkpoints" / f"{id[0]}-{id[1]}" / name


async def two(volume: ResultsVolume) -> tuple[CheckpointCommit, CheckpointCommit]:
    first = commit_of((1, 0))
    second = commit_of((2, 1), base=first)
    for each in (first, second):
        await store(volume, each)
    return first, second


async def test_stored_checkpoints_are_read_as_they_were_stored(volume: ResultsVolume) -> None:
    assert (await volume.checkpoints.stored(KEY)).commits == {}
    made = await two(volume)
    found = await volume.checkpoints.stored(KEY)
    assert (dict(found.commits), dict(found.damaged)) == ({each.id: each for each in made}, {})
    for commit in made:
        assert commit.digest == hashlib.sha256(file_of(volume, commit.id, "commit.json").read_bytes()).hexdigest()
        for name, data in data_of(commit.id).items():
            assert b"".join([chunk async for chunk in volume.checkpoints.contents(KEY, commit, name)]) == data
    assert [each.name for each in trial_path(volume).iterdir()] == [".checkpoints"], "no temporary files are left"


async def test_a_checkpoint_that_exists_is_not_replaced(volume: ResultsVolume) -> None:
    await store(volume, commit_of((1, 0)))
    await store(volume, commit_of((1, 0)), b"packed again after a crash")
    assert file_of(volume, (1, 0)).read_bytes() == data_of((1, 0))["layer"]


async def test_a_checkpoint_without_a_commit_does_not_exist_and_is_replaced(volume: ResultsVolume) -> None:
    await two(volume)
    file_of(volume, (2, 1), "commit.json").unlink()
    assert set((await volume.checkpoints.stored(KEY)).commits) == {(1, 0)}
    await store(volume, commit_of((2, 1)))
    assert set((await volume.checkpoints.stored(KEY)).commits) == {(1, 0), (2, 1)}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(("damage", "why"), [(_cut, "bytes instead of"), (Path.unlink, "is missing")])
@pytest.mark.parametrize("name", CHECKPOINT_FILES)
async def test_a_truncated_or_missing_file_is_damage(
    damage: Callable[[Path], None], why: str, name: str, volume: ResultsVolume
) -> None:
    await two(volume)
    damage(file_of(volume, (2, 1), name))
    found = await volume.checkpoints.stored(KEY)
    assert set(found.commits) == {(1, 0)}
    assert found.damaged[2, 1].startswith(f"its {name} ") and why in found.damaged[2, 1]


async def test_a_commit_that_cannot_be_read_or_is_anothers_is_damage(volume: ResultsVolume) -> None:
    first, _ = await two(volume)
    commit = file_of(volume, (2, 1), "commit.json")
    for text, why in (('{"attempt": 1}', "is not readable"), (first.model_dump_json(), "is that of another checkpoint")):
        commit.write_text(text)
        assert (await volume.checkpoints.stored(KEY)).damaged == {(2, 1): f"its commit {why}"}


async def test_an_error_of_the_disk_is_no_damage(volume: ResultsVolume) -> None:
    await two(volume)
    layer = file_of(volume, (2, 1))
    layer.unlink()
    layer.symlink_to(layer)  # reading it fails with ELOOP
    with pytest.raises(StoreError, match="reading checkpoints: Too many levels"):
        await volume.checkpoints.stored(KEY)


async def test_deleted_checkpoints_are_gone_and_those_kept_with_results_outlive_their_trial(volume: ResultsVolume) -> None:
    await two(volume)
    await volume.checkpoints.retain(KEY)
    await volume.mark_gone(KEY, 1.0)
    assert len((await volume.checkpoints.stored(KEY)).commits) == 2
    for _ in range(2):
        await volume.checkpoints.remove(KEY)
    assert (await volume.checkpoints.stored(KEY)).commits == {}


async def test_checkpoints_of_a_trial_that_was_deleted_while_active_are_deleted(volume: ResultsVolume) -> None:
    await two(volume)
    await volume.mark_gone(KEY, 1.0)
    assert not (trial_path(volume) / ".checkpoints").exists()


async def test_checkpoints_stay_when_results_move_to_an_object_store(volume: ResultsVolume) -> None:
    await two(volume)
    await keep(volume, tar(member("0/log", b"x")), ["directory", "missing"], step=Step("one", "one", index=0))
    assert await volume.exists(KEY)
    await volume.remove(KEY, but_checkpoints=True)
    assert [each.name for each in trial_path(volume).iterdir()] == [".checkpoints"]
    assert not await volume.exists(KEY), "checkpoints are no results"
    await volume.remove(KEY)
    assert not trial_path(volume).exists()


async def test_an_attempt_that_continues_keeps_the_results_of_its_steps(volume: ResultsVolume) -> None:
    steps = [Step(name, name, index=index) for index, name in enumerate(("one", "two", "three"))]
    for step in steps:
        await keep(volume, tar(member("0/log", step.name.encode())), ["directory", "missing"], step=step)
    for _ in range(2):  # idempotent
        await volume.start_attempt(KEY, 2, ["one", "two"])
    top = trial_path(volume)
    logs = {str(path.relative_to(top)): path.read_text() for path in top.rglob("log")}
    assert logs == {
        "steps/one/agent/log": "one",
        "steps/two/agent/log": "two",
        "attempts/1/steps/three/agent/log": "three",
    }


async def test_only_the_commits_of_a_lineage_are_read(volume: ResultsVolume) -> None:
    made = await two(volume)
    for other in ((1, 1), (3, 0)):
        file_of(volume, other, "commit.json").mkdir(parents=True)  # reading it would raise
    found = await volume.checkpoints.lineage(KEY, (2, 1))
    assert (dict(found.commits), dict(found.damaged)) == ({each.id: each for each in made}, {})
    assert set((await volume.checkpoints.lineage(KEY, (1, 0))).commits) == {(1, 0)}
    assert (await volume.checkpoints.lineage(KEY, (4, 0))).commits == {}
    file_of(volume, (1, 0), "commit.json").write_bytes(b"{")
    assert (await volume.checkpoints.lineage(KEY, (2, 1))).damaged == {(1, 0): "its commit is not readable"}


async def test_checkpoints_that_are_given_up_use_no_room_and_keep_their_commits(tmp_path: Path) -> None:
    volume = ResultsVolume(tmp_path, checkpoint_limits=lambda _: ResultsLimits(*[Amount(1_000_000, 100)] * 3))
    first, second = await two(volume)
    for _ in range(2):  # idempotent
        await volume.checkpoints.give_up(KEY)
        assert (await volume.checkpoints.stored(KEY)).commits == {}
        assert dict((await volume.checkpoints.lineage(KEY, (2, 1))).commits) == {(1, 0): first, (2, 1): second}
    again = ResultsVolume(tmp_path, checkpoint_limits=lambda _: ResultsLimits(*[Amount(1_000_000, 100)] * 3))
    for each in (volume, again):
        assert (await each.checkpoints.headroom(KEY, 3, 0)).bytes == 1_000_000
        each.close()


async def test_while_checkpoints_are_given_up_none_is_without_one_below_it(
    volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two(volume)
    unlink, left = Path.unlink, 1

    def dying(self: Path, missing_ok: bool = False) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("the operator dies")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", dying)
    with pytest.raises(StoreError):
        await volume.checkpoints.give_up(KEY)
    assert set((await volume.checkpoints.stored(KEY)).commits) == {(1, 0)}


async def test_a_discarded_checkpoint_uses_no_room_and_a_complete_one_stays(tmp_path: Path) -> None:
    volume = ResultsVolume(tmp_path, checkpoint_limits=lambda _: ResultsLimits(*[Amount(1_000_000, 100)] * 3))
    complete, passing = commit_of((1, 0)), commit_of((1, 1)).model_copy(update={"complete": False})
    for each in (complete, passing):
        await store(volume, each)
    for _ in range(2):  # idempotent
        for each in (complete, passing):
            await volume.checkpoints.discard(KEY, each.id)
    assert set((await volume.checkpoints.stored(KEY)).commits) == {(1, 0)}
    assert (await volume.checkpoints.headroom(KEY, 3, 0)).bytes == 1_000_000 - complete.bytes
    volume.close()


async def test_checkpoints_have_limits_of_their_own_and_use_no_room_of_results(tmp_path: Path) -> None:
    other = TrialKey("default", "other", "11111111-6d1f-4c0e-9b4e-1d1c6f1b2a3c")
    volume = ResultsVolume(tmp_path, checkpoint_limits=_limits)

    async def rooms() -> list[int]:
        again = ResultsVolume(tmp_path, checkpoint_limits=_limits)  # measures the files on the disk
        found = [(await each.checkpoints.headroom(key, 1, 1)).bytes for each in (volume, again) for key in (KEY, other)]
        again.close()
        return found

    results = await volume.collections.headroom(KEY, Collection(1, 0, "all"))
    assert await rooms() == [50_000, 50_000] * 2
    commit = commit_of((1, 0))
    for _ in range(2):
        await store(volume, commit)
    assert 50_000 < commit.bytes < 60_000
    assert await rooms() == [0, 60_000 - commit.bytes] * 2
    assert await volume.collections.headroom(KEY, Collection(1, 0, "all")) == results
    await volume.checkpoints.remove(KEY)
    assert await rooms() == [50_000, 50_000] * 2
    await store(volume, commit, key=other)
    await volume.remove(other)
    assert await rooms() == [50_000, 50_000] * 2
    volume.close()


async def test_a_checkpoint_on_a_full_volume_is_an_error_of_the_store(
    volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "create", lambda _: file_on_a_full_disk(1 << 22))
    with pytest.raises(StoreError, match="No space left on device"):
        async with volume.checkpoints.draft(KEY, Headroom(1 << 30, 10)) as draft:
            await draft.spools["layer"].write(bytes(3_000_000))


async def test_a_checkpoint_beyond_its_room_is_cut_off_and_leaves_nothing(volume: ResultsVolume) -> None:
    async with volume.checkpoints.draft(KEY, Headroom(1000, 10)) as draft:
        with pytest.raises(CollectionCut):
            await draft.spools["layer"].write(bytes(2**21))
    assert list(trial_path(volume).iterdir()) == []


def _limits(_: int) -> ResultsLimits:
    return ResultsLimits(step=Amount(NO_LIMIT, 100), trial=Amount(50_000, 100), namespace=Amount(60_000, 100))
