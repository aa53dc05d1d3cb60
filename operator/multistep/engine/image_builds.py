"""Which images of a task the cluster has to build, and the digest that identifies each build. Pure functions."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from multistep.api.content import Content
from multistep.api.layout import TaskLayout
from multistep.api.services import MAIN, Build, Service, Services
from multistep.api.task_toml import EnvironmentConfig, TaskConfig
from multistep.api.trial_spec import TrialSpec
from multistep.engine.services import BUILDS_OFF, values_of, with_values
from multistep.engine.task_steps import files_of, steps_of
from multistep.engine.templates import resolved_field
from multistep.engine.verifier_environment import Definition, definition
from multistep.errors import InvalidSpec, InvalidTask

ENVIRONMENT = "environment"
TESTS = "tests"
FROM_DOCKERFILE = Build(ENVIRONMENT)  # what a compose file means with `build: .`
Images = Mapping[str, str]  # images that were built from a task's Dockerfiles, by the build's name
NO_IMAGES: Images = MappingProxyType({})


@dataclass(frozen=True)
class ImageBuild:
    """An image to build from files of the task.

    name: path of the Dockerfile's directory in the task, or of the compose file and the service, by which a plan finds the image;
    content: the upload with the build context; root: the directory of the task that is uploaded; directory: the context's path in
    it, "" for all of it; dockerfile: path in the context; target: the stage to build, "" for the last one.
    """

    name: str
    content: Content
    root: str
    directory: str = ""
    dockerfile: str = "Dockerfile"
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""

    @property
    def path(self) -> str:
        """Return the path of the Dockerfile in the task, for messages."""
        return "/".join(filter(None, [self.root, self.directory, self.dockerfile]))


def needed(config: TaskConfig, layout: TaskLayout, spec: TrialSpec, variables: Mapping[str, str]) -> list[ImageBuild]:
    """Return the builds of the images that a trial needs and that neither the spec nor task.toml names. variables: the trial's,
    for arguments of builds in compose files. Raises InvalidSpec and InvalidTask."""
    found = list(_environment(config, layout, spec))
    if layout.compose:
        found += _services(layout.compose, Content("environment"), spec, config.environment, variables)
    for step in () if spec.verifier.disable else steps_of(config):
        defined = definition(config, layout, step, files_of(config, layout, step))
        if defined is not None and defined.tests:
            content = Content("verifier", step.name if defined.tests != TESTS else None)
            found += [ImageBuild(defined.tests, content, defined.tests)] if defined.image is None else []
            if defined.services:
                found += _services(defined.services, content, spec, defined.config, variables)
    return list({each.name: each for each in found}.values())


def _environment(config: TaskConfig, layout: TaskLayout, spec: TrialSpec) -> Iterator[ImageBuild]:
    """Yield the build of environment/Dockerfile if the trial's image is made from it."""
    main = layout.compose.main if layout.compose else Service(MAIN)
    named = spec.environment.image or config.environment.docker_image or main.image
    if layout.dockerfile and not named and main.build in (None, FROM_DOCKERFILE):
        yield ImageBuild(ENVIRONMENT, Content("environment"), ENVIRONMENT)


def _services(
    services: Services, content: Content, spec: TrialSpec, config: EnvironmentConfig, variables: Mapping[str, str]
) -> Iterator[ImageBuild]:
    """Yield the builds of a compose file's services. content: the upload of the file's directory; config: the table of task.toml
    whose env the arguments may name."""
    root = posixpath.dirname(services.path)
    for each in services.services:
        named = spec.environment.image if each.name == MAIN else spec.environment.service_images.get(each.name)
        if each.build is None or named or (each.name == MAIN and each.build == Build(root)):
            continue
        if each.build.context != root and not each.build.context.startswith(f"{root}/"):
            text = f"must be {root}/ or a directory in it, which is all that a build gets, got {each.build.context!r}"
            field = f"{services.path}:{each.line}: services.{each.name}.build.context"
            raise InvalidTask(text, kind="ValueError", field=field)
        directory = each.build.context.removeprefix(root).lstrip("/")
        env = values_of(services, resolved_field("environment.env", config.env, variables), variables)
        args = {name: with_values(value, env) for name, value in each.build.args.items()}
        yield ImageBuild(
            service_build(services, each.name), content, root, directory, each.build.dockerfile, args, each.build.target
        )


def service_build(services: Services, service: str) -> str:
    """Return the name of the build of a service's image."""
    return f"{services.path}/{service}"


def build_id(build: ImageBuild, context: str, platform: str) -> str:
    """Return the digest of a build's inputs, in hexadecimal digits. context: SHA-256 of the upload with the context."""
    inputs = [context, build.directory, build.dockerfile, sorted(build.args.items()), build.target, platform]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def verifier_image(defined: Definition, images: Images) -> str | None:
    """Return the image of a separate verifier's own; None if it has none. Raises InvalidSpec if it must be built first."""
    if defined.image is not None or not defined.tests:
        return defined.image
    if defined.tests not in images:
        field = f"[{'verifier' if defined.tests == TESTS else 'steps.verifier'}.environment].docker_image"
        raise InvalidSpec(f"{defined.tests}/Dockerfile: {BUILDS_OFF}, or build it and name the image in `{field}` of task.toml")
    return images[defined.tests]
