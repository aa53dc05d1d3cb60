"""Build and load the images of the operator, the agent host and the builder. An image's tag is a digest of its inputs, so an image
is built only if an input changed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hack.paths import CACHE, ROOT, cached, digest_of, files_below
from hack.stages import Failure, stage
from hack.tools import go, go_environment
from localkube import targets
from localkube.build import BUILD_FLAGS, FEWER_COLLECTIONS
from localkube.commands import capture, stream
from localkube.config import load_config
from localkube.engines import Buildah
from localkube.images import Build, ensure_debian
from localkube.locking import exclusive
from localkube.packages import ensure_packages

_RUNNER = "runner"  # Go programs have the names of their directories
_COMPOSE = "compose"
_PROGRAMS = (_RUNNER, "egress", _COMPOSE)
_LOCAL_REPOSITORY = "localhost/multistep-operator"
_KEPT_IMAGES = 3
TAG_PREFIX = "dev-"


@dataclass(frozen=True)
class Image:
    """An image of the project."""

    local_repository: str
    suffix: str
    """Suffix of IMAGE_REPOSITORY, which together are the image's repository."""
    dockerfile: str
    inputs: tuple[str, ...]
    """Files and directories that the build uses."""
    arguments: tuple[str, ...] = ()
    """Build arguments."""
    programs: tuple[str, ...] = ()
    """Go programs that the image contains."""


_COMMON_INPUTS = (".dockerignore", "hack/tools.lock", "localkube/python.Dockerfile")
OPERATOR = Image(
    _LOCAL_REPOSITORY,
    "",
    "Dockerfile",
    (*_COMMON_INPUTS, "Dockerfile", "pyproject.toml", "requirements/operator.lock", "operator"),
    ("PROGRAMS=prebuilt",),
    _PROGRAMS,
)
_HOST_INPUTS = ("Dockerfile", "pyproject.toml", "requirements/host.lock", "multistep_host")
AGENT_HOST = Image(
    "localhost/multistep-agent-host",
    "-agent-host",
    "agent-host/Dockerfile",
    (*_COMMON_INPUTS, *(f"agent-host/{name}" for name in _HOST_INPUTS)),
)
BUILDER = Image("localhost/multistep-builder", "-builder", "builder/Dockerfile", ("builder/Dockerfile",))
ALL = (OPERATOR, AGENT_HOST, BUILDER)
_EXAMPLE_DOCKERFILE = "examples/hello-multi-step-advanced/environment/Dockerfile"
EXAMPLE = Image("localhost/multistep-example", "-example", _EXAMPLE_DOCKERFILE, (_EXAMPLE_DOCKERFILE,))


def repository(image: Image = OPERATOR) -> str:
    """Return IMAGE_REPOSITORY (in a registry) with the image's suffix, or the local name if that variable is unset."""
    chosen = os.environ.get("IMAGE_REPOSITORY")
    return f"{chosen}{image.suffix}" if chosen else image.local_repository


def tag(image: Image = OPERATOR) -> str:
    """Return the image's tag, a digest of the image's inputs."""
    inputs = files_below(*(ROOT / name for name in image.inputs))
    return f"{TAG_PREFIX}{digest_of(inputs, *(_program_digest(each) for each in image.programs))}"


def name_of(image: Image) -> str:
    """Return the image's repository and tag."""
    return f"{repository(image)}:{tag(image)}"


def ensure(target: targets.Target, image: Image = OPERATOR) -> str:
    """Build the image unless it exists, and return its name."""
    name = name_of(image)
    for program in image.programs:
        _ensure_program(program)
    if not target.engine.has(name):
        with stage(f"image {name}"):
            target.engine.build(Build(name, ROOT, ROOT / image.dockerfile, image.arguments))
            target.engine.tag(name, f"{repository(image)}:dev")  # the default image of settings.py
            _delete_old(target, image)
    return name


