"""Reads the steps of a task; a task without [[steps]] has a single step. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.task_toml import CollectConfig, StepConfig, TaskConfig, VerifierConfig

SINGLE_STEP = "task"  # the name under which a single-step task's only step runs


def steps_of(config: TaskConfig) -> Sequence[StepConfig]:
    """Return the task's steps."""
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
    """Return the collect hooks of a step: the task's, then its own."""
    return [*config.verifier.collect, *step.verifier.collect]
