"""Test copies of another trial's checkpoints on the results volume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from multistep.api.trial.status import StepStatus
from multistep.engine.journal.results_limits import NO_LIMIT, Amount, ResultsLimits
from multistep.errors import CheckpointLost, StoreError
from multistep.store.checkpoints.checkpoint_files import CHECKPOINT_FILES
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from tests.unit.store.helpers import KEY
from tests.unit.store.test_checkpoints import commit_of, data_of, two

OTHER = TrialKey(KEY.namespace, "other", "u-2")


async def test_copies_are_a_chain_of_attempt_0_with_the_same_files(volume: ResultsVolume) -> None:
    chain = await two(volume)
    copies = await volume.checkpoints.adopt(OTHER, KEY, chain)
    first, second = copies
    assert [each.id for each in copies] == [(0, 0), (0, 1)]
    assert (first.base, second.base and (second.base.id, second.base.digest)) == (None, ((0, 0), first.digest))
    assert [(each.attempts, each.records) for each in copies] == [((0,), ({"id": "0/s0/end"},)), ((0,), ({"id": "0/s1/end"},))]
    stored = await volume.checkpoints.stored(OTHER)
    assert (dict(stored.commits), dict(stored.damaged)) == ({each.id: each for each in copies}, {})
    for layer, copy in zip(chain, copies, strict=True):
        assert copy.files == layer.files
        for name in CHECKPOINT_FILES:
            assert b"".join([chunk async for chunk in volume.checkpoints.contents(OTHER, copy, name)]) == data_of(layer.id)[name]


async def test_the_copy_of_a_last_checkpoint_is_none(volume: ResultsVolume) -> None:
    chain = await two(volume)
    last = await volume.checkpoints.complete(KEY, chain[1].model_copy(update={"final": True}))
    assert [each.final for each in await volume.checkpoints.adopt(OTHER, KEY, [chain[0], last])] == [False, False]


async def test_copies_have_the_names_of_the_trials_that_ran_the_steps(volume: ResultsVolume) -> None:
    first, second = await two(volume)
    mine, others = StepStatus(name="s0"), StepStatus(name="s1", trial="base")
    chain = [
        await volume.checkpoints.complete(KEY, first.model_copy(update={"steps": (mine,)})),
        await volume.checkpoints.complete(KEY, second.model_copy(update={"steps": (others,)})),
    ]
    copies = await volume.checkpoints.adopt(OTHER, KEY, chain)
    assert [[(step.name, step.trial) for step in each.steps] for each in copies] == [[("s0", KEY.name)], [("s1", "base")]]


async def test_copies_of_a_step_that_the_source_ran_again_meanwhile_are_replaced(volume: ResultsVolume) -> None:
    """An operator that stops between two copies must not leave a chain of layers of different attempts."""
    first, second = await two(volume)
    await volume.checkpoints.adopt(OTHER, KEY, [first])
    again = await volume.checkpoints.complete(KEY, first.model_copy(update={"entries": first.entries + 1}))
    copies = await volume.checkpoints.adopt(OTHER, KEY, [again, second])
    assert [each.entries for each in copies] == [again.entries, second.entries] and again.entries != first.entries
    stored = await volume.checkpoints.stored(OTHER)
    assert (dict(stored.commits), dict(stored.damaged)) == ({each.id: each for each in copies}, {})


async def test_copying_again_changes_nothing(volume: ResultsVolume) -> None:
    chain = await two(volume)
    assert await volume.checkpoints.adopt(OTHER, KEY, chain) == await volume.checkpoints.adopt(OTHER, KEY, chain)


async def test_copies_stay_when_the_source_is_deleted_and_the_source_when_copies_are(volume: ResultsVolume) -> None:
    chain = await two(volume)
    await volume.checkpoints.adopt(OTHER, KEY, chain)
    await volume.checkpoints.remove(OTHER)
    assert set((await volume.checkpoints.stored(KEY)).commits) == {(1, 0), (2, 1)}
    await volume.checkpoints.adopt(OTHER, KEY, chain)
    await volume.checkpoints.remove(KEY)
    assert set((await volume.checkpoints.stored(OTHER)).commits) == {(0, 0), (0, 1)}


async def test_a_file_system_without_hard_links_gets_copies(volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = await two(volume)

    def refuse(*_: object) -> None:
        raise PermissionError("hard links are not supported")

    monkeypatch.setattr("os.link", refuse)
    copies = await volume.checkpoints.adopt(OTHER, KEY, chain)
    assert b"".join([chunk async for chunk in volume.checkpoints.contents(OTHER, copies[1], "layer")]) == data_of((2, 1))["layer"]


async def test_a_source_that_was_deleted_meanwhile_is_a_lost_checkpoint(volume: ResultsVolume) -> None:
    chain = await two(volume)
    shutil.rmtree(volume.disk.path(KEY))
    with pytest.raises(CheckpointLost, match=f"a checkpoint of trial {KEY.name} was deleted"):
        await volume.checkpoints.adopt(OTHER, KEY, chain)
    assert (await volume.checkpoints.stored(OTHER)).commits == {}


async def test_copies_count_toward_the_limits_of_their_trial_and_namespace(tmp_path: Path) -> None:
    size = commit_of((1, 0)).bytes
    most = Amount(NO_LIMIT, 100)
    limits = ResultsLimits(step=most, trial=most, namespace=Amount(3 * size, 100))
    volume = ResultsVolume(tmp_path, checkpoint_limits=lambda _: limits)
    chain = await two(volume)
    with pytest.raises(StoreError, match=f"have {2 * size} bytes; the limit of the namespace's checkpoints leaves {size}"):
        await volume.checkpoints.adopt(OTHER, KEY, chain)
    await volume.checkpoints.adopt(OTHER, KEY, chain[:1])
    assert (await volume.checkpoints.headroom(OTHER, 1, 1)).bytes == 0


@pytest.mark.parametrize("copied", [1, 2], ids=["in part", "completely"])
async def test_copying_again_after_a_crash_needs_room_for_what_is_missing_only(tmp_path: Path, copied: int) -> None:
    size = commit_of((1, 0)).bytes
    most = Amount(NO_LIMIT, 100)
    limits = ResultsLimits(step=most, trial=Amount(2 * size, 100), namespace=most)
    volume = ResultsVolume(tmp_path, checkpoint_limits=lambda _: limits)
    chain = await two(volume)
    await volume.checkpoints.adopt(OTHER, KEY, chain[:copied])
    again = ResultsVolume(tmp_path, checkpoint_limits=lambda _: limits)
    assert [each.id for each in await again.checkpoints.adopt(OTHER, KEY, chain)] == [(0, 0), (0, 1)]
