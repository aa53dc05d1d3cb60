"""Sweeps and trials as rows of the dashboard. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from multistep.api import labels
from multistep.api.model import parsed
from multistep.api.score import outcome_level, outcome_words
from multistep.api.sweep import SweepStatus
from multistep.api.trial import parse_status
from multistep.api.trial_status import TrialStatus
from multistep.cli.trial.outcome import brief, outcome


def trial_row(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a MultiStepTrial. Raises InvalidSpec if the status is invalid."""
    status, metadata = parse_status(trial), trial["metadata"]
    annotations, spec = metadata.get("annotations") or {}, trial.get("spec") or {}
    agent = spec.get("agent") or {}
    failure_class = status.failure.class_ if status.failure else ""
    return {
        "kind": "trial",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "sweep": (metadata.get("labels") or {}).get(labels.SWEEP, ""),
        "task": annotations.get(labels.TASK) or status.task or "",
        "agent": annotations.get(labels.AGENT) or agent.get("name") or agent.get("importPath") or "",
        "phase": outcome(status).phase,
        "outcome": outcome_words(status.outcome, failure_class) if status.outcome else outcome(status).phase,
        "level": outcome_level(status.outcome) if status.outcome else "",
        "step": _step(status),
        "score": status.columns.score,
        "reward": status.reward,
        "message": brief(status),
        "created": metadata.get("creationTimestamp"),
        "started": _time(status.start_time),
        "completed": _time(status.completion_time),
    }


def sweep_row(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a TrialSweep. Raises InvalidSpec if the status is invalid."""
    status, metadata = parsed(SweepStatus, sweep.get("status") or {}, under="status."), sweep["metadata"]
    ready = next((each for each in status.conditions if each.type == "Ready"), None)
    return {
        "kind": "sweep",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": status.phase or "Submitted",
        "trials": status.trials.model_dump(mode="json"),
        "score": status.score,
        "costUSD": status.cost_usd,
        "message": ready.message if ready else "",
        "created": metadata.get("creationTimestamp"),
        "started": _time(status.start_time),
        "completed": _time(status.completion_time),
    }


def _step(status: TrialStatus) -> str:
    """Return the number of started steps, the total number of steps if known, and the current step's name, as one string."""
    if not status.steps:
        return ""
    total = f"/{len(status.task_steps)}" if status.task_steps else ""
    return f"{len(status.steps)}{total} {status.current_step or status.steps[-1].name}"


def _time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
