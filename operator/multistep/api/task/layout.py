"""The layout of a task directory: which files it has, the texts of its instructions, and the services of its compose files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

MAIN: Final = "main"
"""The service that is the trial's own container."""


@dataclass(frozen=True)
class Build:
    """How a service's image is built."""

    context: str
    """Directory in the task that is the build context."""
    dockerfile: str = "Dockerfile"
    """Path of the Dockerfile, relative to the context."""
    args: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    """The stage of the Dockerfile to build, "" for the last one."""


@dataclass(frozen=True)
class ServiceHealthcheck:
    """A service's healthcheck. All times are in seconds."""

    argv: tuple[str, ...]
    interval: float = 30.0
    timeout: float = 30.0
    start_period: float = 0.0
    start_interval: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class Dependency:
    """A service that must reach a condition before the dependent service starts."""

    service: str
    condition: Literal["started", "healthy", "completed"]


@dataclass(frozen=True)
class Mount:
    """A mount of a service."""

    kind: Literal["volume", "tmpfs", "file"]
    """``file`` means a file or directory of the task."""
    target: str
    source: str = ""
    """Name of the volume ("" for an anonymous one), or path of the file in Services.files."""
    subpath: str = ""
    read_only: bool = False
    no_copy: bool = False
    """Whether a new volume stays empty instead of getting the image's files."""
    size_bytes: int = 0
    mode: int = 0
    """Permission bits of a file or a tmpfs, 0 for the default."""


@dataclass(frozen=True)
class Service:
    """A service of the compose file. The image's value applies if entrypoint or command is None, or working_dir or user is ""."""

    name: str
    image: str = ""
    same_image: bool = False
    """Whether the service uses the image of the service main."""
    build: Build | None = None
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    user: str = ""
    """A uid, or uid:gid."""
    cpus: float = 0.0
    memory_bytes: int = 0
    cpu_request: float = 0.0
    memory_request: int = 0
    healthcheck: ServiceHealthcheck | None = None
    depends_on: tuple[Dependency, ...] = ()
    mounts: tuple[Mount, ...] = ()
    names: tuple[str, ...] = ()
    """All names by which other services reach this one."""
    ports: tuple[str, ...] = ()
    """Ports such as ``80/tcp``."""
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    read_only: bool = False
    no_new_privileges: bool = False
    shm_bytes: int = 0
    stdin: bool = False
    tty: bool = False
    restarts: bool = False
    """Whether Compose would restart the service after it ended."""
    line: int = 0
    """Line of the service in the compose file."""

    @property
    def pulled_image(self) -> str:
        """Return the image to pull, "" if the service has a build, because ``image`` is then only the name of the built image."""
        return self.image if self.build is None else ""


@dataclass(frozen=True)
class Host:
    """An entry of extra_hosts, which is a host name and the address outside the trial to which it resolves."""

    name: str
    address: str


@dataclass(frozen=True)
class IgnoredKey:
    """A key of a compose file that has no effect, although it may have one with Docker."""

    place: str
    """The place in the file, as FILE:LINE: KEY."""
    message: str


@dataclass(frozen=True)
class Services:
    """The services of one compose file."""

    path: str
    """Path of the file in the task."""
    services: tuple[Service, ...]
    hosts: tuple[Host, ...] = ()
    files: str = ""
    """The task's files that services mount, as a tar.gz in base64, "" for none."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Names of the variables that the trial must set, each with the place in the file that uses it."""
    ignored: tuple[IgnoredKey, ...] = ()
    """The keys that have no effect."""

    @property
    def main(self) -> Service:
        """Return the service that is the trial's own container, which is a default service if the file does not list it."""
        return next((each for each in self.services if each.name == MAIN), Service(MAIN, same_image=True))

    @property
    def jobs(self) -> frozenset[str]:
        """Return the names of the services that must complete before other services start."""
        return frozenset(each.service for service in self.services for each in service.depends_on if each.condition == "completed")

    @property
    def others(self) -> tuple[Service, ...]:
        """Return all services except the one that is the trial's own container."""
        return tuple(each for each in self.services if each.name != MAIN)


@dataclass(frozen=True)
class StepLayout:
    """The files of one ``steps/NAME/`` directory, or of the task's root for a single-step task."""

    instruction: str | None = None  # text of instruction.md without leading canary comments, as Harbor 0.26 loads it
    workdir: bool = False  # workdir/ exists
    setup: bool = False  # workdir/setup.sh exists
    resume: bool = False  # workdir/resume.sh exists
    tests: bool = False  # tests/ exists
    test_script: bool = False  # tests/test.sh exists, and .harborignore does not exclude it
    tests_dockerfile: bool = False  # tests/Dockerfile exists, for a separate verifier's image
    tests_compose: Services | None = None  # services of the compose file in tests/, for a separate verifier
    solution: bool = False  # solution/ exists
    trajectory: bool = False  # trajectory.json exists, which has the agent's prior context
    solve_script: bool = False  # solution/solve.sh exists, and .harborignore does not exclude it


@dataclass(frozen=True)
class TaskLayout:
    """The files of a task directory."""

    steps: Mapping[str, StepLayout] = field(default_factory=dict)  # by name of the step, {} for a single-step task
    root: StepLayout = StepLayout()  # files at the root, which are shared by all steps
    dockerfile: bool = False  # environment/Dockerfile exists
    compose: Services | None = None  # services of the compose file in environment/, if any
    environment_files: bool = False  # environment/ exists and is not empty

    @property
    def compose_files(self) -> list[Services]:
        """Return the services of each compose file: the environment's and those of separate verifiers."""
        files = [self.compose, *(each.tests_compose for each in (self.root, *self.steps.values()))]
        return [each for each in files if each is not None]
