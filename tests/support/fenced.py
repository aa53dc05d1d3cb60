"""Add to a cluster in memory the lease check that multistep.kube.client.ClusterClient does before each write."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

READS = {"get", "list_all", "list_metadata", "iterate", "logs"}
UNFENCED = READS | {"receive", "send_eof", "close"}  # without a lease check: reads, and exec calls that start nothing


class Fenced:
    """A wrapped cluster or exec stream that checks the lease before each write."""

    def __init__(self, inner: Any, check: Callable[[], None]) -> None:
        self._inner = inner
        self._check = check

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in UNFENCED or not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            self._check()
            result = await found(*args, **options)
            return Fenced(result, self._check) if name == "open_exec" else result

        return call
