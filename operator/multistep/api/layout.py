"""What a task directory holds, as far as the engine needs to know: facts, no contents but instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepLayout:
    """One ``steps/NAME/`` directory (or the task's root, for a single-step task)."""

    instruction: str | None = None  # as in the file, canary lines removed (Harbor 0.25, load)
    workdir: bool = False  # workdir/ is there
    setup: bool = False  # workdir/setup.sh is there
    tests: bool = False  # tests/ is there
    test_script: bool = False  # tests/test.sh is there and not ignored
    tests_dockerfile: bool = False  # tests/Dockerfile is there, for a separate verifier's image
    tests_compose: bool = False  # so is its compose file
    solution: bool = False  # solution/ is there
    trajectory: bool = False  # trajectory.json exists: the agent's prior context
    solve_script: bool = False  # solution/solve.sh is there and not ignored


@dataclass(frozen=True)
class TaskLayout:
    """A task directory."""

    steps: Mapping[str, StepLayout] = field(default_factory=dict)  # by step name; {} for a single-step task
    root: StepLayout = StepLayout()  # at the task's root: shared tests/, solution/ (all, if single-step)
    dockerfile: bool = False  # environment/Dockerfile is there
    compose: str | None = None  # the compose file under environment/, if any
    environment_files: bool = False  # environment/ is there and not empty
