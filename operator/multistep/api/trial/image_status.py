"""The images that the cluster builds from a task's Dockerfiles, as a trial's status lists them."""

from __future__ import annotations

from multistep.api.common.base_model import Model


class ImageStatus(Model):
    """An image of the trial's pods that is built in the cluster."""

    name: str
    """What the image is for: environment, tests, steps/NAME/tests, or a service, e.g. environment/docker-compose.yaml/db."""
    build: str
    """Digest of the build's inputs (context, Dockerfile, arguments and platform), which is the image's tag."""
    image: str | None = None
    """The image with its digest; unset until it is in the registry."""
    log: str | None = None
    """URL of the build's log; unset if the registry had the image."""
