"""Container engines behind one interface: the commands that build, push and save an image."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from multistep.errors import UsageError

_ASK_SECONDS: Final = 15
_SHOWN_LINES: Final = 60


@dataclass(frozen=True)
class Command:
    """A command to execute."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables."""
    directory: Path | None = None
    """Working directory, or None for the current directory."""


class Engine(Protocol):
    """A container engine."""

    @property
    def name(self) -> str:
        """Return the name of its command, for messages."""

    def build(self, image: str, context: Path, dockerfile: Path) -> Command:
        """Return the command that builds the image of a Dockerfile and uses the cache of earlier builds."""

    def push(self, image: str) -> Command:
        """Return the command that pushes the image to its registry."""

    def save(self, image: str, file: Path) -> Command:
        """Return the command that writes the image as a docker-archive."""


@dataclass(frozen=True)
class DockerLike:
    """The engine docker or podman, whose commands are the same."""

    name: str

    def build(self, image: str, context: Path, dockerfile: Path) -> Command:
        return Command([self.name, "build", "--tag", image, "--file", str(dockerfile), str(context)])

    def push(self, image: str) -> Command:
        return Command([self.name, "push", image])

    def save(self, image: str, file: Path) -> Command:
        return Command([self.name, "save", "--output", str(file), image])


@dataclass(frozen=True)
class Buildah:
    """The engine buildah, which has no daemon. Its chroot isolation works even in a container; $BUILDAH_ISOLATION overrides it."""

    name: str = "buildah"

    def build(self, image: str, context: Path, dockerfile: Path) -> Command:
        isolation = os.environ.get("BUILDAH_ISOLATION", "chroot")
        options = ["--isolation", isolation, "--layers", "--tag", image, "--file", str(dockerfile)]
        return Command(["buildah", "bud", *options, str(context)])

    def push(self, image: str) -> Command:
        return Command(["buildah", "push", image])

    def save(self, image: str, file: Path) -> Command:
        return Command(["buildah", "push", "--quiet", image, f"docker-archive:{file}:{image}"])


@dataclass(frozen=True)
class Localkube(Buildah):
    """The engine buildah, called through localkube (the test cluster in the source checkout). If a base image cannot be pulled,
    localkube builds it."""

    name: str = "localkube"
    checkout: Path = Path()
    number: str = "0"

    def build(self, image: str, context: Path, dockerfile: Path) -> Command:
        return self.ask("build", "--tag", image, "--file", str(dockerfile), str(context))

    def load(self, image: str) -> Command:
        """Return the command that loads the image into the cluster."""
        return self.ask("load", image)

    def ask(self, *arguments: str) -> Command:
        """Return a command that calls localkube with these arguments."""
        env = {"CLUSTER": "local", "LOCALKUBE_NUMBER": self.number}
        return Command([sys.executable, "-m", "localkube", *arguments], env, self.checkout)


def find_engine(works: Callable[[Sequence[str]], bool] | None = None) -> Engine:
    """Return the first of docker, podman and buildah that works. Raises UsageError if none works.

    works: a function that returns whether a command succeeds. The default is ``answers``.
    """
    asks = works or answers
    for name in ("docker", "podman"):
        if asks([name, "info"]):
            return DockerLike(name)
    if sys.platform == "linux" and asks(["buildah", "--version"]):
        return Buildah()
    raise UsageError(
        "no container engine works here: `docker info` and `podman info` fail and buildah does not exist; "
        "start one of them, or name an image that exists with --image"
    )


def answers(argv: Sequence[str]) -> bool:
    """Report whether the command exists and succeeds within _ASK_SECONDS."""
    if shutil.which(argv[0]) is None:
        return False
    try:
        asked = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def execute(command: Command, *, verbose: bool = False) -> None:
    """Execute the command. Raises UsageError if it fails. verbose: stream the output to stderr as it appears."""
    with tempfile.TemporaryFile() as kept:
        out = None if verbose else kept
        ended = subprocess.run(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=out or sys.stderr.fileno(),
            stderr=out or sys.stderr.fileno(),
            env=os.environ | dict(command.env),
            cwd=command.directory,
            check=False,
        )
        if ended.returncode == 0:
            return
        kept.seek(0)
        last = b"".join(deque(kept, _SHOWN_LINES)).decode(errors="replace").rstrip()
    output = f"; its last lines:\n{last}\nmore: repeat the command with --verbose" if last else ""
    raise UsageError(f"`{' '.join(command.argv)}` failed with status {ended.returncode}{output}")
