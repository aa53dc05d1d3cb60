"""The client lists and watches objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import ClusterError, Unavailable
from multistep.kube.resources import PODS
from tests.unit.kube.api_answers import Answer, client_of, page, status

pytestmark = pytest.mark.usefixtures("no_pauses")


def stream(*events: tuple[str, dict[str, Any]], cut: bool = False) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for type, object in events:
            await response.write(json.dumps({"type": type, "object": object}).encode() + b"\n")
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return answer


def pod(name: str, version: str, **more: str) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "uid": name, "resourceVersion": version}, **more}


async def follow(client: WatchingClient, count: int) -> list[tuple[str, str, str]]:
    seen: list[tuple[str, str, str]] = []
    async for event in client.watch(PODS, "ns"):
        metadata = event.object["metadata"]
        seen.append((event.type, metadata["name"], metadata["resourceVersion"]))
        if len(seen) == count:
            return seen
    raise AssertionError("a watch never ends by itself")


async def test_a_watch_lists_then_follows_and_continues_where_it_was() -> None:
    first = stream(("MODIFIED", pod("a", "10")), ("BOOKMARK", pod("", "15")))
    second = stream(("ADDED", pod("b", "16")), ("DELETED", pod("a", "17")))
    async with client_of(page(["a"]), first, second) as (client, server):
        assert await follow(client, 4) == [
            ("ADDED", "a", "1"),
            ("MODIFIED", "a", "10"),
            ("ADDED", "b", "16"),
            ("DELETED", "a", "17"),
        ]
    assert "resourceVersion=9&" in server.seen[1][1]
    assert "resourceVersion=15&" in server.seen[2][1]


@pytest.mark.parametrize("gone", [stream(("ERROR", {"code": 410, "reason": "Expired"})), status(410, "Expired")])
async def test_after_a_gap_only_differences_are_reported(gone: Answer) -> None:
    later = {"metadata": {"resourceVersion": "20"}, "items": [pod("a", "1"), pod("c", "18"), pod("d", "19")]}
    async with client_of(page(["a", "b", "c"]), gone, later, stream()) as (client, _):
        seen = await follow(client, 6)
    assert seen[3:] == [("DELETED", "b", "1"), ("MODIFIED", "c", "18"), ("ADDED", "d", "19")]


async def test_a_watch_survives_cuts_and_large_objects() -> None:
    large = stream(("ADDED", pod("a", "10", filler="x" * 2_000_000)), cut=True)
    async with client_of(page([]), status(503), large, stream(("DELETED", pod("a", "11")))) as (client, _):
        assert [type for type, *_ in await follow(client, 2)] == ["ADDED", "DELETED"]


def recorded_pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the pauses of watches; return a list to which each pause appends the number of the try."""
    pauses: list[int] = []

    def pause(attempt: int) -> float:
        pauses.append(attempt)
        return 0.0

    monkeypatch.setattr("multistep.client.reconnecting_watch.pause_seconds", pause)
    return pauses


@pytest.mark.parametrize("answers", [[stream()], [stream(("ERROR", {"code": 410})), page([])]])
async def test_watches_that_end_at_once_and_a_repeated_410_are_retried_with_back_off(
    answers: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = recorded_pauses(monkeypatch)
    async with client_of(page([]), *answers * 10, stream(("ADDED", pod("a", "10")))) as (client, _):
        await follow(client, 1)
    assert pauses == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]


async def test_after_a_watch_that_lasted_the_next_one_starts_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = recorded_pauses(monkeypatch)
    monkeypatch.setattr("multistep.client.reconnecting_watch.SHORT_SECONDS", 0.0)
    async with client_of(page([]), stream(), stream(), stream(("ADDED", pod("a", "10")))) as (client, _):
        await follow(client, 1)
    assert pauses == []


async def test_a_watch_of_a_server_that_stays_away_ends() -> None:
    async with client_of(page([]), status(503)) as (client, _):
        with pytest.raises(Unavailable):
            await follow(client, 1)


async def test_a_forbidden_watch_ends_at_once() -> None:
    async with client_of(page([]), status(403, "Forbidden")) as (client, server):
        with pytest.raises(ClusterError, match="because"):
            await follow(client, 1)
    assert len(server.seen) == 2
