"""The work queue: one worker at a time per key, timers, back-off."""

from __future__ import annotations

import asyncio

import pytest

from multistep.errors import Unavailable
from multistep.reconcile import workqueue
from multistep.reconcile.workqueue import Key, WorkQueue

A, B = ("ns", "a"), ("ns", "b")


class Worker:
    """Notes what it was called for; blocks while ``gate`` is closed."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self.calls: list[Key] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.busy = self.most_busy = 0
        self.answers = list(answers)

    async def __call__(self, key: Key) -> float | None:
        self.calls.append(key)
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        await self.gate.wait()
        self.busy -= 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


async def settled(queue: WorkQueue) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    assert queue.depth == 0


async def test_any_number_of_events_makes_one_look() -> None:
    worker = Worker()
    queue = WorkQueue(worker, workers=2)
    for _ in range(5):
        queue.add(A)
    queue.start()
    await settled(queue)
    assert worker.calls == [A]
    await queue.stop()


async def test_a_key_that_is_worked_on_is_looked_at_once_more_and_never_twice_at_a_time() -> None:
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


async def test_a_key_comes_again_when_its_work_said_so() -> None:
    worker = Worker(0.01)
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add(A)
    await asyncio.sleep(0.1)
    assert worker.calls == [A, A]
    await queue.stop()


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
async def test_failures_pause_longer_each_time_and_a_success_forgets_them(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "FIRST_BACKOFF_SECONDS", 0.001)
    worker = Worker(error, error, None)
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add(A)
    await asyncio.sleep(0.1)
    assert worker.calls == [A, A, A] and not queue._failures
    await queue.stop()


def test_pauses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = WorkQueue(Worker(), workers=1)
    monkeypatch.setattr(queue, "add_after", lambda *_: None)
    pauses = [queue._back_off(A) for _ in range(2000)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0] and pauses[-1] == 60.0


async def test_told_to_stop_it_lets_a_look_end_and_begins_no_other() -> None:
    worker = Worker(0.0)
    worker.gate.clear()
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add(A)
    queue.add(B)
    for _ in range(5):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(queue.stop(within_seconds=60))
    await asyncio.sleep(0)
    queue.add(A)
    queue.add_after(B, 0.0)
    worker.gate.set()
    await stopping
    await asyncio.sleep(0.01)
    assert (worker.calls, worker.busy, queue.depth) == ([A], 0, 0)


async def test_a_look_that_does_not_end_in_time_is_ended() -> None:
    worker = Worker()
    worker.gate.clear()
    queue = WorkQueue(worker, workers=1)
    queue.start()
    queue.add(A)
    for _ in range(5):
        await asyncio.sleep(0)
    await queue.stop(within_seconds=0.01)
    assert (worker.calls, worker.busy) == ([A], 1)  # it did not come back
