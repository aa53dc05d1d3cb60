"""A finished trial as a row of the history: what TrialRow has, without texts, and what led to the result.

The operator writes the rows as lines of JSON, and `multistep history` reads them. docs/how-to/history.md describes the columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

from multistep.api.common.base_model import GROUP
from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.harbor_agents import HARBOR_VERSION
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.values import BUILT_IN
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.report.rows import StepRow, row_of
from multistep.version import __version__

TYPES: Final[Mapping[str, str]] = {
    "uid": "VARCHAR",
    "namespace": "VARCHAR",
    "date": "DATE",
    "trial": "VARCHAR",
    "sweep": "VARCHAR",
    "sweep_uid": "VARCHAR",
    "dataset": "VARCHAR",
    "task": "VARCHAR",
    "task_digest": "VARCHAR",
    "image": "VARCHAR",
    "agent": "VARCHAR",
    "program": "VARCHAR",
    "agent_version": "VARCHAR",
    "model": "VARCHAR",
    "harbor_version": "VARCHAR",
    "multistep_version": "VARCHAR",
    "attempt": "INTEGER",
    "number": "INTEGER",
    "retry_of": "INTEGER",
    "regrade_of": "VARCHAR",
    "branch": "VARCHAR",
    "step": "VARCHAR",
    "state": "VARCHAR",
    "outcome": "VARCHAR",
    "score": "DOUBLE",
    "passed": "BOOLEAN",
    "failure_class": "VARCHAR",
    "reason": "VARCHAR",
    "tampering": "VARCHAR",
    "rewards": "MAP(VARCHAR, DOUBLE)",
    "steps": "STRUCT(name VARCHAR, rewards MAP(VARCHAR, DOUBLE), score DOUBLE, passed BOOLEAN, exception VARCHAR,"
    " seconds MAP(VARCHAR, DOUBLE))[]",
    "started": "TIMESTAMP",
    "finished": "TIMESTAMP",
    "seconds": "DOUBLE",
    "failed_attempts": "INTEGER",
    "input_tokens": "BIGINT",
    "output_tokens": "BIGINT",
    "cost_usd": "DOUBLE",
    "judge_input_tokens": "BIGINT",
    "judge_output_tokens": "BIGINT",
    "judge_cost_usd": "DOUBLE",
    "counted_by": "VARCHAR",
    "labels": "MAP(VARCHAR, VARCHAR)",
}
"""The columns of the history in order, with their types in DuckDB."""

MAX_BYTES: Final = 16 * 1024
_MAX_CHARACTERS: Final = 1024
_MAX_WHOLE: Final = {"INTEGER": 2**31 - 1, "BIGINT": 2**63 - 1}
_DETAILS: Final = ("steps", "rewards", "labels")  # in the order in which a row that is too large loses them
_OF_ROW: Final = (
    "attempt", "number", "retry_of", "branch", "step", "state", "outcome", "passed", "failure_class", "reason", "tampering",
    "rewards", "seconds", "failed_attempts", "input_tokens", "output_tokens", "cost_usd", "judge_input_tokens",
    "judge_output_tokens", "judge_cost_usd", "counted_by", "trial", "task",
)  # fmt: skip


@dataclass(frozen=True)
class SweepOrigin:
    """What a row needs of the trial's sweep."""

    scoring: Scoring = field(default_factory=Scoring)
    """The sweep's spec.scoring, by which the row has its score."""
    dataset: str = ""
    """Name of the dataset in spec.tasksFrom, or URL or image of its other sources; "" without spec.tasksFrom."""


def history_row(trial: Mapping[str, Any], status: TrialStatus, origin: SweepOrigin, agent_version: str = "") -> dict[str, Any]:
    """Return the row of a finished trial, with the columns of TYPES.

    trial: the object, whose metadata and spec are used. agent_version: the version that the agent reported, "" if it reported none.
    """
    metadata, spec = trial["metadata"], trial.get("spec") or {}
    agent, sweep = spec.get("agent") or {}, owner_of(trial) or ("", "")
    source = status.regraded.agent if status.regraded else None
    row = row_of(trial, status, origin.scoring)
    program = source.name if source else row.program
    hosted = bool(agent.get("importPath")) or program not in BUILT_IN
    own = {
        "uid": metadata["uid"],
        "namespace": metadata["namespace"],
        "date": created_at(trial, status).date().isoformat(),
        "sweep": sweep[0],
        "sweep_uid": sweep[1],
        "dataset": origin.dataset,
        "task_digest": row.content,
        "image": status.image_id or "",
        "agent": program if row.agent == row.program else row.agent,
        "program": program,
        "agent_version": source.version if source else agent_version or agent.get("version") or ("" if hosted else __version__),
        "model": (source.model if source else agent.get("model")) or "",
        "harbor_version": HARBOR_VERSION if hosted else "",
        "multistep_version": __version__,
        "regrade_of": (spec.get("regrade") or {}).get("trial") or "",
        "score": row.counts,
        "steps": [_step(each) for each in row.steps],
        "started": _time(status.start_time),
        "finished": _time(status.completion_time),
        "labels": _labels(metadata.get("labels") or {}),
    }
    every = {name: getattr(row, name) for name in _OF_ROW} | own
    return {name: _bounded(every[name], kind) for name, kind in TYPES.items()}


def created_at(trial: Mapping[str, Any], status: TrialStatus) -> datetime:
    """Return when a finished trial was created, in UTC. A repeated reconcile returns the same time."""
    known = status.start_time or status.completion_time or datetime.min
    created = trial["metadata"].get("creationTimestamp")
    return (datetime.fromisoformat(created) if created else known).astimezone(UTC)


def line_of(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of JSON of at most MAX_BYTES. A larger row loses its steps first, then its rewards and labels."""
    kept = dict(row)
    for name in ("", *_DETAILS):
        kept |= {name: None} if name else {}
        line = json.dumps(kept, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace") + b"\n"
        if len(line) <= MAX_BYTES:
            break
    return line


def _step(step: StepRow) -> dict[str, Any]:
    return {
        "name": step.name,
        "rewards": step.rewards,
        "score": step.score,
        "passed": step.passed,
        "exception": step.exception,
        "seconds": step.seconds,
    }


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that users set, without those of Multistep."""
    return {name: value for name, value in labels.items() if not name.startswith(f"{GROUP}/")}


def _time(at: datetime | None) -> str | None:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") if at else None


def _bounded(value: Any, kind: str = "BIGINT") -> Any:
    """Return a value that every reader accepts: texts are short and have no NUL, numbers are finite and within their type."""
    match value:
        case bool():
            return value
        case str():
            return value[:_MAX_CHARACTERS].replace("\0", "\ufffd")
        case int() if kind in _MAX_WHOLE:
            return max(-_MAX_WHOLE[kind], min(_MAX_WHOLE[kind], value))
        case float():
            return value if isfinite(value) else None
        case list():
            return [_bounded(each) for each in value]
        case Mapping():
            return {_bounded(name): _bounded(each) for name, each in value.items()}
    return value
