"""The limit of concurrent requests to the API server: lower when the server is overloaded, higher again when it responds."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from multistep.errors import Conflict, Unavailable
from multistep.kube.request_limit import JITTER, MAX_PAUSE_SECONDS, PAUSE_SECONDS, RequestLimit
from tests.support.virtual_time import in_virtual_time

REFUSED = Unavailable("busy", status=429, retry_after=3.0)


async def request(gate: RequestLimit, error: Exception | None = None, seconds: float = 0.0) -> None:
    async with gate.passing():
        await asyncio.sleep(seconds)
        if error is not None:
            raise error


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_no_more_requests_are_in_flight_than_are_allowed() -> None:
    gate = RequestLimit(4)
    await asyncio.gather(*(request(gate, seconds=1.0) for _ in range(12)))
    assert now() == 3.0


@in_virtual_time
async def test_who_waits_longest_goes_first() -> None:
    gate, order = RequestLimit(1), []

    async def one(number: int) -> None:
        async with gate.passing():
            order.append(number)
            await asyncio.sleep(1)

    await asyncio.gather(*(one(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]


@in_virtual_time
async def test_a_refusal_halves_the_limit_and_delays_no_other_request() -> None:
    gate = RequestLimit(8)
    with pytest.raises(Unavailable):
        await request(gate, REFUSED)
    await request(gate)
    assert (gate.allowed, now()) == (4, 0.0)


@in_virtual_time
async def test_when_a_single_one_is_refused_all_wait_for_as_long_as_was_asked() -> None:
    gate = RequestLimit(1)
    with pytest.raises(Unavailable):
        await request(gate, REFUSED)
    await request(gate)
    assert 3.0 <= now() <= 3.0 * (1 + JITTER)


@in_virtual_time
async def test_refusals_of_requests_that_were_in_flight_together_are_one_sign() -> None:
    gate = RequestLimit(64)
    await asyncio.gather(*(request(gate, REFUSED, seconds=1.0) for _ in range(64)), return_exceptions=True)
    assert gate.allowed == 32


@in_virtual_time
async def test_a_server_that_stays_away_is_asked_by_one_at_a_time_each_second() -> None:
    gate = RequestLimit(64)
    await asyncio.gather(*(request(gate, Unavailable("no answer")) for _ in range(200)), return_exceptions=True)
    assert gate.allowed == 1
    assert now() >= PAUSE_SECONDS * (200 - 64 - 32 - 16 - 8 - 4 - 2 - 2)


@in_virtual_time
async def test_answers_allow_more_again_one_with_each_round() -> None:
    gate = RequestLimit(8)
    for _ in range(10):
        with pytest.raises(Unavailable):
            await request(gate, Unavailable("away"))
    assert gate.allowed == 1
    rounds = []
    for _ in range(12):
        await asyncio.gather(*(request(gate) for _ in range(gate.allowed)))
        rounds.append(gate.allowed)
    assert rounds == sorted(rounds) and rounds[-1] == 8
    assert all(after - before <= 1 for before, after in itertools.pairwise(rounds))


@in_virtual_time
async def test_a_server_may_ask_for_a_long_pause_but_not_for_ever() -> None:
    gate = RequestLimit(1)
    with pytest.raises(Unavailable):
        await request(gate, Unavailable("busy", status=429, retry_after=86400.0))
    await request(gate)
    assert MAX_PAUSE_SECONDS <= now() <= MAX_PAUSE_SECONDS * (1 + JITTER)


@pytest.mark.parametrize("error", [Conflict("changed", status=409), Unavailable("webhook", status=500)])
def test_an_error_of_one_object_delays_no_other_request(error: Exception) -> None:
    @in_virtual_time
    async def check() -> None:
        gate = RequestLimit(8)
        with pytest.raises(type(error)):
            await request(gate, error)
        await request(gate)
        assert (gate.allowed, now()) == (8, 0.0)

    check()


@in_virtual_time
async def test_who_gives_up_while_waiting_takes_no_place() -> None:
    gate = RequestLimit(1)
    first = asyncio.create_task(request(gate, seconds=1.0))
    await asyncio.sleep(0.5)
    second = asyncio.create_task(request(gate, seconds=1.0))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await request(gate)
    assert now() == 1.0


@in_virtual_time
async def test_who_gives_up_just_when_let_in_gives_the_place_on() -> None:
    gate = RequestLimit(1)
    leaving = asyncio.Event()

    async def hold() -> None:
        async with gate.passing():
            await leaving.wait()

    first, second, third = (asyncio.create_task(each) for each in (hold(), request(gate), request(gate)))
    await asyncio.sleep(1)
    first.add_done_callback(lambda _: second.cancel())
    leaving.set()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert not third.cancelled()
    await request(gate)


@in_virtual_time
async def test_the_time_for_which_requests_were_delayed_is_counted() -> None:
    waited: list[float] = []
    gate = RequestLimit(1, waited=waited.append)
    await asyncio.gather(request(gate, seconds=2.0), request(gate))
    assert waited == [0.0, 2.0]


@in_virtual_time
async def test_an_exec_waits_only_while_all_are_asked_to() -> None:
    gate = RequestLimit(1)
    holding = asyncio.create_task(request(gate, seconds=100.0))
    await asyncio.sleep(0)
    await gate.opened()
    assert now() == 0.0
    gate.slow_down(now(), 5.0)
    await gate.opened()
    assert 5.0 <= now() <= 5.0 * (1 + JITTER)
    await holding
