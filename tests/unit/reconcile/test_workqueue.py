"""The work queue: one worker at a time per key, fair turns between namespaces, timers, back-off."""

from __future__ import annotations

import asyncio

import pytest

from multistep.backoff import Backoff
from multistep.errors import Unavailable
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.queue import work_queue
from multistep.reconcile.queue.work_queue import Requeue, WorkQueue
from tests.support.virtual_time import in_virtual_time

A, B = ("ns", "a"), ("ns", "b")


class Worker:
    """A worker that records the keys it is called with; it blocks while ``gate`` is not set."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self.calls: list[Key] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.busy = self.most_busy = 0
        self.answers = list(answers)

    async def __call__(self, key: Key) -> Requeue:
        self.calls.append(key)
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        await self.gate.wait()
        self.busy -= 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return Requeue(answer)


async def settled(queue: WorkQueue, turns: int = 20) -> None:
    for _ in range(2 * turns):
        await asyncio.sleep(0)
    assert queue.depth == 0


@in_virtual_time
async def test_any_number_of_events_cause_one_reconcile() -> None:
    worker = Worker()
    queue = WorkQueue(worker, workers=2)
    for _ in range(5):
        queue.add(A)
    queue.start()
    await settled(queue)
    assert worker.calls == [A]
    await queue.stop()


@in_virtual_time
async def test_a_key_that_is_worked_on_is_requeued_once_and_never_reconciled_twice_at_a_time() -> None:
    worker = Worker()
    queue = WorkQueue(worker, workers=4)
    queue.start()
    worker.gate.clear()
    queue.add(A)
    await asyncio.sleep(0.01)
    queue.add(A)
    queue.add(A)
    queue.add(B)
    await asyncio.sleep(0.01)
    assert worker.calls == [A, B] and worker.most_busy == 2
    worker.gate.set()
    await settled(queue)
    assert worker.calls == [A, B, A]
    await queue.stop()


@in_virtual_time
async def test_a_key_comes_again_when_its_work_returned_a_delay() -> None:
    worker = Worker(0.01)
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add(A)
    await asyncio.sleep(0.1)
    assert worker.calls == [A, A]
    await queue.stop()


@in_virtual_time
async def test_an_event_comes_before_a_timer_and_replaces_it() -> None:
    worker = Worker()
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add_after(A, 60)
    queue.add(A)
    await settled(queue)
    assert worker.calls == [A] and not queue._timers
    await queue.stop()


@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("a bug")])
@in_virtual_time
async def test_failures_pause_longer_each_time_and_a_success_forgets_them(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_queue, "BACKOFF", Backoff(0.001, 1.0))
    worker = Worker(error, error, None)
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add(A)
    await asyncio.sleep(0.1)
    assert worker.calls == [A, A, A] and not queue._failures
    await queue.stop()


@in_virtual_time
async def test_few_keys_of_a_namespace_do_not_wait_behind_many_of_another() -> None:
    worker = Worker()
    queue = WorkQueue(worker, workers=1)
    crowd = [("crowd", f"t{number}") for number in range(5000)]
    for key in [*crowd, *(("few", str(number)) for number in range(5))]:
        queue.add(key)
    queue.start()
    await settled(queue, turns=6000)
    assert [key for key in worker.calls[:10] if key[0] == "few"] == [("few", str(number)) for number in range(5)]
    assert [key for key in worker.calls if key[0] == "crowd"] == crowd  # first come, first served
    await queue.stop()


@in_virtual_time
async def test_never_more_workers_than_were_allowed() -> None:
    worker = Worker()
    worker.gate.clear()
    queue = WorkQueue(worker, workers=3)
    queue.start()
    for number in range(10):
        queue.add(("ns", str(number)))
    await asyncio.sleep(0.01)
    assert (worker.busy, queue.depth) == (3, 7)
    worker.gate.set()
    await settled(queue)
    assert (worker.most_busy, len(worker.calls)) == (3, 10)
    await queue.stop()


@in_virtual_time
async def test_a_queue_that_stops_starts_nothing_and_lets_what_continues_end_for_a_while() -> None:
    worker = Worker(5.0)
    worker.gate.clear()
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add(A)
    await asyncio.sleep(0.01)
    queue.add(B)
    asyncio.get_running_loop().call_later(0.05, worker.gate.set)
    await queue.stop(within_seconds=10)
    queue.add(B)
    assert (worker.calls, worker.busy, queue._busy) == ([A], 0, {})
    assert all(timer.handle.cancelled() for timer in queue._timers.values())


@in_virtual_time
async def test_a_queue_that_stops_ends_what_takes_too_long() -> None:
    worker = Worker()
    worker.gate.clear()
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add(A)
    await asyncio.sleep(0.01)
    await queue.stop(within_seconds=0.01)
    assert (worker.busy, queue._busy) == (1, {})  # the worker was cancelled during its call


def pauses(*errors: Unavailable, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    queue = WorkQueue(Worker(), workers=1)
    monkeypatch.setattr(queue, "add_after", lambda *_: None)
    return [queue._back_off(A, error) for error in errors]


def test_pauses_double_up_to_a_bound_and_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pauses(*[Unavailable("away")] * 2000, monkeypatch=monkeypatch)
    for pause, least in zip(found, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *[48.0] * 1993], strict=True):
        assert least <= pause <= min(60.0, least * 1.25)
    assert len(set(found[-1000:])) > 900


@pytest.mark.parametrize(("asked", "least"), [(0.0, 0.5), (7.0, 7.0), (120.0, 120.0), (86400.0, 300.0)])
def test_a_pause_is_as_long_as_the_server_asked_for_up_to_a_sane_bound(
    asked: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pause,) = pauses(Unavailable("busy", status=429, retry_after=asked), monkeypatch=monkeypatch)
    assert least <= pause <= least * 1.25


@in_virtual_time
async def test_a_key_that_is_due_sooner_stays_so() -> None:
    worker = Worker(0.01)
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add_within(A, 0.0)
    queue.add_within(A, 1000.0)
    while worker.calls != [A, A]:  # the first call's result requeues the key after 0.01 s
        await asyncio.sleep(0.001)
    await queue.stop()


@in_virtual_time
async def test_events_that_come_while_a_key_is_worked_on_are_not_put_off_by_what_its_work_asks_for() -> None:
    worker = Worker(1000.0)
    queue = WorkQueue(worker, workers=1)
    worker.gate.clear()
    queue.start()
    queue.add(A)
    await asyncio.sleep(0)
    queue.add_within(A, 0.01)
    worker.gate.set()
    while worker.calls != [A, A]:
        await asyncio.sleep(0.001)
    await queue.stop()


async def test_events_at_the_same_moment_requeue_a_key_once_on_the_loop_of_production() -> None:
    """In production, uvloop's call_later returns handles without a due time for tiny delays, so the queue stores due times."""
    worker = Worker()
    queue = WorkQueue(worker, workers=1)
    queue.start()
    for seconds in (0.0, 0.0002, 0.0, 1000.0):
        queue.add_within(A, seconds)
    async with asyncio.timeout(60):
        while not worker.calls:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert worker.calls == [A]
    await queue.stop()
