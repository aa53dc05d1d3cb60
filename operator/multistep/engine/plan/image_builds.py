"""Lists the images of a task that the cluster must build, and computes the digest that identifies each build."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from multistep.api.task.layout import MAIN, Build, Service, Services, TaskLayout
from multistep.api.task.task_toml import StepConfig, TaskConfig
from multistep.api.trial.content_references import Content
from multistep.api.trial.spec import TrialSpec
from multistep.engine.plan.plan_services import BUILDS_OFF, PodServices, plan_services, values_of, with_values
from multistep.engine.plan.resolve_templates import resolved_field
from multistep.engine.plan.task_steps import files_of, steps_of
from multistep.engine.plan.verifier_environment import VerifierDefinition, verifier_definition
from multistep.errors import InvalidSpec, InvalidTask

ENVIRONMENT = "environment"
TESTS = "tests"
FROM_DOCKERFILE = Build(ENVIRONMENT)  # the build of environment/Dockerfile; `build: .` in a compose file means the same
Images = Mapping[str, str]  # the images that the cluster built from a task's Dockerfiles, by ImageBuild.name
NO_IMAGES: Images = MappingProxyType({})


@dataclass(frozen=True)
class ImageBuild:
    """An image to build from files of the task."""

    name: str
    """Key under which a plan finds the image: the path of the Dockerfile's directory in the task, or COMPOSE_FILE/SERVICE."""
    content: Content
    """The part of the task that is uploaded to the builder's pod. It contains the build context."""
    root: str
    """Path in the task of the directory that is uploaded."""
    directory: str = ""
    """Path of the build context in ``root``, "" for ``root`` itself."""
    dockerfile: str = "Dockerfile"
    """Path of the Dockerfile in the build context."""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    """The stage of the Dockerfile to build, "" for the last one."""

    @property
    def path(self) -> str:
        """Return the path of the Dockerfile in the task, for messages."""
        return "/".join(filter(None, [self.root, self.directory, self.dockerfile]))


def needed_builds(config: TaskConfig, layout: TaskLayout, spec: TrialSpec, variables: Mapping[str, str]) -> list[ImageBuild]:
    """Return the builds of the images that a trial needs and that neither the spec nor the task names.

    ``variables`` are the trial's variables, which build arguments in compose files may use. Raises InvalidSpec and InvalidTask.
    """
    builds = list(_environment(config, layout, spec, variables))
    for step in () if spec.verifier.disable else steps_of(config):
        defined = verifier_definition(config, layout, step, files_of(config, layout, step))
        if defined is not None and defined.tests:
            builds += _verifier(defined, step, spec, variables)
    return list({build.name: build for build in builds}.values())


def _environment(config: TaskConfig, layout: TaskLayout, spec: TrialSpec, variables: Mapping[str, str]) -> Iterator[ImageBuild]:
    """Yield the builds of the trial's image and of the services in environment/."""
    content, compose = Content("environment"), layout.compose
    main = compose.main if compose else Service(MAIN)
    named = config.environment.docker_image or main.pulled_image
    if layout.dockerfile and not (spec.environment.image or named) and main.build in (None, FROM_DOCKERFILE):
        yield ImageBuild(ENVIRONMENT, content, ENVIRONMENT)
    if compose is None:
        return
    env = values_of(compose, resolved_field("environment.env", config.environment.env, variables), variables)
    if main.build not in (None, FROM_DOCKERFILE) and not spec.environment.image:
        yield _service(compose, main, content, env)
    yield from _services(compose, content, spec, env)


def _verifier(defined: VerifierDefinition, step: StepConfig, spec: TrialSpec, variables: Mapping[str, str]) -> Iterator[ImageBuild]:
    """Yield the builds of a separate verifier's own image and of its services."""
    content = Content("verifier", step.name if defined.tests != TESTS else None)
    if defined.image is None:
        yield ImageBuild(defined.tests, content, defined.tests)
    if defined.services:
        resolved = resolved_field(f"{defined.where}.env", defined.config.env, variables)
        env = values_of(defined.services, resolved, variables)
        yield from _services(defined.services, content, spec, env)


def _services(services: Services, content: Content, spec: TrialSpec, env: Mapping[str, str]) -> Iterator[ImageBuild]:
    """Yield the builds of a compose file's services other than main."""
    for service in services.others:
        if service.build is not None and service.name not in spec.environment.service_images:
            yield _service(services, service, content, env)


