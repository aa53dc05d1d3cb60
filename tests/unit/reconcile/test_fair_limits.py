"""For any order of events: never more holders than slots, no starvation, and no lost slot, even if jobs are cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key
from multistep.reconcile.loading.background_jobs import BackgroundJobs
from multistep.reconcile.queue.work_queue import Requeue, WorkQueue
from tests.support.virtual_time import in_virtual_time

KEYS = st.tuples(st.sampled_from("abc"), st.sampled_from("1234"))
Events = list[tuple[str, Key, int]]
EVENTS = st.lists(st.tuples(st.sampled_from(["acquire", "acquire", "first", "release"]), KEYS, st.integers(1, 3)), max_size=60)


class Holders:
    """A limit, the keys that hold its slots, and the keys that wait for slots. served: all keys that got slots, in order."""

    def __init__(self, slots: int, max_per_namespace: int | None) -> None:
        self.limit = ConcurrencyLimit(slots, self._grant, max_per_namespace=max_per_namespace)
        self.slots, self.max_per_namespace = slots, max_per_namespace
        self.wanted: dict[Key, int] = {}
        self.held: dict[Key, int] = {}
        self.served: list[Key] = []

    def acquire(self, key: Key, slots: int = 1, *, first: bool = False) -> None:
        queued = key in self.wanted or key in self.held
        if not queued:
            self.wanted[key] = min(slots, self.slots)
        if self.limit.acquire(key, slots, first=first) and key in self.wanted:
            self._grant(key)

    def release(self, key: Key) -> None:
        self.held.pop(key, None)  # before limit.release, which may grant the slot to another key
        self.limit.release(key)

    def _grant(self, key: Key) -> None:
        assert key not in self.held
        self.held[key] = self.wanted.pop(key)
        self.served.append(key)

    def check(self) -> None:
        assert self.limit.held == sum(self.held.values()) <= self.slots
        assert self.limit.waiting == len(self.wanted)
        if self.max_per_namespace is not None:
            before_last = Counter(namespace for namespace, _ in self.held)
            assert all(count <= max(1, self.max_per_namespace) for count in before_last.values())


@given(st.integers(1, 4), st.one_of(st.none(), st.integers(0, 3)), EVENTS)
def test_any_events_keep_the_limit_and_everybody_is_served(
    slots: int, max_per_namespace: int | None, events: list[tuple[str, Key, int]]
) -> None:
    @in_virtual_time
    async def check() -> None:
        holders = Holders(slots, max_per_namespace)
        for event, key, wanted in events:
            if event == "release":
                holders.release(key)
            else:
                holders.acquire(key, wanted if max_per_namespace is None else 1, first=event == "first")
            holders.check()
        for _ in range(20):  # no starvation: each queued key gets its slots after the holders release theirs
            for key in list(holders.held):
                holders.release(key)
                holders.check()
        assert not holders.wanted and not holders.held
        for number in range(slots):  # no slot was lost: all slots can be acquired
            assert holders.limit.acquire((f"new{number}", "x"))
        assert not holders.limit.acquire(("late", "x"))

    check()


@given(st.integers(1, 4), st.lists(st.integers(1, 12), min_size=2, max_size=5))
def test_queued_namespaces_are_served_in_turn(slots: int, sizes: list[int]) -> None:
    """A namespace with one key is served after about one grant for each namespace, however many keys the others have queued."""

    @in_virtual_time
    async def check() -> None:
        holders = Holders(slots, None)
        for namespace, size in enumerate(sizes):
            for number in range(size):
                holders.acquire((str(namespace), str(number)))
        holders.acquire(("last", "x"))
        before = len(holders.served)
        while ("last", "x") not in holders.served:
            holders.release(next(iter(holders.held)))
        assert len(holders.served) - before <= slots + len(sizes)
        order = [number for namespace, number in holders.served if namespace == "0"]
        assert order == sorted(order, key=int)  # first in, first out

    check()


JOBS = st.lists(
    st.tuples(st.sampled_from(["start", "start", "cancel", "end", "settle", "run"]), KEYS, st.integers(0, 3)), max_size=50
)


@given(st.integers(1, 4), JOBS)
def test_any_jobs_keep_the_limit_and_lose_no_slot_when_cancelled(slots: int, events: Events) -> None:
    @in_virtual_time
    async def check() -> None:
        # When a queued key gets a slot, this test starts no job with it: settle releases the slot.
        jobs: BackgroundJobs[tuple[Key, int], int] = BackgroundJobs(slots, lambda key: jobs.limit.settle(key))
        tasks: dict[tuple[Key, int], asyncio.Task[int]] = {}
        gates: dict[tuple[Key, int], asyncio.Event] = {}

        async def run(id: tuple[Key, int]) -> int:
            await gates[id].wait()
            return id[1]

        for event, key, number in events:
            id = key, number
            if event == "start":
                gates.setdefault(id, asyncio.Event()).clear()
                if (job := jobs.start(id, key, str(id), lambda id=id: run(id))) is not None:  # type: ignore[misc]
                    tasks[id], job.waiting[str(id)] = job.task, key
                else:
                    jobs.limit.settle(key)  # the end of the reconcile that asked
            elif event == "cancel" and id in tasks:
                tasks[id].cancel()  # perhaps before the task has started
            elif event == "end" and id in gates:
                gates[id].set()
            elif event == "settle":
                jobs.limit.settle(key)
            else:
                await asyncio.sleep(1)
            running = [task for task in tasks.values() if not task.done()]
            assert len(running) <= slots
        await jobs.stop()
        await asyncio.sleep(1)
        gates.update({((f"new{number}", "x"), 0): asyncio.Event() for number in range(slots)})
        started = [jobs.start(id, id[0], "u", lambda id=id: run(id)) for id in list(gates)[-slots:]]  # type: ignore[misc]
        assert None not in started
        await jobs.stop()

    check()


@in_virtual_time
async def test_trials_that_write_a_status_after_asking_in_vain_give_no_slot_away() -> None:
    """Regression: each slot was granted while the trial wrote that it is queued, and released unused at the end of this reconcile.
    While the API server was slow, as after a restore of its store, no trial's task was read."""
    jobs: BackgroundJobs[str, str] = BackgroundJobs(2, lambda key: queue.add(key))
    read: dict[Key, float] = {}

    async def job(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "read"

    async def reconcile(key: Key) -> Requeue:
        try:
            if key not in read and (started := jobs.start(key[1], key, key[1], lambda: job(1.0))) is not None:
                await started.task
                read[key] = asyncio.get_running_loop().time()
            elif key not in read:
                await asyncio.sleep(30.0)  # a write of the status that fails
            return Requeue(None)
        finally:
            jobs.limit.settle(key)

    queue = WorkQueue(reconcile, workers=10)
    queue.start()
    for number in range(4):
        queue.add(("ns", f"t{number}"))
        await asyncio.sleep(0.4)
    await asyncio.sleep(130.0)
    assert len(read) == 4
    await queue.stop()


@in_virtual_time
async def test_a_trial_with_a_task_holds_no_slot_while_its_reconcile_goes_on() -> None:
    """Regression: a trial that was queued, and then found its task in the cache, got a slot during its exec session, and kept it
    until the session ended. The other trials of its namespace stood at TaskFetching meanwhile."""
    woken: list[Key] = []
    jobs: BackgroundJobs[str, str] = BackgroundJobs(2, woken.append)
    gate = asyncio.Event()

    async def run() -> str:
        await gate.wait()
        return "done"

    first, busy, other = (("ns", name) for name in ("first", "busy", "other"))
    assert jobs.start("one", first, "1", run) is not None
    for key in (busy, other):
        assert jobs.start(f"of {key[1]}", key, key[1], run) is None
        jobs.limit.settle(key)
    jobs.limit.leave(busy)  # its next reconcile found its task
    gate.set()
    await asyncio.sleep(1)
    assert woken == [other] and jobs.start("of other", other, "other", run) is not None
    await jobs.stop()


async def test_an_object_created_again_under_its_name_gets_no_second_job_with_the_slot_of_the_first() -> None:
    """Regression: a deleted trial's job and the job of its successor with the same name used to share one slot."""
    woken: list[Key] = []
    jobs: BackgroundJobs[str, str] = BackgroundJobs(2, woken.append)
    gate = asyncio.Event()

    async def run() -> str:
        await gate.wait()
        return "done"

    key = "ns", "t"
    first = jobs.start("old task", key, "uid-1", run)
    assert first is not None and jobs.start("new task", key, "uid-2", run) is None
    gate.set()
    await first.task
    await asyncio.sleep(0)
    assert woken == [key] and jobs.outcome("uid-2", "new task") is None
    second = jobs.start("new task", key, "uid-2", run)
    assert second is not None and await second.task == "done"


@in_virtual_time
async def test_who_waited_for_a_job_gets_its_result_or_error_once() -> None:
    jobs: BackgroundJobs[str, str] = BackgroundJobs(3, lambda _: None)

    async def run(error: Exception | None = None) -> str:
        if error:
            raise error
        return "done"

    for id, error in (("good", None), ("bad", ValueError("no"))):
        job = jobs.start(id, ("ns", id), id, lambda error=error: run(error))  # type: ignore[misc]
        assert job is not None
        job.waiting[id] = "ns", id
    await asyncio.sleep(0.01)
    assert [jobs.outcome("good", "good") for _ in range(2)] == ["done", None]
    with pytest.raises(ValueError, match="no"):
        jobs.outcome("bad", "bad")
    assert jobs.outcome("bad", "bad") is None
