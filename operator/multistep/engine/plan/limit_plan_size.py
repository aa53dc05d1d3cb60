"""Limits a plan's size. Each step inherits all entries of task and trial, so the size is the number of entries times the number of
steps.

The operator makes plans in its event loop. The limits bound a plan to about 60 ms of CPU time and 10 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multistep.api.task.task_toml import EnvironmentConfig, StepConfig, TaskConfig, VerifierConfig
from multistep.api.trial.spec import TrialSpec
from multistep.errors import InvalidSpec

MAX_ENTRIES: Final = 50_000
MAX_HOSTS: Final = 2_000  # fewer than MAX_ENTRIES, because parsing an address takes longer than copying an entry
MAX_CHARACTERS: Final = 4 << 20
MAX_ARTIFACTS: Final = 4_000  # of one step: the runner's record of a collection has at most 64 KiB


def refuse_large(config: TaskConfig, steps: Sequence[StepConfig], spec: TrialSpec, variables: int) -> None:
    """Raise InvalidSpec if the steps together have too many entries. variables: number of trial variables that a step inherits."""
    own, number = config.verifier, len(steps)
    separate = own.environment or EnvironmentConfig()
    for index, step in enumerate(steps):
        artifacts = len(config.artifacts) + len(spec.artifacts) + len(step.artifacts)
        if artifacts > MAX_ARTIFACTS:
            raise InvalidSpec(f"artifacts: {artifacts} in step {index + 1}, more than the limit of {MAX_ARTIFACTS}")
    entries = len(config.artifacts) + len(spec.artifacts) + len(own.collect) + len(own.env) + len(separate.env) + variables
    where = "artifacts, collect hooks and variables of task.toml's top level and of the trial's spec"
    _refuse(where, number * entries, MAX_ENTRIES, number)
    inherited = len(config.environment.allowed_hosts or ()) + len(config.agent.allowed_hosts or ()) + _hosts(own)
    hosts = number * inherited + sum(len(step.agent.allowed_hosts or ()) + _hosts(step.verifier) for step in steps)
    _refuse("allowed_hosts", hosts, MAX_HOSTS, number)
    characters = number * sum(map(len, spec.extra_instructions))
    _refuse("spec.extraInstructions (characters)", characters, MAX_CHARACTERS, number)


def _hosts(verifier: VerifierConfig) -> int:
    own = verifier.environment.allowed_hosts if verifier.environment else None
    return len(verifier.allowed_hosts or ()) + len(own or ())


def _refuse(where: str, size: int, limit: int, steps: int) -> None:
    if size > limit:
        raise InvalidSpec(f"{where}: {size} over all {steps} steps, more than the limit of {limit}: use fewer, or fewer steps")
