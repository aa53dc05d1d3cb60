"""The layout of a task directory: which files exist, the instructions, and the services of compose files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

MAIN: Final = "main"
"""The service that is the trial's own container."""


@dataclass(frozen=True)
class Build:
    """How a service's image is built. context: directory in the task; dockerfile: path relative to the context."""

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
    """A service that must reach a condition before the dependent service starts."""

    service: str
    condition: Literal["started", "healthy", "completed"]


@dataclass(frozen=True)
class Mount:
    """One mount of a service. kind: a volume of the pod, a tmpfs, or a file or directory of the task ("file").

    source: name of the volume ("" for an anonymous volume), or path in Services.files; mode: mode of a file or a tmpfs; 0: default.
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
    """One service of the compose file. The image's value applies if entrypoint or command is None, working_dir or user is "".

    same_image: the service uses main's image; user: uid or uid:gid; names: all names by which other services reach it; ports: e.g.
    ``80/tcp``; restarts: whether Compose would restart the service after it ended.
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

    @property
    def pulled_image(self) -> str:
        """Return the image to pull; "" if the service has a build, because ``image`` is then only the name of the built image."""
        return self.image if self.build is None else ""


@dataclass(frozen=True)
class Host:
    """An entry of extra_hosts: a host name, and an address outside the trial to which it resolves."""

    name: str
    address: str


@dataclass(frozen=True)
class IgnoredKey:
    """A key of a compose file that has no effect, though it may have one with Docker. place: FILE:LINE: KEY."""

    place: str
    message: str


@dataclass(frozen=True)
class Services:
    """The services of one compose file. path: path of the file in the task; files: the task's files that services mount, as a
    tar.gz in base64, "" for none; variables: for the name of each variable that the trial must set, the place in the file that
    uses it; ignored: the keys that have no effect."""

    path: str
    services: tuple[Service, ...]
    hosts: tuple[Host, ...] = ()
    files: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[IgnoredKey, ...] = ()

    @property
    def main(self) -> Service:
        """Return the service that is the trial's own container; a default service if the file does not list it."""
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
