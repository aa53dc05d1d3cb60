"""The plans of a trial's models by role, beside its agent's (spec.models)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multistep.api.task.task_toml import TaskConfig
from multistep.api.trial.models_spec import JudgeSpec, UserSpec
from multistep.errors import InvalidSpec


@dataclass(frozen=True)
class JudgePlan:
    """The plan of a trial's judge."""

    spec: JudgeSpec
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Values of the secret variables. Only the model gateway gets them."""


@dataclass(frozen=True)
class UserPlan:
    """The plan of a trial's simulated user."""

    spec: UserSpec
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Values of the secret variables. Only the model gateway gets them."""


def user_plan(spec: UserSpec | None, credentials: Mapping[str, str], config: TaskConfig) -> UserPlan | None:
    """Return the plan of the simulated user. Raises InvalidSpec for a task with steps, which Harbor refuses, too."""
    if spec is not None and config.steps:
        raise InvalidSpec("spec.models.user: a simulated user is for tasks without [[steps]], as in Harbor 0.26")
    return None if spec is None else UserPlan(spec, credentials)
