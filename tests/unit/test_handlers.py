"""The handlers that kopf calls."""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import kopf

from multistep.app.kopf_handlers import register
from multistep.settings import Settings

_cause: ContextVar[object] = ContextVar("_cause")


async def test_what_an_event_starts_does_not_keep_kopfs_context(tmp_path: Path) -> None:
    registry, seen = kopf.OperatorRegistry(), dict[str, Context]()
    app = register(registry, Settings(results_dir=tmp_path))

    def note(body: kopf.Body, type: str | None) -> None:
        seen[body["kind"]] = copy_context()

    app.events = cast(Any, SimpleNamespace(trial_event=note, sweep_event=note, pod_event=note))
    _cause.set("the event")  # stands for a context variable that kopf sets around its calls of handlers
    for number, handler in enumerate(registry._watching.get_all_handlers()):
        await cast(Any, handler.fn)(body={"kind": str(number)}, type="ADDED")
    app.volume.close()
    assert [_cause in each for each in seen.values()] == [False, False, False]
