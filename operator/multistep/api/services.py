"""The services of a task's compose file, as the compose reader (compose/) prints them. Only what a trial's pod has is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

MAIN: Final = "main"
"""The service that is the trial's own container."""


@dataclass(frozen=True)
class Build:
    """How a service's image is built. context: directory in the task; dockerfile: relative to it."""

    context: str
    dockerfile: str = "Dockerfile"
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""


@dataclass(frozen=True)
class ServiceHealthcheck:
    """A service's healthcheck. Times in seconds."""

    argv: tuple[str, ...]
    interval: float = 30.0
    timeout: float = 30.0
    start_period: float = 0.0
    start_interval: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class Dependency:
    """A service that must have reached a condition before."""

    service: str
    condition: Literal["started", "healthy", "completed"]


@dataclass(frozen=True)
class Mount:
    """What a service mounts at target. kind: a volume of the pod, a tmpfs, or a file or directory of the task.

    source: name of the volume ("" for one of its own), or path in Services.files; mode: of a file or a tmpfs, 0 for the usual one.
    """

    kind: Literal["volume", "tmpfs", "file"]
    target: str
    source: str = ""
    subpath: str = ""
    read_only: bool = False
    no_copy: bool = False
    size_bytes: int = 0
    mode: int = 0


@dataclass(frozen=True)
class Service:
    """One service. What is empty is the image's, but for entrypoint and command, which are None then.

    same_image: the image is main's; user: uid or uid:gid; names: all by which other services know it; ports: e.g. ``80/tcp``;
    restarts: whether Compose would start it again when it ends.
    """

    name: str
    image: str = ""
    same_image: bool = False
    build: Build | None = None
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    user: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    cpu_request: float = 0.0
    memory_request: int = 0
    healthcheck: ServiceHealthcheck | None = None
    depends_on: tuple[Dependency, ...] = ()
    mounts: tuple[Mount, ...] = ()
    names: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    read_only: bool = False
    no_new_privileges: bool = False
    shm_bytes: int = 0
    stdin: bool = False
    tty: bool = False
    restarts: bool = False
    line: int = 0


@dataclass(frozen=True)
class Host:
    """A name of an address outside of the trial."""

    name: str
    address: str


@dataclass(frozen=True)
class Services:
    """The services of one compose file. path: the file's, in the task; files: the task's files that they mount, as a tar.gz in
    base64, "" for none; variables: names of the variables whose values are the trial's, and where the file uses them."""

    path: str
    services: tuple[Service, ...]
    hosts: tuple[Host, ...] = ()
    files: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Service:
        """Return the file's entry for the trial's own container."""
        return next((each for each in self.services if each.name == MAIN), Service(MAIN, same_image=True))

    @property
    def others(self) -> tuple[Service, ...]:
        """Return the services that are containers of their own."""
        return tuple(each for each in self.services if each.name != MAIN)
