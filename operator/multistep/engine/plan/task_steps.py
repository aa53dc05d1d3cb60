"""Returns the steps of a task. A task without [[steps]] has a single step. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.task_toml import CollectConfig, StepConfig, TaskConfig, VerifierConfig
from multistep.api.trial.spec import TrialSpec
from multistep.errors import InvalidSpec

SINGLE_STEP = "task"  # the name under which a single-step task's only step runs


def steps_of(config: TaskConfig) -> Sequence[StepConfig]:
    """Return the task's steps. A task without [[steps]] has one step, named SINGLE_STEP."""
    if config.steps:
        return config.steps
    return [StepConfig(name=SINGLE_STEP, verifier=config.verifier.model_copy(update={"env": {}, "collect": []}))]


def files_of(config: TaskConfig, layout: TaskLayout, step: StepConfig) -> StepLayout:
    """Return the files of a step's directory, or of the task's root directory for a single-step task."""
    return layout.steps.get(step.name, StepLayout()) if config.steps else layout.root


def verifiers_of(config: TaskConfig) -> list[tuple[str, VerifierConfig]]:
    """Return the path of each verifier table of task.toml, and its content."""
    steps = [(f"steps[{index}].verifier", step.verifier) for index, step in enumerate(config.steps or [])]
    return [("verifier", config.verifier), *steps]


def hooks_of(config: TaskConfig, step: StepConfig) -> list[CollectConfig]:
    """Return the collect hooks of a step: the hooks of the whole task, then the step's own."""
    return [*config.verifier.collect, *step.verifier.collect]


@dataclass(frozen=True)
class TaskPart:
    """The part of a task that a trial runs."""

    kept: int = 0
    """Number of first steps that the trial does not run, because it starts from a checkpoint of another trial."""
    end: int | None = None
    """Index after the trial's last step, None if the trial runs to the task's last step."""


WHOLE_TASK: Final = TaskPart()


def part_of_task(spec: TrialSpec, steps: Sequence[str], *, single: bool) -> TaskPart:
    """Return the part of a task that a trial runs.

    ``steps`` are the names of the task's steps, and ``single`` is whether the task has no [[steps]]. Raises InvalidSpec for a step
    that the task does not have, or if no step is left to run.
    """
    names = () if single else steps
    start, kept, end = "", 0, None
    if spec.from_ is not None:
        start, kept = "spec.from.step", _index("spec.from.step", spec.from_.step, names) + 1
        if kept == len(names):
            raise InvalidSpec(f"{start}: {spec.from_.step!r} is the task's last step: none is left to run. {_steps(names)}")
    if spec.from_step is not None:
        start, kept = "spec.fromStep", _index("spec.fromStep", spec.from_step, names)
    if spec.to_step is not None:
        end = _index("spec.toStep", spec.to_step, names) + 1
        if end <= kept:
            raise InvalidSpec(f"spec.toStep: {spec.to_step!r} is before the trial's first step, by {start}. {_steps(names)}")
    return TaskPart(kept, end)


def _index(field: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise InvalidSpec(f"{field}: the task has no step {name!r}. {_steps(names)}")
    return names.index(name)


def _steps(names: Sequence[str]) -> str:
    return f"Its steps are {', '.join(names)}" if names else "It has no [[steps]]"
