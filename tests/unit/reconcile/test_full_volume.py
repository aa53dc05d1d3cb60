"""A full results volume is reported in the trial's status; writes are retried, and no reward changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from multistep.errors import InvalidSpec, StoreError
from tests.support.fake_volume import FakeVolume
from tests.support.world import World, manifest

FULL = "default/t/trial-uid: No space left on device"
WRITES = ["store_step a", "store_step c", "finish", "redact"]


class FullVolume(FakeVolume):
    """A results volume that becomes full at the write named ``at``, until ``has_room`` is set. again: number of failed writes."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at, self.full, self.has_room, self.again = at, False, False, 0

    @contextmanager
    def _write(self, what: str) -> Iterator[None]:
        self.full = self.full or what == self.at
        if self.full and not self.has_room:
            self.again += 1
            raise StoreError(FULL)
        with super()._write(what):
            yield


async def filled(at: str, **options: object) -> tuple[World, FullVolume]:
    volume = FullVolume(at)
    world = World(volume=volume, **options)  # type: ignore[arg-type]
    await world.run(until=lambda: volume.again > 3)
    return world, volume


@pytest.mark.parametrize("at", WRITES)
async def test_it_is_reported_and_no_reward_is_invented_meanwhile(at: str) -> None:
    world, _ = await filled(at)
    assert world.condition == ("Reconciling", "ResultsNotWritable", FULL)
    assert (world.status.phase, world.status.rewards, world.status.results) == ("Running", None, None)
    assert b"multistep_store_failures_total 4.0" in world.metrics.render()
    assert [str(error) for error in world.errors] == [FULL] * 4


@pytest.mark.parametrize("at", WRITES)
@pytest.mark.parametrize("durations", [{}, {"a/agent": 100.0, "c/verifier": 40.0}], ids=["short", "long"])
async def test_the_trial_continues_when_there_is_room_and_no_phase_starts_twice(at: str, durations: dict[str, float]) -> None:
    world, volume = await filled(at, durations=durations)
    volume.has_room, since = True, world.now
    await world.run()
    calm = World(durations=durations)
    await calm.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert world.status.rewards == calm.status.rewards and world.kept.steps == calm.kept.steps
    assert set(world.runner.starts.values()) == {1}
    assert len(world.cluster.runners) == 1
    assert world.now - since <= sum(durations.values()) + 5, "it is tried again with the queue's back-off, not the poll's"


@pytest.mark.parametrize("at", WRITES)
async def test_a_trial_does_not_miss_its_deadline_because_the_volume_is_full(at: str) -> None:
    world, volume = await filled(at, durations={"a/agent": 600.0}, trial=manifest({"activeDeadlineSeconds": 1000}))
    world.now += 2000
    await world.reconcile(2)
    volume.has_room = True
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")


class HangingVolume(FullVolume):
    """A full volume whose first failing write takes long. hang: lets the time pass."""

    hang: Callable[[], None]

    @contextmanager
    def _write(self, what: str) -> Iterator[None]:
        if what == self.at and not self.again:
            self.hang()
        with super()._write(what):
            yield


async def test_a_trial_does_not_miss_its_deadline_while_the_write_of_its_results_hangs() -> None:
    """If an object store does not answer, a write fails only after its timeout."""

    def hang() -> None:
        world.now += 2000

    volume = HangingVolume("finish")
    volume.hang = hang
    world = World(volume=volume, durations={"a/agent": 600.0}, trial=manifest({"activeDeadlineSeconds": 1000}))
    await world.run(until=lambda: volume.again > 3)
    volume.has_room = True
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")


async def test_what_failed_after_a_long_phase_is_tried_again_soon_not_at_the_next_poll() -> None:
    world, _ = await filled("store_step a", durations={"a/verifier": 30.0})
    assert [wait for wait in world.waits[-4:] if wait is not None and wait < 5] == [0.5, 1.0, 2.0, 4.0]


async def test_an_invalid_trial_that_cannot_end_while_the_volume_is_full_says_so() -> None:
    """Its task turns out to be invalid, e.g. after an upgrade of the operator; the end needs the volume, too."""
    volume = FullVolume("finish")
    world = World(volume=volume, durations={"a/agent": 600.0}, trial=manifest({"activeDeadlineSeconds": 1000}))
    await world.run(until=lambda: world.status.has_own_step)

    async def drive(*_: object) -> None:
        raise InvalidSpec("the task is invalid")

    world.reconciler.trials.driver.drive = drive  # type: ignore[method-assign,assignment]
    await world.run(until=lambda: volume.again > 3)
    assert world.condition == ("Reconciling", "ResultsNotWritable", FULL)
    assert [each["note"] for each in world.cluster.events if each["reason"] == "ResultsNotWritable"] == [FULL]
    assert b"multistep_store_failures_total 4.0" in world.metrics.render()
    world.now += 2000
    await world.reconcile(2)
    volume.has_room = True
    await world.run()
    assert world.condition == ("Failed", "InvalidSpec", "the task is invalid") and world.status.score is None
