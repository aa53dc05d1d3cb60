"""Checkpoints on the results volume: only a complete, unchanged chain for the same image is used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from multistep.engine.room import Amount, Limits
from multistep.errors import StoreError
from multistep.store.checkpoints import NAMES, Blob, Commit, Name
from multistep.store.volume import Spool, TrialKey, Volume
from tests.unit.store.helpers import KEY, Step, keep, member, tar, trial_path

IMAGE = "docker.io/library/debian@sha256:1"
Id = tuple[int, int]


def data_of(id: Id) -> dict[Name, bytes]:
    return {name: f"{name} of attempt {id[0]}, step {id[1]}".encode() * 1000 for name in NAMES}


def commit_of(id: Id, base: Id | None = None, image: str = IMAGE) -> Commit:
    files = {name: Blob(sha256=hashlib.sha256(data).hexdigest(), size=len(data)) for name, data in data_of(id).items()}
    return Commit(
        attempt=id[0], step=id[1], digest=f"d of {id}", files=files, entries=3, image_id=image, base=base,
        records=({"id": f"{id[0]}/s{id[1]}/end"},),
    )  # fmt: skip


async def stored(volume: Volume, commit: Commit, more: bytes = b"") -> None:
    async with volume.collections.spool(KEY) as layer, volume.collections.spool(KEY) as manifest:
        spools: dict[Name, Spool] = {"layer": layer, "manifest": manifest}
        for name, data in data_of(commit.id).items():
            await spools[name].write(data + more)
        await volume.checkpoints.keep(KEY, spools, commit)


async def chain(volume: Volume) -> list[Id]:
    return [each.id for each in (await volume.checkpoints.last(KEY, IMAGE))[0]]


def file_of(volume: Volume, id: Id, name: str = "layer") -> Path:
    return trial_path(volume) / ".checkpoints" / f"{id[0]}-{id[1]}" / name


async def three(volume: Volume) -> None:
    await stored(volume, commit_of((1, 0)))
    await stored(volume, commit_of((1, 1), base=(1, 0)))
    await stored(volume, commit_of((2, 2), base=(1, 1)))


async def test_the_last_checkpoint_is_a_chain_of_layers_from_the_image_on(volume: Volume) -> None:
    assert await chain(volume) == []
    await three(volume)
    found, refused = await volume.checkpoints.last(KEY, IMAGE)
    assert ([each.id for each in found], refused) == ([(1, 0), (1, 1), (2, 2)], ())
    for name, data in data_of((1, 1)).items():
        assert b"".join([chunk async for chunk in volume.checkpoints.contents(KEY, found[1], name)]) == data
    assert await volume.checkpoints.chain(KEY, (1, 1)) == found[:2]
    assert await volume.checkpoints.all(KEY) == {each.id: each for each in found}


async def test_of_two_checkpoints_after_a_step_the_later_attempts_counts(volume: Volume) -> None:
    await three(volume)
    await stored(volume, commit_of((3, 2), base=(1, 1)))
    assert await chain(volume) == [(1, 0), (1, 1), (3, 2)]


async def test_a_checkpoint_that_exists_is_not_replaced(volume: Volume) -> None:
    await stored(volume, commit_of((1, 0)))
    await stored(volume, commit_of((1, 0)), b"packed again after a crash")
    assert file_of(volume, (1, 0)).read_bytes() == data_of((1, 0))["layer"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _change(path: Path) -> None:
    path.write_bytes(b"X" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("damage", "why"), [(_cut, "bytes instead of"), (_change, "was changed"), (Path.unlink, "cannot be read: No such file")]
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("broken", "used"), [((2, 2), [(1, 0), (1, 1)]), ((1, 1), [(1, 0)]), ((1, 0), [])])
async def test_instead_of_a_damaged_checkpoint_the_one_before_is_used(
    damage: Callable[[Path], None], why: str, name: str, broken: Id, used: list[Id], volume: Volume
) -> None:
    await three(volume)
    damage(file_of(volume, broken, name))
    found, refused = await volume.checkpoints.last(KEY, IMAGE)
    assert [each.id for each in found] == used
    assert len(refused) == 3 - len(used) and all(why in each for each in refused), refused
    assert refused[0].startswith("the checkpoint after step 3 of attempt 2 is not used: ")


async def test_a_layer_without_a_commit_does_not_exist(volume: Volume) -> None:
    await three(volume)
    commit = file_of(volume, (1, 1), "commit.json")
    commit.unlink()
    found, refused = await volume.checkpoints.last(KEY, IMAGE)
    assert [each.id for each in found] == [(1, 0)]
    assert "the layer of step 2 of attempt 1 is missing" in refused[0]
    commit.write_text('{"attempt": 1}')
    found, refused = await volume.checkpoints.last(KEY, IMAGE)
    assert [each.id for each in found] == [(1, 0)] and "its commit is not readable" in refused[0]


async def test_a_checkpoint_that_could_not_be_restored_is_not_used_again(volume: Volume) -> None:
    await three(volume)
    found, refused = await volume.checkpoints.last(KEY, IMAGE, failed=["d of (2, 2)"])
    assert [each.id for each in found] == [(1, 0), (1, 1)] and refused[0].endswith("it could not be restored")


async def test_a_checkpoint_of_another_image_is_not_used(volume: Volume) -> None:
    await stored(volume, commit_of((1, 0), image="other@sha256:2"))
    found, refused = await volume.checkpoints.last(KEY, IMAGE)
    why = f"it was made in the image other@sha256:2, and this pod has {IMAGE}"
    assert (found, refused) == ((), (f"the checkpoint after step 1 of attempt 1 is not used: {why}",))


async def test_missing_checkpoints_are_an_error_and_deleted_ones_are_gone(volume: Volume) -> None:
    await three(volume)
    await volume.checkpoints.remove(KEY)
    await volume.checkpoints.remove(KEY)
    assert await chain(volume) == []
    with pytest.raises(StoreError, match="the layer of step 1 of attempt 1 is missing"):
        await volume.checkpoints.chain(KEY, (1, 0))


async def test_an_attempt_that_continues_keeps_the_results_of_its_steps(volume: Volume) -> None:
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


async def test_checkpoints_use_the_room_of_their_trial_and_namespace_until_they_are_deleted(volume: Volume) -> None:
    other = TrialKey("default", "other", "11111111-6d1f-4c0e-9b4e-1d1c6f1b2a3c")

    async def rooms() -> list[int]:
        again = Volume(volume.root, limits=_limits)  # reads the usage from the volume
        found = [(await each.checkpoints.room(key, 1, 1)).bytes for each in (volume, again) for key in (KEY, other)]
        again.close()
        return found

    volume.close()
    volume = Volume(volume.root, limits=_limits)
    assert await rooms() == [50_000, 50_000] * 2
    commit = commit_of((1, 0))
    await stored(volume, commit)
    await stored(volume, commit)
    assert 50_000 < commit.bytes < 60_000
    assert await rooms() == [0, 60_000 - commit.bytes] * 2
    await volume.checkpoints.remove(KEY)
    assert await rooms() == [50_000, 50_000] * 2
    volume.close()


def _limits(_: int) -> Limits:
    return Limits(step=Amount(50_000, 100), trial=Amount(50_000, 100), namespace=Amount(60_000, 100))
