"""The recorder of the end-to-end tests: the events it keeps when watches end and restart, and how tests wait for its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from multistep.client.reconnecting_watch import WatchEvent, WatchingClient
from multistep.errors import ClusterError, NotFound, Unavailable
from multistep.kube.resources import PODS, TRIALS, Resource
from tests.e2e import recorder
from tests.e2e.given import Given
from tests.e2e.recorder import Recorder

Object = dict[str, Any]


class Watched:
    """A fake client. A test adds events and exceptions; the client's watches yield the events and raise the exceptions."""

    def __init__(self) -> None:
        self.current: Object | None = None  # the object that ``get`` returns
        self._events: dict[str, asyncio.Queue[WatchEvent | Exception]] = {}
        self.watches = 0

    def reports(self, resource: Resource, event: WatchEvent | Exception) -> None:
        self._queue(resource).put_nowait(event)

    async def watch(self, resource: Resource, namespace: str) -> AsyncIterator[WatchEvent]:
        self.watches += resource is TRIALS
        while True:
            event = await self._queue(resource).get()
            if isinstance(event, Exception):
                raise event
            yield event

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        if self.current is None:
            raise NotFound("there is none", status=404)
        return self.current

    def _queue(self, resource: Resource) -> asyncio.Queue[WatchEvent | Exception]:
        return self._events.setdefault(resource.kind, asyncio.Queue())


def trial(phase: str, name: str = "t", uid: str = "1") -> Object:
    return {"metadata": {"name": name, "uid": uid}, "status": {"phase": phase}}


def seen(phase: str, name: str = "t", uid: str = "1") -> WatchEvent:
    return WatchEvent("MODIFIED", trial(phase, name, uid))


def is_in(phase: str) -> Any:
    return lambda found: found["status"]["phase"] == phase


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
async def given(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Given]:
    monkeypatch.setattr(recorder, "_RETRY_SECONDS", 0.0)
    found = Given(cast(WatchingClient, watched), "n")
    async with found.recorder:
        yield found


async def test_a_state_that_passed_is_found_in_the_history(given: Given, watched: Watched) -> None:
    watched.current = trial("Complete")
    for phase in ("Pending", "Running", "Complete"):
        watched.reports(TRIALS, seen(phase))
    assert (await given.until("t", is_in("Running")))["status"]["phase"] == "Running"
    assert (await given.until("t", is_in("Complete"))) is watched.current


async def test_what_an_earlier_wait_had_is_not_found_again(given: Given, watched: Watched) -> None:
    watched.reports(TRIALS, seen("Suspended"))
    watched.reports(TRIALS, seen("Running"))
    await given.until("t", is_in("Running"))
    again = asyncio.create_task(given.until("t", is_in("Suspended")))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not again.done()
    second = seen("Suspended")
    watched.reports(TRIALS, second)
    assert await again is second.object


async def test_another_object_of_the_name_is_not_meant(given: Given, watched: Watched) -> None:
    watched.reports(TRIALS, seen("Complete", uid="old"))
    watched.reports(TRIALS, seen("Complete", name="other"))
    watched.reports(TRIALS, WatchEvent("DELETED", trial("Complete", uid="new")))
    watched.reports(PODS, WatchEvent("ADDED", trial("Complete", uid="new")))
    watched.current = trial("Pending", uid="new")
    right = seen("Complete", uid="new")
    watched.reports(TRIALS, right)
    assert await given.until("t", is_in("Complete")) is right.object


@pytest.mark.parametrize("error", [Unavailable("away"), ClusterError("too old", status=410)], ids=["away", "410"])
async def test_a_watch_that_ends_restarts(given: Given, watched: Watched, error: Exception) -> None:
    watched.reports(TRIALS, seen("Pending"))
    watched.reports(TRIALS, error)
    watched.reports(TRIALS, seen("Complete"))
    await given.until("t", is_in("Complete"))
    assert watched.watches == 2 and [each.object["status"]["phase"] for each in given.recorder.states(TRIALS, "t")] == [
        "Pending",
        "Complete",
    ]


async def test_an_error_that_is_not_the_clusters_ends_the_wait(given: Given, watched: Watched) -> None:
    watched.reports(TRIALS, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await given.until("t", is_in("Complete"))


async def test_a_wait_that_times_out_reports_the_history(given: Given, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.e2e.given.DEADLINE_SECONDS", 0.05)
    watched.reports(TRIALS, WatchEvent("ADDED", {"metadata": {"name": "t", "uid": "1"}}))  # has no status, so is_in is false
    watched.reports(TRIALS, seen("Pending"))
    while given.recorder.count < 2:
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError, match=r"(?s)t did not get there in 0 s; its states were:.* ADDED .* MODIFIED Pending$"):
        await given.until("t", is_in("Complete"))


async def test_a_check_is_asked_again_after_each_change(given: Given, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.e2e.given._RECHECK_SECONDS", 3600.0)  # so the check repeats only after an event
    answers = iter(["", "", "there"])

    async def check() -> str:
        watched.reports(PODS, seen("Pending"))
        return next(answers)

    async with asyncio.timeout(60):
        assert await given.when(check) == "there"


async def test_nobody_waits_on_a_recorder_that_does_not_record() -> None:
    with pytest.raises(AssertionError, match="was not entered"):
        await Recorder(cast(WatchingClient, Watched()), "n").after(0)