def deliver(target: targets.Target, name: str) -> None:
    """Load the image onto the cluster's nodes, or push it to the registry from which the nodes pull."""
    with stage(f"{name} into the cluster"):
        if isinstance(target, targets.Current):
            target.engine.push(name)
        else:
            target.load(name)


def check_deliverable(target: targets.Target) -> None:
    """Raise Failure if the cluster's nodes pull images from a registry and IMAGE_REPOSITORY names none."""
    if isinstance(target, targets.Current) and repository() == _LOCAL_REPOSITORY:
        raise Failure(
            f"the nodes of the cluster of {target.kubeconfig()} pull images from a registry: name a repository to which you can "
            "push, such as IMAGE_REPOSITORY=registry.example/multistep-operator; or CLUSTER=local starts a cluster on this machine"
        )


def in_cluster(target: targets.Target, images: Sequence[Image]) -> dict[Image, str]:
    """Deliver the images and return their names."""
    names = {each: name_of(each) for each in images}
    for name in names.values():
        deliver(target, name)
    return names


def ensure_all(target: targets.Target, wanted: Sequence[Image] = ALL, *, with_base: bool = False) -> list[Image]:
    """Build the wanted images if they changed. Return them and those of ALL that were built before from the current sources.

    with_base also builds Debian's base image, for a cluster of localkube.
    """
    with exclusive(CACHE / "image-builds.lock"):  # two clusters may be deployed to at the same time
        if with_base and isinstance(target, targets.Local):
            ensure_packages()
            ensure_debian(target.config)
        for each in wanted:
            ensure(target, each)
    return [each for each in ALL if each in wanted or target.engine.has(name_of(each))]


def ensure_runner() -> Path:
    """Build runner/bin/runner from the current sources if it is not up to date, and return its path."""
    return _ensure_program(_RUNNER)


def ensure_compose_reader() -> Path:
    """Build compose/bin/compose from the current sources if it is not up to date, and return its path."""
    return _ensure_program(_COMPOSE)


def _ensure_program(name: str) -> Path:
    built = cached(name, _program_digest(name), partial(_build_program, name)) / name
    binary = ROOT / name / "bin" / name
    if not binary.exists() or not _same(built, binary):
        binary.parent.mkdir(exist_ok=True)
        unfinished = binary.with_name(f"{name}.{os.getpid()}")
        shutil.copy2(built, unfinished)
        unfinished.rename(binary)
    return binary


def version() -> str:
    """Return Multistep's version."""
    text = (ROOT / "operator" / "multistep" / "version.py").read_text()
    return text.partition('__version__ = "')[2].partition('"')[0]


def _program_digest(name: str) -> str:
    sources = [file for file in files_below(ROOT / name) if not file.name.endswith("_test.go")]
    return digest_of(sources, capture([str(go()), "env", "GOVERSION"], env=go_environment()), version())


def _build_program(name: str, directory: Path) -> None:
    with stage(name):
        flags = [*BUILD_FLAGS, "-ldflags", f"-s -w -X main.version={version()}"]
        env = go_environment(**FEWER_COLLECTIONS)
        stream([str(go()), "build", *flags, "-o", str(directory / name), "."], env=env, cwd=ROOT / name)


def _same(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _delete_old(target: targets.Target, image: Image) -> None:
    """Delete all images of this repository but the newest ``_KEPT_IMAGES``. buildah lists the newest image first."""
    if not isinstance(target.engine, Buildah):
        return
    listed = capture(["buildah", "images", "--format", "{{.Name}}:{{.Tag}}", "--filter", f"reference={repository(image)}"])
    digests = [name for name in listed.split() if ":dev-" in name]
    for name in digests[_KEPT_IMAGES:]:
        subprocess.run(["buildah", "rmi", name], capture_output=True, check=False)


def main() -> None:
    """Build the images and print their names on stdout, for scripts (`make image`)."""
    target = targets.choose(load_config())
    for image in ALL:
        print(ensure(target, image))
