"""Test the timeouts and the concurrency limit of storing and restoring checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import cast

import pytest

from multistep.reconcile.trial.session_state import DriveState
from multistep.runner_client.frame_stream import DATA, encode
from multistep.store.checkpoints.checkpoint_files import CheckpointCommit, CheckpointFile
from multistep.store.files.trial_key import TrialKey
from tests.support.fake_runner import FakeRunner
from tests.support.fake_volume import FakeCheckpoints
from tests.support.virtual_time import in_virtual_time
from tests.support.world import World, manifest
from tests.unit.reconcile.test_checkpoints import CHECKPOINTS, DURATIONS, at_step, lose_pod, world_of

OTHER = ("other", "x")
BEAT = 50.0


def slow_volume(patch: pytest.MonkeyPatch, world: World, seconds: float) -> None:
    """Delay each read of a checkpoint's file by this time. Meanwhile, the runner sends keep-alive frames."""
    at_once = FakeCheckpoints.contents

    async def contents(
        self: FakeCheckpoints, key: TrialKey, commit: CheckpointCommit, name: CheckpointFile
    ) -> AsyncGenerator[bytes, None]:
        for _ in range(int(seconds / BEAT)):
            await asyncio.sleep(BEAT)
            world.runner.streams[-1]._answers.put_nowait(encode(DATA, b""))
        async for chunk in at_once(self, key, commit, name):
            yield chunk

    patch.setattr(FakeCheckpoints, "contents", contents)


def asked(world: World, op: str) -> int:
    return [each["op"] for runner in world.cluster.runners.values() for each in runner.requests].count(op)


@in_virtual_time
async def test_a_restore_that_takes_longer_than_a_session_lasts_is_not_cut() -> None:
    world = world_of()
    with pytest.MonkeyPatch.context() as patch:
        slow_volume(patch, world, 1000.0)
        await at_step(world, "c")
        lose_pod(world)
        await at_step(world, "c", attempt=2)
    assert (world.errors, asked(world, "restore")) == ([], 1)


async def test_a_restore_that_took_too_long_in_all_sessions_is_the_checkpoints_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    await at_step(world, "b")
    monkeypatch.setattr(FakeRunner, "unrestorable", "TooSlow")
    lose_pod(world)
    await at_step(world, "a", attempt=3)
    assert [(each.reason, each.message) for each in world.status.attempts[1:]] == [
        ("RestoreFailed", "TooSlow: not possible; the checkpoint after step 1 of attempt 1 is not used: it could not be restored")
    ]


async def test_a_restore_for_a_verifier_that_took_too_long_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRunner, "unrestorable", "TooSlow")
    world = World(trial=manifest({"verifier": {"isolation": "Separate"}, "infrastructureRetries": 0}))
    await world.run()
    assert world.condition[:2] == ("Failed", "VerifierEnvironmentFailed")
    assert world.status.failure is not None and world.status.score is None


@in_virtual_time
async def test_no_restore_holds_a_session_for_ever() -> None:
    world = world_of()
    with pytest.MonkeyPatch.context() as patch:
        slow_volume(patch, world, 1e6)
        await at_step(world, "b")
        lose_pod(world)
        await world.run(until=lambda: world.errors)
    assert "the runner did not finish within 11100 s" in str(world.errors[0])
    assert all(stream.closed for stream in world.runner.streams)


@in_virtual_time
async def test_the_timeout_of_a_session_continues_after_an_operation_with_a_limit_of_its_own() -> None:
    now = asyncio.get_running_loop().time
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(900) as timeout:
            await asyncio.sleep(300)
            with DriveState.limited(cast(DriveState, SimpleNamespace(deadline=timeout)), 5000):
                await asyncio.sleep(4000)
            await asyncio.sleep(10_000)
    assert now() == 4900
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(900) as timeout:
            with DriveState.limited(cast(DriveState, SimpleNamespace(deadline=timeout)), 5000):
                await asyncio.sleep(10_000)
    assert now() == 9900


async def test_a_trial_that_waits_for_its_turn_to_store_a_checkpoint_holds_no_session_and_no_frozen_environment() -> None:
    world = World(trial=manifest(CHECKPOINTS), durations=DURATIONS, settings={"checkpoint_transfers": 1})
    transfers = world.reconciler.admission.transfers
    assert transfers.acquire(OTHER)
    await world.run()
    assert (world.status.phase, transfers.waiting, asked(world, "checkpoint")) == ("Running", 1, 0)
    assert all(stream.closed for stream in world.runner.streams) and world.reconciler.admission.execs.held == 0
    transfers.release(OTHER)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert (asked(world, "checkpoint"), transfers.held, transfers.waiting) == (2, 0, 0)


async def test_a_restore_waits_for_its_turn_too() -> None:
    world = World(trial=manifest(CHECKPOINTS), durations=DURATIONS, settings={"checkpoint_transfers": 1})
    await at_step(world, "b")
    assert world.reconciler.admission.transfers.acquire(OTHER)
    lose_pod(world)
    await world.run()
    assert (world.status.attempt, world.status.phase, asked(world, "restore")) == (2, "Running", 0)
    world.reconciler.admission.transfers.release(OTHER)
    await world.run()
    assert (world.condition[0], asked(world, "restore")) == ("Complete", 1)


async def test_a_trial_keeps_its_turn_while_it_is_queued_for_a_session() -> None:
    settings = {"checkpoint_transfers": 1, "exec_sessions": 3}
    world = World(trial=manifest(CHECKPOINTS), durations=DURATIONS, settings=settings)
    transfers, execs = world.reconciler.admission.transfers, world.reconciler.admission.execs
    assert transfers.acquire(OTHER)
    await world.run()
    assert execs.acquire(OTHER, 3)
    transfers.release(OTHER)
    await world.reconcile()
    assert (transfers.held, execs.waiting, asked(world, "checkpoint")) == (1, 1, 0)
    execs.release(OTHER)
    await world.run()
    assert (world.condition[0], transfers.held) == ("Complete", 0)


async def test_a_trial_that_is_stopped_while_it_is_queued_for_a_session_gives_its_turn_away() -> None:
    """Regression: it held its slot of transfers until the limit of sessions granted what nobody needed any more."""
    settings = {"checkpoint_transfers": 1, "exec_sessions": 3}
    world = World(trial=manifest(CHECKPOINTS), durations=DURATIONS, settings=settings)
    admission = world.reconciler.admission
    assert admission.transfers.acquire(OTHER)
    await world.run()
    assert admission.execs.acquire(OTHER, 3)
    admission.transfers.release(OTHER)
    await world.reconcile()
    assert admission.transfers.held == 1
    world.change_trial(stop=True)
    await world.reconcile()
    assert (world.condition[1], admission.transfers.held) == ("Stopped", 0)
