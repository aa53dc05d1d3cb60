"""Selects the images of a trial's container and of a compose file's services, and plans the services of a trial's pods."""

from __future__ import annotations

from collections.abc import Mapping

from multistep.api.task.compose_services import Services
from multistep.api.task.layout import TaskLayout
from multistep.api.task.task_toml import TaskConfig
from multistep.api.trial.spec import TrialSpec
from multistep.engine.plan.image_builds import ENVIRONMENT, FROM_DOCKERFILE, Images, service_build
from multistep.engine.plan.plan_services import BUILDS_OFF, PodServices, plan_services, values_of
from multistep.errors import InvalidSpec, InvalidTask


def trial_image(config: TaskConfig, layout: TaskLayout, spec: TrialSpec, images: Images) -> str:
    """Return the image of the trial's container. The image in the compose file overrides docker_image, as in Harbor 0.25
    (docker.docker).

    images: images that the cluster built. Raises InvalidSpec if the image must be built first, InvalidTask if the task names no
    image and has no Dockerfile.
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
    """Return the plan of a pod's services; None if the pod has none. image: image of the pod's main container; env: values of
    environment.env; variables: the trial's variables; images: images that the cluster built. Raises InvalidTask; InvalidSpec for
    an image that must be built first, and for a field of the spec that needs a restore, which would lose the services' state."""
    if services is None:
        return None
    _refuse_restores(spec)
    built = {each.name: images[name] for each in services.others if (name := service_build(services, each.name)) in images}
    return plan_services(services, image, {**built, **spec.environment.service_images}, values_of(services, env, variables))


def _refuse_restores(spec: TrialSpec) -> None:
    """Raise InvalidSpec if a field of the spec requires restoring an environment, because no checkpoint has the services' state."""
    lost = "the task has services, whose state is in no checkpoint"
    if spec.verifier.isolation != "Declared":
        raise InvalidSpec(f"spec.verifier.isolation: must be Declared, got {spec.verifier.isolation}: {lost}")
    if spec.checkpoints.policy != "Never":
        raise InvalidSpec(f"spec.checkpoints.policy: must be Never, got {spec.checkpoints.policy}: {lost}")
    for name, given in (("from", spec.from_), ("fromStep", spec.from_step), ("regrade", spec.regrade)):
        if given is not None:
            raise InvalidSpec(f"spec.{name}: must not be set: {lost}")
