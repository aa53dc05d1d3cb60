"""Trials with all fields of their status: those of status.journal, too."""

from __future__ import annotations

from typing import Any

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import FIELD, joined


def whole(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object with its whole status; the object itself if its status has no journal."""
    return {**obj, "status": joined(TrialStatus, obj["status"])} if FIELD in (obj.get("status") or {}) else obj
