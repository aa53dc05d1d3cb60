"""The layout of a task directory: which files exist. Of the contents only instructions are included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepLayout:
    """One ``steps/NAME/`` directory (or the task's root, for a single-step task)."""

    instruction: str | None = None  # as in the file, canary lines removed (Harbor 0.25, load)
    workdir: bool = False  # workdir/ exists
    setup: bool = False  # workdir/setup.sh exists
    tests: bool = False  # tests/ exists
    test_script: bool = False  # tests/test.sh exists and is not ignored
    tests_dockerfile: bool = False  # tests/Dockerfile exists, for a separate verifier's image
    tests_compose: bool = False  # tests/ has a compose file
    solution: bool = False  # solution/ exists
    trajectory: bool = False  # trajectory.json exists: the agent's prior context
    solve_script: bool = False  # solution/solve.sh exists and is not ignored


@dataclass(frozen=True)
class TaskLayout:
    """A task directory."""

    steps: Mapping[str, StepLayout] = field(default_factory=dict)  # by step name; {} for a single-step task
    root: StepLayout = StepLayout()  # at the task's root: shared tests/, solution/ (all, if single-step)
    dockerfile: bool = False  # environment/Dockerfile exists
    compose: str | None = None  # the compose file under environment/, if any
    environment_files: bool = False  # environment/ exists and is not empty
