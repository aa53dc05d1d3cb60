"""Selects the environment in which a step is verified, as Harbor 0.26 does.

It is the agent's environment, or a separate one that task.toml defines for the step or the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from multistep.api.task.layout import MAIN, Build, Service, Services, StepLayout, TaskLayout
from multistep.api.task.task_toml import EnvironmentConfig, HealthcheckConfig, StepConfig, TaskConfig, VerifierConfig
from multistep.engine.plan.network_types import Network
from multistep.engine.plan.plan_services import PodServices
from multistep.errors import InvalidSpec

Mode = Literal["shared", "separate"]


@dataclass(frozen=True)
class VerifierDefinition:
    """A separate verifier's environment, as task.toml defines it."""

    where: str
    """Path of the environment's table in task.toml."""
    config: EnvironmentConfig
    image: str | None
    """The verifier's own image. None means that it must be built from the Dockerfile in ``tests``, or that the trial's image is
    used if ``tests`` is ""."""
    services: Services | None = None
    """The services in the compose file in ``tests``."""
    tests: str = ""
    """Directory of tests that defines the verifier's own image, "" if it has none."""

    @property
    def bundled(self) -> bool:
        """Return whether the verifier has its own image. Such an image contains the tests, so the operator uploads none."""
        return self.image is not None or bool(self.tests)


@dataclass(frozen=True)
class VerifierEnvironment:
    """A separate verifier's environment, with everything resolved."""

    config: EnvironmentConfig
    image: str
    env: Mapping[str, str]
    healthcheck: HealthcheckConfig | None
    files: bool
    """Whether environment/ is uploaded."""
    own_image: bool
    """Whether ``image`` is the verifier's own image and not the trial's."""
    network: Network
    """Network of the verifier's pod outside of the verifier's phase."""
    sidecar: bool
    """Whether the verifier's pod has an egress sidecar."""
    restored: tuple[str, ...] | None = None
    """Directories of the agent's environment to restore in the pod, () for all, or None if the pod gets the step's artifacts
    instead."""
    services: PodServices | None = None


def verifier_mode(config: TaskConfig, step: StepConfig) -> Mode:
    """Return whether the step has a separate verifier. The step's mode or environment table overrides the task's."""
    for verifier in (step.verifier, config.verifier):
        if verifier.environment_mode:
            return verifier.environment_mode
        if verifier.environment is not None:
            return "separate"
    return "shared"


def verifier_definition(config: TaskConfig, layout: TaskLayout, step: StepConfig, files: StepLayout) -> VerifierDefinition | None:
    """Return the separate environment of a step's verifier, None if the verifier runs in the agent's environment.

    The step's table replaces the task's table, and the step's image replaces the task's image. Table and image are inherited
    separately, so a step may have a table of its own and inherit the task's image. Raises InvalidSpec if the compose file in tests/
    names no image for its service ``main``.
    """
    if verifier_mode(config, step) == "shared":
        return None
    levels = [(config.verifier, layout.root, "tests", "verifier.environment")]
    if config.steps:
        levels.insert(0, (step.verifier, files, f"steps/{step.name}/tests", "steps.verifier.environment"))
    given = [(verifier.environment, where) for verifier, _, _, where in levels if verifier.environment is not None]
    chosen, where = given[0] if given else (config.environment, "environment")
    own_image = next((own_image for level in levels if (own_image := _image(*level))), (None, None, ""))
    return VerifierDefinition(where, chosen, *own_image)


def _image(verifier: VerifierConfig, files: StepLayout, tests: str, where: str) -> tuple[str | None, Services | None, str] | None:
    """Return the verifier's own image, the services of the compose file beside its tests, and the directory of the tests.

    Return None if the verifier has no image of its own, as in Harbor 0.26 (verifier_mode). The returned image is None if it must be
    built from the Dockerfile in ``tests``. ``verifier`` is the verifier's table of the task or the step in task.toml, and ``where``
    is its path.
    """
    services, named = files.tests_compose, verifier.environment.docker_image if verifier.environment else None
    main = services.main if services else Service(MAIN)
    if main.pulled_image or named:
        return main.pulled_image or named, services, tests
    if files.tests_dockerfile and main.build in (None, Build(tests)):
        return None, services, tests
    if main.image:
        return main.image, services, tests
    if services:
        text = "main has no image, and no Dockerfile beside the file to build it from; name one as services.main.image"
        raise InvalidSpec(f"{tests}/docker-compose.yaml: {text}, or in `[{where}].docker_image` of task.toml")
    return None