def _service(services: Services, service: Service, content: Content, env: Mapping[str, str]) -> ImageBuild:
    """Return the build of a service's image.

    ``content`` is the upload of the compose file's directory. ``env`` has the variables that the build arguments may use. Raises
    InvalidTask for a build context outside of the upload.
    """
    assert service.build is not None
    build, root = service.build, posixpath.dirname(services.path)
    if build.context != root and not build.context.startswith(f"{root}/"):
        text = f"must be {root}/ or a directory in it, which is all that a build gets, got {build.context!r}"
        field = f"{services.path}:{service.line}: services.{service.name}.build.context"
        raise InvalidTask(text, kind="ValueError", field=field)
    directory = build.context.removeprefix(root).lstrip("/")
    args = {name: with_values(value, env) for name, value in build.args.items()}
    return ImageBuild(service_build(services, service.name), content, root, directory, build.dockerfile, args, build.target)


def service_build(services: Services, service: str) -> str:
    """Return the name of the build of a service's image."""
    return f"{services.path}/{service}"


def build_id(build: ImageBuild, context: str, platform: str) -> str:
    """Return the SHA-256 of a build's inputs as hexadecimal digits. ``context`` is the SHA-256 of the uploaded files."""
    inputs = [context, build.directory, build.dockerfile, sorted(build.args.items()), build.target, platform]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def verifier_image(defined: VerifierDefinition, images: Images) -> str | None:
    """Return a separate verifier's own image, None if it has none. Raises InvalidSpec if the image must be built first."""
    if defined.image is not None or not defined.tests:
        return defined.image
    if defined.tests not in images:
        field = f"[{'verifier' if defined.tests == TESTS else 'steps.verifier'}.environment].docker_image"
        raise InvalidSpec(f"{defined.tests}/Dockerfile: {BUILDS_OFF}, or build it and name the image in `{field}` of task.toml")
    return images[defined.tests]


def trial_image(config: TaskConfig, layout: TaskLayout, spec: TrialSpec, images: Images) -> str:
    """Return the image of the trial's container. An image in the compose file overrides docker_image, as in Harbor 0.26
    (docker.docker).

    Raises InvalidSpec if the image must be built first, and InvalidTask if the task names no image and has no Dockerfile.
    """
    if spec.environment.image:
        return spec.environment.image
    main = layout.compose.main if layout.compose else None
    if layout.compose and main and main.build is not None and main.build != FROM_DOCKERFILE:
        if image := images.get(service_build(layout.compose, main.name)):
            return image
        raise InvalidSpec(
            f"spec.environment.image: the image of main must be built from {main.build.context}/{main.build.dockerfile}; "
            f"{BUILDS_OFF}, or build it, and name the image here"
        )
    if image := (main.pulled_image if main else "") or config.environment.docker_image or images.get(ENVIRONMENT):
        return image
    if layout.dockerfile:
        raise InvalidSpec(
            f"spec.environment.image: the task has only a Dockerfile; {BUILDS_OFF}, or build it with `multistep build TASK` "
            "and name the image here, or use `multistep run TASK`"
        )
    raise InvalidTask(
        "is missing, and so are environment.docker_image and spec.environment.image",
        kind="FileNotFoundError",
        field="environment/Dockerfile",
    )


def services_of(
    services: Services | None, image: str, spec: TrialSpec, env: Mapping[str, str], variables: Mapping[str, str], images: Images
) -> PodServices | None:
    """Return the plan of a pod's services, None if the pod has none.

    ``image`` is the image of the pod's main container, ``env`` the resolved environment.env, and ``variables`` the trial's
    variables. Raises InvalidTask. Raises InvalidSpec if an image must be built first, or if a field of the spec requires restoring
    an environment, because that would lose the services' state.
    """
    if services is None:
        return None
    _refuse_restores(spec)
    built = {service.name: images[name] for service in services.others if (name := service_build(services, service.name)) in images}
    return plan_services(services, image, {**built, **spec.environment.service_images}, values_of(services, env, variables))


def _refuse_restores(spec: TrialSpec) -> None:
    """Raise InvalidSpec if a field of the spec requires restoring an environment. No checkpoint contains the services' state."""
    lost = "the task has services, whose state is in no checkpoint"
    if spec.verifier.isolation != "Declared":
        raise InvalidSpec(f"spec.verifier.isolation: must be Declared, got {spec.verifier.isolation}: {lost}")
    if spec.checkpoints.policy != "Never":
        raise InvalidSpec(f"spec.checkpoints.policy: must be Never, got {spec.checkpoints.policy}: {lost}")
    for name, given in (("from", spec.from_), ("fromStep", spec.from_step), ("regrade", spec.regrade)):
        if given is not None:
            raise InvalidSpec(f"spec.{name}: must not be set: {lost}")
