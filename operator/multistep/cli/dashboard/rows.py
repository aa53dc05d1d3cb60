"""Sweeps and trials as rows of the dashboard. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import parsed
from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepStatus
from multistep.api.trial.egress_status import RefusedTarget, total
from multistep.api.trial.score import outcome_level, outcome_words
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import parse_status
from multistep.cli.terminal import bytes_text, stored_text, usage_text
from multistep.cli.trial.outcome import brief, outcome

_MAX_REFUSED: Final = 10  # of the most frequent hosts, as in the status of a step


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


def trial_facts(namespace: str, name: str, status: TrialStatus) -> list[str]:
    """Return lines on a trial: its model usage with the cost, its artifacts, the hosts that were refused, and how to get its
    files."""
    lines = [usage_text(status.usage)] if status.usage else []
    stored = [each.artifacts for each in status.steps if each.artifacts]
    if stored:
        files, size = sum(each.count for each in stored), sum(each.bytes for each in stored)
        lines.append(f"artifacts: {plural(files, 'file')}, {bytes_text(size)}")
    refused = total([each.egress for each in status.steps if each.egress], _MAX_REFUSED)
    targets = [f"{_target(each)} ({each.count})" for each in refused.refused]
    targets += [f"{refused.others} others"] if refused.others else []
    lines += [f"refused by the network's limits: {', '.join(targets)}"] if targets else []
    if status.results_store:
        lines.append(stored_text(status.results_store))
    return [*lines, f"its files: multistep results {name} DIRECTORY -n {namespace}"] if status.results else lines


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


def _target(target: RefusedTarget) -> str:
    return f"{target.protocol} {target.host}{'' if target.port is None else f':{target.port}'}"


def _time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
