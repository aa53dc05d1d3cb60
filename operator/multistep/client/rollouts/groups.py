"""Runs groups of rollouts: as many trials of one task as a group has, each group as a sweep of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from multistep.client.run import AsyncRun, Rollout
from multistep.errors import MultistepError

_T = TypeVar("_T")


@dataclass(frozen=True)
class Group(Generic[_T]):
    """The finished trials of one task."""

    task: _T
    """The task as it was given."""
    sweep: str
    """Name of the group's sweep."""
    rollouts: tuple[Rollout, ...]
    """The trials in the order in which they finished. Trials that were not created are missing."""


async def run_groups(
    tasks: Iterable[_T], submit: Callable[[_T], Awaitable[AsyncRun]], ahead: int
) -> AsyncGenerator[Group[_T], None]:
    """Yield the groups as they finish.

    submit: creates a group's sweep. ahead: how many groups may be active, or finished and not yet taken. The next task is only
    taken from ``tasks`` when its group is submitted. When the generator is closed, and when a group fails, active groups are
    stopped. Raises the errors of ``submit`` and of ``AsyncRun``.
    """
    waiting = iter(tasks)
    active: set[asyncio.Task[Group[_T]]] = set()
    finished: list[asyncio.Task[Group[_T]]] = []

    def submit_more() -> None:
        active.update(asyncio.create_task(_run(each, submit)) for each in islice(waiting, ahead - len(active) - len(finished)))

    try:
        submit_more()
        while active or finished:
            if not finished:
                done, active = await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
                finished += done
            group = finished.pop(0).result()
            submit_more()  # before the caller computes with the group
            yield group
    finally:
        for each in active:
            each.cancel()
        await asyncio.gather(*active, *finished, return_exceptions=True)


async def _run(task: _T, submit: Callable[[_T], Awaitable[AsyncRun]]) -> Group[_T]:
    run = await submit(task)
    try:
        return Group(task, run.name, tuple(await run.results()))
    except BaseException:
        with suppress(MultistepError):  # best effort: without renewals of its lease, the operator stops the sweep
            await run.stop()
        raise
