"""A sweep's branches: trials of single steps, from the state that the agent left and from the reference state."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from multistep.api.common.base_model import Model, Name, cel
from multistep.api.common.problems import shown
from multistep.api.trial.spec import TrialTemplateSpec

EACH: Final = "each"

_EACH_ALONE = f"{EACH} must be the only entry: it stands for every step"


class SweepBranch(Model):
    """Trials of single steps, in addition to the sweep's ordinary trials."""

    model_config = cel((f"!has(self.at) || self.at.size() < 2 || !self.at.exists(name, name == '{EACH}')", f"at: {_EACH_ALONE}"))

    at: Annotated[list[Name], Field(min_length=1, max_length=64)] = [EACH]
    """Names of the steps; [each]: every step of every task. A task without a step of these names has no branches."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of trials per task, agent, step and state from which the step starts."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len(self.at) > 1 and EACH in self.at:
            raise ValueError(f"at: {_EACH_ALONE}")
        if twice := [name for name, count in Counter(self.at).items() if count > 1]:
            raise ValueError(f"at: names must be unique; {shown(twice[0])} occurs more than once")
        return self

    def includes(self, step: str) -> bool:
        """Return whether the sweep runs branches of this step."""
        return self.at == [EACH] or step in self.at


class SweepBranchesStatus(Model):
    """The branches, planned when the ordinary trials had finished."""

    trials: int
    """Number of trials of single steps."""
    missing: int = 0
    """Number of steps, over all tasks and agents, without branches from the agent's own state: no ordinary trial has a checkpoint
    before the step."""
    unknown: list[str] = []
    """Names in spec.branch.at that no task has as a step."""
    config_map: str
    """Immutable ConfigMap with the steps of the tasks, and the checkpoints that the ordinary trials left."""
    digest: str
    """Digest of the ConfigMap's content."""


def check_branch_states(where: str, spec: TrialTemplateSpec) -> None:
    """Raise ValueError if the spec of a sweep with branches forbids the checkpoints that branches start from. where: path of
    ``spec`` in the sweep, for the message."""
    made = spec.checkpoints
    for name, wanted, value in (("policy", "AfterStep", made.policy), ("keep", "WithResults", made.keep)):
        if name in made.model_fields_set and value != wanted:
            raise ValueError(f"{where}.checkpoints.{name} must be {wanted} or unset with spec.branch; got {shown(value)}")
    if spec.resume_trajectory:
        raise ValueError(f"{where}.resumeTrajectory must not be true with spec.branch: branches need checkpoints")
