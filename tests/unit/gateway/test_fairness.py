"""Sweeps of any size take turns with their requests; the concurrency limit shrinks when a provider answers 429, and recovers."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from multistep.gateway.pace import CALM_SECONDS, HoldExpired, Lane, Lanes
from tests.support.virtual_time import in_virtual_time
from tests.unit.gateway.world import Seen, World, token_for, world

MODEL = "claude-sonnet-4-5-cap-4-0"


async def test_a_small_sweep_is_not_behind_a_large_one(tmp_path: Path) -> None:
    async with world(tmp_path, lane_requests=4) as it:
        it.model.open.clear()

        def sweep(name: str, trials: int) -> list[asyncio.Task[Seen]]:
            tokens = [token_for("messages", uid=f"{name}-{number}", sweep=f"ns/{name}") for number in range(trials)]
            requests = [it.send("messages", MODEL, stream=False, token=token, text=f"say: {name}") for token in tokens]
            return [asyncio.create_task(request) for request in requests]

        tasks = sweep("large", 40)
        await waiting_requests(it, 36)
        tasks += sweep("small", 4)
        await waiting_requests(it, 40)
        it.model.open.set()
        assert Counter([(await task).status for task in tasks]) == {200: 44}
        last_of_small = max(place for place, entry in enumerate(it.model.entries) if "say: small" in entry.body)
        assert (
            last_of_small < 4 + 2 * 4 + 4
        )  # those in flight, one of each sweep in turn, and at most 4 that arrive in another order


async def test_the_limit_that_a_provider_enforces_is_found_and_kept(tmp_path: Path) -> None:
    async with world(tmp_path, retry_after=0.2) as it:
        it.model.open.clear()
        tokens = [token_for("messages", uid=f"{number}") for number in range(12)]
        tasks = [asyncio.create_task(it.send("messages", MODEL, stream=False, token=token)) for token in tokens]
        await waiting_requests(it, 8)
        it.model.open.set()
        assert [(await task).status for task in tasks] == [200] * 12
        assert it.model.most_at_once[MODEL] == 4


async def waiting_requests(it: World, number: int) -> None:
    """Return when this number of requests waits in the gateway."""
    shown = f"multistep_gateway_requests_waiting {number}.0"
    while True:
        async with it.http.get(f"http://127.0.0.1:{it.admin_port}/metrics") as answer:
            if shown in (await answer.text()).splitlines():
                return
        await asyncio.sleep(0.01)


@in_virtual_time
async def test_waiting_sweeps_take_turns() -> None:
    lane, order = Lane(1), list[str]()

    async def request(sweep: str) -> None:
        await lane.enter(sweep, "1", 100)
        order.append(sweep)
        await asyncio.sleep(1)
        lane.leave("1")

    await asyncio.gather(*(request(sweep) for sweep in ("a", "a", "a", "a", "b", "b", "c")))
    assert order == ["a", "a", "b", "c", "a", "b", "a"]


@in_virtual_time
async def test_waiting_trials_of_a_sweep_take_turns_and_a_retry_is_first() -> None:
    lane, order = Lane(1), list[str]()

    async def request(sweep: str, trial: str, *, retry: bool = False) -> None:
        await lane.enter(sweep, trial, 100, retry=retry)
        order.append(sweep + trial)
        await asyncio.sleep(1)
        lane.leave(trial)

    waiting = [("s", "1")] * 4 + [("s", "2"), ("s", "2"), ("s", "3"), ("t", "4")]
    await asyncio.gather(*(request(*each) for each in waiting), request("s", "5", retry=True))
    assert order == ["s1", "s5", "t4", "s1", "s2", "s3", "s1", "s2", "s1"]
    assert lane.idle


@in_virtual_time
async def test_a_trial_that_gives_up_leaves_the_others_their_turns() -> None:
    lane = Lane(1)
    await lane.enter("s", "1", 1)
    with pytest.raises(HoldExpired):
        await lane.enter("s", "2", 5)
    waiting = asyncio.create_task(lane.enter("s", "3", 100))
    await asyncio.sleep(0)
    assert lane.waiting == 1
    lane.leave("1")
    await waiting
    lane.leave("3")
    assert lane.idle


def test_requests_that_only_count_tokens_have_a_lane_of_their_own() -> None:
    lanes = Lanes(4)
    assert lanes.get("key", "m") is lanes.get("key", "m") is not lanes.get("key", "m", counted=False)


@in_virtual_time
async def test_the_window_shrinks_to_the_others_in_flight_and_recovers() -> None:
    lane = Lane(8, clock=asyncio.get_running_loop().time)
    trials = [str(number) for number in range(8)]
    for trial in trials:
        await lane.enter("a", trial, 1)
    lane.leave_refused(trials[0], 1)
    assert lane.window == 7
    for trial in trials[1:5]:
        lane.leave_refused(trial, 1)
    assert lane.window == 3
    for trial in trials[5:]:
        lane.leave(trial)
    await asyncio.sleep(CALM_SECONDS + 1)
    for _ in range(30):
        admitted = trials[: lane.window]
        for trial in admitted:
            await lane.enter("a", trial, 1)
        for trial in admitted:
            lane.leave(trial)
    assert lane.window == 8


@in_virtual_time
async def test_if_the_only_request_is_refused_all_wait() -> None:
    loop = asyncio.get_running_loop()
    lane = Lane(8, clock=loop.time)
    await lane.enter("a", "1", 1)
    lane.leave_refused("1", 10)
    start = loop.time()
    await lane.enter("b", "2", 100)
    assert 10 <= loop.time() - start < 11


@in_virtual_time
async def test_a_pause_of_hours_holds_the_queue_for_a_minute() -> None:
    loop = asyncio.get_running_loop()
    lane = Lane(8, clock=loop.time)
    await lane.enter("a", "1", 1)
    lane.leave_refused("1", 86_400)
    start = loop.time()
    await lane.enter("b", "2", 100)
    assert 60 <= loop.time() - start < 61


@in_virtual_time
async def test_a_wait_has_an_end_and_leaves_no_trace() -> None:
    lane = Lane(1)
    await lane.enter("a", "1", 1)
    with pytest.raises(HoldExpired):
        await lane.enter("b", "2", 5)
    cancelled = asyncio.create_task(lane.enter("c", "3", 100))
    await asyncio.sleep(1)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert lane.waiting == 0
    lane.leave("1")
    await lane.enter("d", "4", 0.1)
    assert lane.in_flight == 1


@in_virtual_time
async def test_a_request_that_is_cancelled_as_it_is_admitted_gives_its_place_back() -> None:
    lane = Lane(1)
    await lane.enter("a", "1", 1)
    waiting = asyncio.create_task(lane.enter("b", "2", 100))
    await asyncio.sleep(1)
    lane.leave("1")  # admits the request of b, whose task has not resumed yet
    waiting.cancel()
    await asyncio.wait([waiting])
    assert lane.in_flight == 0


LARGE = 64


async def fill(lane: Lane, trial: str, admitted: Counter[str]) -> list[asyncio.Task[None]]:
    """Send as many requests of the trial as the lane has slots. No request ends. Count the admitted ones."""

    async def request() -> None:
        await lane.enter("s", trial, 240)
        admitted[trial] += 1

    tasks = [asyncio.create_task(request()) for _ in range(LARGE)]
    await asyncio.sleep(1)
    return tasks


@in_virtual_time
async def test_no_trial_fills_a_lane() -> None:
    """An agent's requests can take hours: if they filled the lane, all other trials' requests to the same model would fail."""
    lane, admitted = Lane(LARGE), Counter[str]()
    tasks = [task for trial in "123" for task in await fill(lane, trial, admitted)]
    assert admitted == {"1": 33, "2": 16, "3": 8}
    await lane.enter("s", "4", 0.001)
    lane.leave("1")
    await asyncio.sleep(1)
    assert admitted == {"1": 33, "2": 16, "3": 8}
    lane.leave("3")
    lane.leave("3")
    await asyncio.sleep(1)
    assert admitted == {"1": 33, "2": 16, "3": 10}
    await asyncio.sleep(240)
    errors = [task.exception() for task in tasks if task.exception()]
    assert len(errors) == 3 * LARGE - 59
    assert all(isinstance(error, HoldExpired) and error.over_share for error in errors)


@in_virtual_time
async def test_a_trial_with_few_requests_may_take_the_last_slot() -> None:
    lane = Lane(LARGE)
    for number in range(LARGE):
        await lane.enter("s", str(max(3, number)), 1)  # the first four requests are those of trial 3
    lane.leave("60")
    await lane.enter("s", "3", 0.001)
    assert lane.in_flight == LARGE


@in_virtual_time
async def test_a_request_that_first_waited_for_its_own_trial_may_later_wait_for_others() -> None:
    lane = Lane(4)
    for _ in range(3):
        await lane.enter("s", "1", 1)
    waiting = [asyncio.create_task(lane.enter("s", "1", 100)) for _ in range(2)]
    others = [asyncio.create_task(lane.enter("s", other, 200)) for other in "234"]
    await asyncio.sleep(1)
    for _ in range(3):
        lane.leave("1")
    await asyncio.wait(waiting)
    assert lane.in_flight == 4 and [task.done() for task in others] == [True] * 3
    (expired,) = [task for task in waiting if task.exception()]
    error = expired.exception()
    assert isinstance(error, HoldExpired) and not error.over_share


@in_virtual_time
async def test_a_narrowed_lane_puts_no_trial_over_its_share() -> None:
    lane = Lane(8, clock=asyncio.get_running_loop().time)
    for _ in range(3):
        await lane.enter("s", "1", 1)
    lane.leave_refused("1", 1)
    with pytest.raises(HoldExpired) as caught:
        for _ in range(3):
            await lane.enter("s", "1", 1)
    assert lane.narrowed and not caught.value.over_share


@in_virtual_time
async def test_a_request_that_waits_for_other_trials_is_not_over_its_share() -> None:
    lane = Lane(2)
    await lane.enter("s", "1", 1)
    await lane.enter("s", "2", 1)
    with pytest.raises(HoldExpired) as caught:
        await lane.enter("s", "1", 1)
    assert not caught.value.over_share


def test_idle_lanes_are_forgotten() -> None:
    lanes = Lanes(4)
    for number in range(3000):
        lanes.get("credential", f"invented-{number}")
    assert len(list(lanes)) <= 1025
