"""The files of Harbor 0.25's trial directory, from a plan and a journal. Pure; times come in as seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..api.task import TaskConfig
from ..api.trial import MultiStepTrial
from ..engine.journal import Journal
from ..engine.plan import TrialEnv, TrialPlan
from ..engine.rewards import StepException


def files(
    plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, *, failure: StepException | None = None
) -> dict[str, bytes]:
    """All of them by name, for Volume.finish. failure: why the trial is Failed, if it is."""
    raise NotImplementedError


def result_json(
    plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, *, failure: StepException | None = None
) -> dict[str, Any]:
    """result.json."""
    raise NotImplementedError


def config_json(plan: TrialPlan, trial: MultiStepTrial) -> dict[str, Any]:
    """config.json."""
    raise NotImplementedError


def lock_json(plan: TrialPlan, trial: MultiStepTrial) -> dict[str, Any]:
    """lock.json."""
    raise NotImplementedError


def trial_log(plan: TrialPlan, trial: MultiStepTrial, journal: Journal, now: float, *, failure: StepException | None = None) -> str:
    """trial.log."""
    raise NotImplementedError


def exception_txt(journal: Journal, *, failure: StepException | None = None) -> str | None:
    """exception.txt, or None when there is to be none."""
    raise NotImplementedError


def secrets(env: TrialEnv, config: TaskConfig) -> set[str]:
    """Values to be redacted (Harbor 0.25, end of a trial)."""
    raise NotImplementedError


def is_sensitive(name: str) -> bool:
    """Whether a variable's name looks like a secret's (Harbor 0.25)."""
    raise NotImplementedError


_Env = Mapping[str, str]
