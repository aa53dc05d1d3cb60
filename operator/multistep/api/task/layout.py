"""The layout of a task directory: which files exist, the instructions, and the services of compose files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multistep.api.task.compose_services import Services


@dataclass(frozen=True)
class StepLayout:
    """The files of one ``steps/NAME/`` directory, or of the task's root for a single-step task."""

    instruction: str | None = None  # text of instruction.md without canary lines, as Harbor 0.25 loads it
    workdir: bool = False  # workdir/ exists
    setup: bool = False  # workdir/setup.sh exists
    resume: bool = False  # workdir/resume.sh exists
    tests: bool = False  # tests/ exists
    test_script: bool = False  # tests/test.sh exists, and .harborignore does not exclude it
    tests_dockerfile: bool = False  # tests/Dockerfile exists, for a separate verifier's image
    tests_compose: Services | None = None  # the services of the compose file in tests/, for a separate verifier
    solution: bool = False  # solution/ exists
    trajectory: bool = False  # trajectory.json exists: the agent's prior context
    solve_script: bool = False  # solution/solve.sh exists, and .harborignore does not exclude it


@dataclass(frozen=True)
class TaskLayout:
    """The files of a task directory."""

    steps: Mapping[str, StepLayout] = field(default_factory=dict)  # by step name; {} for a single-step task
    root: StepLayout = StepLayout()  # files at the root: shared tests/ and solution/; for a single-step task all files
    dockerfile: bool = False  # environment/Dockerfile exists
    compose: Services | None = None  # the services of the compose file in environment/, if any
    environment_files: bool = False  # environment/ exists and is not empty

    @property
    def compose_files(self) -> list[Services]:
        """Return the services of each compose file: the environment's and those of separate verifiers."""
        files = [self.compose, *(each.tests_compose for each in (self.root, *self.steps.values()))]
        return [each for each in files if each is not None]
