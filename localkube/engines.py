"""Build container images on this machine, with docker or with buildah."""

from pathlib import Path
from typing import Protocol

from localkube import images
from localkube.commands import capture, stream, succeeds
from localkube.config import Config
from localkube.images import Build
from localkube.packages import ensure_packages


class Engine(Protocol):
    """Builds images and keeps them on this machine."""

    def build(self, wanted: Build) -> None: ...
    def has(self, image: str) -> bool: ...
    def tag(self, image: str, other: str) -> None: ...
    def push(self, image: str) -> None:
        """Push the image to the registry in its name."""

    def save(self, image: str, file: Path) -> None:
        """Write the image to a file as a docker-archive."""


class Docker:
    """The engine to which the program `docker` connects."""

    def build(self, wanted: Build) -> None:
        stream(["docker", "build", *wanted.options, str(wanted.context)])

    def has(self, image: str) -> bool:
        return succeeds(["docker", "image", "inspect", image])

    def tag(self, image: str, other: str) -> None:
        capture(["docker", "tag", image, other])

    def push(self, image: str) -> None:
        stream(["docker", "push", image])

    def save(self, image: str, file: Path) -> None:
        capture(["docker", "save", "--output", str(file), image])


class Buildah:
    """buildah, which needs no daemon. It is installed if it is missing, and builds Debian's base images that a Dockerfile names."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def build(self, wanted: Build) -> None:
        ensure_packages()
        images.ensure_bases(self.config, wanted.dockerfile)
        images.build(self.config, wanted)

    def has(self, image: str) -> bool:
        return succeeds(["buildah", "inspect", "--type", "image", image])

    def tag(self, image: str, other: str) -> None:
        capture(["buildah", "tag", image, other])

    def push(self, image: str) -> None:
        stream(["buildah", "push", image])

    def save(self, image: str, file: Path) -> None:
        capture(["buildah", "push", "--quiet", image, f"docker-archive:{file}:{image}"])


def works() -> bool:
    """Return whether `docker` can connect to an engine."""
    return succeeds(["docker", "info"])


def find_engine(config: Config) -> Engine:
    """Return docker if it can connect to an engine, otherwise buildah."""
    return Docker() if works() else Buildah(config)
