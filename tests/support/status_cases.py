"""Trials and step results from which the tests compute statuses."""

from __future__ import annotations

from typing import Any

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.journal.journal import StepRun
from multistep.engine.status.status_size import to_json

NOW = 1_700_000_000.7


def trial(former: TrialStatus | None = None, **spec: Any) -> MultiStepTrial:
    """Return a trial of generation 3. former: its status, which is converted to JSON and back, as the API server does."""
    made = {"metadata": {"name": "t", "uid": "u", "generation": 3}, "spec": {"task": {"inline": {"config": {}}}, **spec}}
    return parse_trial({**made, "status": to_json(former) if former else {}})


def run(name: str = "a", **fields: Any) -> StepRun:
    return StepRun(name, **{"started_at": 10.0, "completed_at": 20.0, "phase": "artifacts", **fields})
