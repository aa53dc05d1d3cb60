"""Concurrency limits on starting pods and open exec sessions: never exceeded, fair between namespaces, without starvation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from multistep.engine.lifecycle.decisions import PodFacts
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key
from multistep.reconcile.admission.pod_starts import STARTING_SECONDS, PodStarts
from tests.support.virtual_time import in_virtual_time

NOW = 1_700_000_000.0
POD = PodFacts(name="t-1", uid="u", owner_uid="t", phase="Pending", created_at=NOW)
UNSCHEDULABLE = replace(POD, unschedulable="0/1 nodes are available")
NO_IMAGE = replace(POD, waiting_reason="ImagePullBackOff")


def keys(namespace: str, count: int) -> list[Key]:
    return [(namespace, str(number)) for number in range(count)]


class Woken(list[Key]):
    """A list of the keys that a limit requeued, in order."""

    def __call__(self, key: Key) -> None:
        self.append(key)


async def test_who_finds_no_place_is_woken_when_one_is_free() -> None:
    woken = Woken()
    bound = ConcurrencyLimit(2, woken)
    first, second, third = keys("ns", 3)
    assert [bound.acquire(each) for each in (first, second, third)] == [True, True, False]
    assert (bound.held, bound.waiting, woken) == (2, 1, [])
    bound.release(first)
    assert (bound.held, bound.waiting, woken) == (2, 0, [third])
    assert bound.acquire(third)  # third already has the freed slot


async def test_asking_again_keeps_the_place_in_the_line() -> None:
    woken = Woken()
    bound = ConcurrencyLimit(1, woken)
    first, second, third = keys("ns", 3)
    for each in (first, second, third, second):
        bound.acquire(each)
    bound.release(first)
    bound.release(second)
    assert woken == [second, third]


async def test_of_those_that_wait_the_namespace_with_the_fewest_places_is_served_first() -> None:
    woken = Woken()
    bound = ConcurrencyLimit(4, woken)
    crowd, few = keys("crowd", 100), keys("few", 3)
    for each in [*crowd, *few]:
        bound.acquire(each)
    for each in crowd[:4]:
        bound.release(each)
    assert woken == [few[0], few[1], crowd[4], crowd[5]]  # now each namespace holds two of the four slots


async def test_a_slow_namespace_does_not_take_all_places_from_a_fast_one() -> None:
    """Keys of namespace slow never release their slots; keys of namespace fast release them at once."""
    woken = Woken()
    bound = ConcurrencyLimit(4, woken)
    slow, fast = keys("slow", 100), keys("fast", 100)
    for pair in zip(slow, fast, strict=True):
        for each in pair:
            bound.acquire(each)
    for each in fast:
        assert bound.acquire(each)
        bound.release(each)
    assert woken == [*fast[2:], *slow[2:4]]  # slow gets more than two slots only after fast has finished


async def test_who_wants_two_places_is_not_passed_for_ever_by_those_who_want_one() -> None:
    woken = Woken()
    bound = ConcurrencyLimit(2, woken)
    first, second, two, third = keys("ns", 4)
    bound.acquire(first), bound.acquire(second), bound.acquire(two, 2), bound.acquire(third)
    bound.release(first)
    assert woken == []
    bound.release(second)
    assert (woken, bound.held) == ([two], 2)


async def test_who_wants_more_than_there_is_gets_all() -> None:
    bound = ConcurrencyLimit(1, Woken())
    assert bound.acquire(("ns", "a"), 2) and bound.held == 1


async def test_what_goes_first_goes_before_all_that_waited_longer() -> None:
    woken = Woken()
    bound = ConcurrencyLimit(1, woken)
    a, b, c = keys("ns", 3)
    bound.acquire(a), bound.acquire(b), bound.acquire(c, first=True)
    bound.release(a)
    assert woken == [c]


async def test_freeing_what_is_not_held_changes_nothing() -> None:
    bound = ConcurrencyLimit(1, Woken())
    a, b = keys("ns", 2)
    bound.acquire(a), bound.acquire(b)
    bound.release(b)
    bound.release(("other", "x"))
    assert (bound.held, bound.waiting) == (1, 1)


# -- slots of pods that are starting


def starts(limit: int, woken: Woken) -> PodStarts:
    return PodStarts(limit, woken, lambda: NOW + asyncio.get_running_loop().time())


@in_virtual_time
async def test_a_pod_counts_until_it_runs() -> None:
    woken = Woken()
    bound = starts(1, woken)
    a, b = keys("ns", 2)
    assert bound.acquire(a)
    bound.observe(a, POD)
    bound.settle(a)
    assert not bound.acquire(b)
    bound.observe(a, replace(POD, phase="Running", running=True))
    assert woken == [b]


@in_virtual_time
async def test_a_gated_pod_does_not_count_until_its_gates_are_removed() -> None:
    woken = Woken()
    bound = starts(1, woken)
    a, b, c = keys("ns", 3)
    assert bound.acquire(a)
    bound.observe(a, replace(POD, gates=("x",)))
    bound.settle(a)
    assert bound.acquire(b) and bound.held == 1
    bound.release(b)
    bound.observe(a, POD)
    assert not bound.acquire(c) and bound.held == 1


@in_virtual_time
async def test_a_turn_that_was_not_used_is_the_next_ones() -> None:
    woken = Woken()
    bound = starts(1, woken)
    a, b = keys("ns", 2)
    bound.acquire(a), bound.acquire(b)
    bound.settle(a)
    assert woken == [b]


@pytest.mark.parametrize("end", [{"deleting": True}, {"phase": "Failed"}, {"terminated": True}, {"gone": True}])
def test_a_pod_that_will_not_start_any_more_does_not_count(end: dict[str, object]) -> None:
    @in_virtual_time
    async def check() -> None:
        bound = starts(1, Woken())
        bound.observe(("ns", "a"), POD)
        assert bound.held == 1
        gone = bool(end.pop("gone", False))
        bound.observe(("ns", "a"), replace(POD, **end), deleted=gone)  # type: ignore[arg-type]
        assert bound.held == 0

    check()


@in_virtual_time
async def test_events_of_an_earlier_pod_do_not_free_the_place_of_the_next() -> None:
    bound = starts(1, Woken())
    bound.observe(("ns", "a"), replace(POD, name="a-2"))
    bound.observe(("ns", "a"), replace(POD, name="a-1"), deleted=True)
    assert bound.held == 1


@in_virtual_time
async def test_pods_that_were_asked_for_before_the_operator_started_count() -> None:
    bound = starts(2, Woken())
    for key in keys("ns", 3):
        bound.observe(key, POD)
    assert bound.held == 3 and not bound.acquire(("other", "x"))


@pytest.mark.parametrize("still", [UNSCHEDULABLE, NO_IMAGE])
def test_pods_that_stand_still_hold_up_their_own_namespace_only(still: PodFacts) -> None:
    @in_virtual_time
    async def check() -> None:
        woken = Woken()
        bound = starts(2, woken)
        impossible, possible = keys("impossible", 4), keys("possible", 2)
        for key in impossible[:2]:
            assert bound.acquire(key)
            bound.observe(key, still)
            bound.settle(key)
        assert not bound.acquire(impossible[2]) and not bound.acquire(impossible[3])
        assert bound.acquire(possible[0]) and bound.acquire(possible[1])
        for key in possible:
            bound.settle(key)
        assert woken == []
        await asyncio.sleep(STARTING_SECONDS + 1)
        assert woken == impossible[2:]  # a pod that does not start has a slot for one minute only

    check()


@in_virtual_time
async def test_a_pod_that_does_not_start_holds_its_place_for_a_minute_only_and_again_when_it_gets_a_node() -> None:
    woken = Woken()
    bound = starts(1, woken)
    a, b = keys("ns", 2)
    bound.observe(a, POD)
    bound.acquire(b)
    bound.settle(b)
    await asyncio.sleep(STARTING_SECONDS - 1)
    bound.observe(a, POD)  # the pod has not changed, so its minute does not restart
    assert woken == []
    await asyncio.sleep(2)
    assert woken == [b]
    bound.settle(b)
    bound.observe(a, POD)
    assert bound.held == 0
    now = NOW + asyncio.get_running_loop().time()
    bound.observe(a, replace(POD, scheduled_at=now))
    assert bound.held == 1


@in_virtual_time
async def test_how_long_a_key_has_waited() -> None:
    bound = ConcurrencyLimit(1, Woken())
    a, b = keys("ns", 2)
    bound.acquire(a), bound.acquire(b)
    await asyncio.sleep(7)
    assert (bound.waited(a), bound.waited(b)) == (0.0, 7.0)
