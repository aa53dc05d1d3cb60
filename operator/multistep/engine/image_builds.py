"""Which images of a task the cluster has to build, and the digest that identifies each build. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from multistep.api.content import Content
from multistep.api.layout import TaskLayout
from multistep.api.services import Build
from multistep.api.task_toml import TaskConfig
from multistep.api.trial_spec import TrialSpec
from multistep.engine.task_steps import files_of, steps_of
from multistep.engine.verifier_environment import Definition, definition
from multistep.errors import InvalidSpec

ENVIRONMENT = "environment"
TESTS = "tests"
FROM_DOCKERFILE = Build(ENVIRONMENT)  # what a compose file means with `build: .`
Images = Mapping[str, str]  # images that were built from a task's Dockerfiles, by the build's name
NO_IMAGES: Images = MappingProxyType({})
BUILDS_OFF = "set the chart's value builds.registry, so that the cluster builds it"


@dataclass(frozen=True)
class ImageBuild:
    """An image to build from files of the task.

    name: path of the build's directory in the task, by which a plan finds the image; content: the upload with the build context;
    directory: the context's path in the upload, "" for all of it; dockerfile: path in the context; target: the stage to build, ""
    for the last one.
    """

    name: str
    content: Content
    directory: str = ""
    dockerfile: str = "Dockerfile"
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""

    @property
    def path(self) -> str:
        """Return the path of the Dockerfile in the task, for messages."""
        return "/".join(filter(None, [self.name, self.dockerfile]))


def needed(config: TaskConfig, layout: TaskLayout, spec: TrialSpec) -> list[ImageBuild]:
    """Return the builds of the images that a trial needs and that neither the spec nor task.toml names."""
    found = {}
    main = layout.compose.main if layout.compose else None
    named = spec.environment.image or config.environment.docker_image or (main.image if main else "")
    elsewhere = main is not None and main.build not in (None, FROM_DOCKERFILE)
    if layout.dockerfile and not named and not elsewhere:
        found[ENVIRONMENT] = ImageBuild(ENVIRONMENT, Content("environment"))
    if spec.verifier.disable:
        return list(found.values())
    for step in steps_of(config):
        defined = definition(config, layout, step, files_of(config, layout, step))
        if defined is not None and defined.dockerfile is not None:
            own = step.name if defined.dockerfile != TESTS else None
            found[defined.dockerfile] = ImageBuild(defined.dockerfile, Content("verifier", own))
    return list(found.values())


def build_id(build: ImageBuild, context: str, platform: str) -> str:
    """Return the digest of a build's inputs, in hexadecimal digits. context: SHA-256 of the upload with the context."""
    inputs = [context, build.directory, build.dockerfile, sorted(build.args.items()), build.target, platform]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def verifier_image(defined: Definition, images: Images) -> str | None:
    """Return the image of a separate verifier's own; None if it has none. Raises InvalidSpec if it must be built first."""
    if defined.image is not None or defined.dockerfile is None:
        return defined.image
    if defined.dockerfile not in images:
        field = f"[{'verifier' if defined.dockerfile == TESTS else 'steps.verifier'}.environment].docker_image"
        raise InvalidSpec(
            f"{defined.dockerfile}/Dockerfile: {BUILDS_OFF}, or build it and name the image in `{field}` of task.toml"
        )
    return images[defined.dockerfile]
