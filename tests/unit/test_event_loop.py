"""The tests run on the production event loop, and detect exceptions that asyncio and kopf swallow."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine
from typing import Any

import kopf
import pytest
import uvloop
from kopf._cogs.structs.ephemera import AnyMemo
from kopf._cogs.structs.references import Resource
from kopf._core.intents.causes import WatchingCause
from kopf._core.reactor.processing import process_watching_cause

from multistep.app.kopf_handlers import main


async def test_tests_run_on_the_loop_of_production() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)


async def test_an_exception_in_a_callback_is_seen(no_swallowed_exceptions: list[logging.LogRecord]) -> None:
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0.01)
    (found,) = no_swallowed_exceptions
    assert found.exc_info is not None and found.exc_info[0] is ZeroDivisionError
    no_swallowed_exceptions.clear()


async def test_an_exception_in_a_task_that_is_not_awaited_is_reported(no_swallowed_exceptions: list[logging.LogRecord]) -> None:
    async def fails() -> None:
        raise ValueError("nobody asks")

    task = asyncio.create_task(fails())
    await asyncio.sleep(0.01)
    del task
    gc.collect()
    assert [each.exc_info[0] for each in no_swallowed_exceptions if each.exc_info] == [ValueError]
    no_swallowed_exceptions.clear()


async def test_an_exception_in_a_kopf_handler_is_seen(no_swallowed_exceptions: list[logging.LogRecord]) -> None:
    """kopf only logs the exception and drops the event, so the test's fixture must report the exception."""
    registry = kopf.OperatorRegistry()

    @kopf.on.event("v1", "pods", registry=registry)
    async def handler(**_: object) -> None:
        raise AttributeError("when")

    pods = Resource("", "v1", "pods", namespaced=True)
    event: Any = {"type": "ADDED", "object": {"metadata": {"name": "p", "namespace": "n"}}}
    cause = WatchingCause(
        logger=logging.getLogger("kopf.objects"),
        indices={},
        memo=AnyMemo({}),
        resource=pods,
        patch=kopf.Patch(),
        body=kopf.Body(event["object"]),
        type="ADDED",
        event=event,
    )
    await process_watching_cause(kopf.lifecycles.all_at_once, registry, kopf.OperatorSettings(), cause)
    assert [each.exc_info[0] for each in no_swallowed_exceptions if each.exc_info] == [AttributeError]
    no_swallowed_exceptions.clear()


def test_garbage_collection_in_the_operators_event_loop_skips_objects_that_imports_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []

    def run(operating: Coroutine[Any, Any, None]) -> None:
        operating.close()
        ran.append(gc.get_freeze_count())

    monkeypatch.setattr("multistep.app.kopf_handlers.uvloop.run", run)
    monkeypatch.setattr("multistep.app.kopf_handlers.set_up", lambda *_: None)
    gc.unfreeze()  # undo the freeze of the tests themselves; the remaining tests run with what main freezes
    before = gc.get_freeze_count()
    main()
    assert before == 0 and ran and ran[0] > 50_000
