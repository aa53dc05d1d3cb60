"""Trials with all fields of their status: those of status.journal, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multistep.api.trial.status_journal import joined


def whole(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its whole status."""
    return {**obj, **({"status": joined(obj["status"])} if obj.get("status") else {})}
