"""Fixtures of the API client's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client retry failed requests without a pause."""
    for module in ("kube.requests", "client.reconnecting_watch"):
        monkeypatch.setattr(f"multistep.{module}.pause_seconds", lambda *_: 0.0)
    monkeypatch.setattr("multistep.kube.request_limit.MAX_PAUSE_SECONDS", 0.0)
