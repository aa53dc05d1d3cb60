"""The image of a task's environment: names, builds, pushes and loads it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from multistep.cli.image.engines import Command, DockerLike, Engine, Localkube, answers, execute, find_engine
from multistep.cli.terminal import print_err, working
from multistep.client.kubeconfig import CurrentCluster
from multistep.client.submit.manifests import TrialImage, dns_label
from multistep.client.task.task_directory import TaskDirectory
from multistep.errors import UsageError
from multistep.sources.task.bundle import pack_directory

RUNNER_VARIABLE: Final = "MULTISTEP_RUNNER"
RUNNER_IN_IMAGE: Final = "/multistep/runner"
_PACKAGE = Path(__file__).resolve().parents[2]  # operator/multistep


def find_runner() -> Path | None:
    """Return the runner's path: $MULTISTEP_RUNNER, else in this package or in the source checkout; None if no runner exists.
    Raises UsageError if $MULTISTEP_RUNNER is not a file."""
    if named := os.environ.get(RUNNER_VARIABLE):
        if not Path(named).is_file():
            raise UsageError(f"${RUNNER_VARIABLE} is {named}, which does not exist")
        return Path(named)
    places = [_PACKAGE / "_runner" / "runner"]
    if checkout := source_checkout():
        places.append(checkout / "runner" / "bin" / "runner")
    return next((place for place in places if place.is_file()), None)


def source_checkout() -> Path | None:
    """Return the root of the source checkout that this code runs from, or None."""
    root = _PACKAGE.parents[1]
    return root if (root / "localkube" / "__main__.py").is_file() and (root / "pyproject.toml").is_file() else None


_REPOSITORY = "localhost/multistep"
_DIGEST_LENGTH = 12


class BuildFailed(UsageError):
    """Raised if an image cannot be built from its Dockerfile."""


@dataclass(frozen=True)
class ImageBuild:
    """An image to build."""

    name: str
    """Name of the final image."""
    base: str
    """Name of the image before the runner is added. It is equal to ``name`` if no runner is added."""
    context: Path
    runner: Path | None
    """Path of the runner binary to add, or None."""

    @property
    def image(self) -> TrialImage:
        """Return the built image, for a trial's manifest."""
        return TrialImage(self.name, runner=self.runner is not None)


def plan_build(task: TaskDirectory, name: str | None = None) -> ImageBuild:
    """Return the plan to build a task's image. The default image name contains the digest of the build's inputs."""
    if not (task.environment / "Dockerfile").is_file():
        raise UsageError(
            f"{task.environment} has no Dockerfile, so there is nothing to build: add one, "
            "or name an image as environment.docker_image in task.toml or with --image"
        )
    runner = find_runner()
    repository, digest = f"{_REPOSITORY}/{dns_label(task.name)}", _digest(task.environment, runner)
    base = f"{repository}-base:{digest}" if runner else name or f"{repository}:{digest}"
    return ImageBuild(name or f"{repository}:{digest}", base, task.environment, runner)


def existing_image(task: TaskDirectory, image: str | None = None, *, runner_in_image: bool = False) -> TrialImage | None:
    """Return the image of --image, else the image that `multistep build` builds for the task; None if the task needs no build."""
    if image:
        return TrialImage(image, runner=runner_in_image)
    return plan_build(task).image if task.needs_build else None


def choose_engine(cluster: CurrentCluster | None) -> Engine:
    """Return the engine for this cluster: localkube, which also builds base images that cannot be pulled, for a localkube cluster
    if this code runs from the source checkout and buildah works; otherwise the first engine that works."""
    checkout = source_checkout()
    if cluster and cluster.localkube and checkout and answers(["buildah", "--version"]):
        return Localkube(checkout=checkout, number=cluster.localkube)
    return find_engine()


def build_image(build: ImageBuild, engine: Engine, *, verbose: bool = False) -> None:
    """Build the Dockerfile's image and add the runner as a layer. The layer keeps USER, WORKDIR, ENTRYPOINT and CMD.

    Raises BuildFailed if the Dockerfile cannot be built.
    """
    with working(f"building {build.name} with {engine.name}"):
        try:
            execute(engine.build(build.base, build.context, build.context / "Dockerfile"), verbose=verbose)
        except UsageError as error:
            raise BuildFailed(str(error)) from error
        if build.runner is None:
            return
        with tempfile.TemporaryDirectory(prefix="multistep-") as directory:
            context = Path(directory)
            shutil.copyfile(build.runner, context / "runner")
            (context / "runner").chmod(0o755)
            (context / "Dockerfile").write_text(f"FROM {build.base}\nCOPY runner {RUNNER_IN_IMAGE}\n")
            execute(engine.build(build.name, context, context / "Dockerfile"), verbose=verbose)


def check_pushable(name: str) -> None:
    """Raise UsageError if the image's name contains no registry to push to. Called before the build, which may take long."""
    if TrialImage(name).local:
        raise UsageError(f"{name} has no registry in its name: give one with -t REGISTRY/NAME:TAG --push")


def deliver_image(name: str, engine: Engine, cluster: CurrentCluster | None, *, push: bool, verbose: bool) -> bool:
    """If ``push``, push the image. Else load it into the cluster, or print a hint if the cluster is not local. Return whether the
    image was loaded."""
    if push:
        with working(f"pushing {name}"):
            execute(engine.push(name), verbose=verbose)
        return False
    loaded = load_image(name, engine, cluster, verbose=verbose)
    if not loaded:
        print_err("the image is only on this machine, as the current cluster is not localkube, kind or k3s on it: see --push")
    return loaded


def load_image(name: str, engine: Engine, cluster: CurrentCluster | None, *, verbose: bool = False) -> bool:
    """Load the image into a local cluster. Return False if the cluster is not local, so that its nodes must pull the image."""
    if isinstance(engine, Localkube):
        with working(f"loading {name} into localkube"):
            execute(engine.load(name), verbose=verbose)
    elif cluster and cluster.kind:
        with working(f"loading {name} into kind cluster {cluster.kind}"):
            _load_into_kind(name, engine, cluster.kind, verbose)
    elif cluster and cluster.k3s:
        with working(f"loading {name} into k3s"), _archived(name, engine, verbose) as archive:
            execute(Command(["k3s", "ctr", "images", "import", str(archive)]), verbose=verbose)
    else:
        return False
    return True


def _load_into_kind(name: str, engine: Engine, kind: str, verbose: bool) -> None:
    if shutil.which("kind") is None:
        raise UsageError(
            f"the current context is kind-{kind}, but the command `kind`, which loads images, does not exist: install it"
        )
    if engine == DockerLike("docker"):  # `kind load docker-image` skips nodes that have the image, but needs Docker
        execute(_kind_command(kind, "docker-image", name), verbose=verbose)
        return
    with _archived(name, engine, verbose) as archive:
        execute(_kind_command(kind, "image-archive", str(archive)), verbose=verbose)


@contextmanager
def _archived(name: str, engine: Engine, verbose: bool) -> Iterator[Path]:
    """Write the image to an archive, which exists during the ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="multistep-") as directory:
        archive = Path(directory) / "image.tar"
        execute(engine.save(name, archive), verbose=verbose)
        yield archive


def _kind_command(kind: str, form: str, what: str) -> Command:
    """Return a `kind load` command."""
    return Command(["kind", "load", form, what, "--name", kind])


def _digest(environment: Path, runner: Path | None) -> str:
    digest = hashlib.sha256(pack_directory(environment))
    if runner is not None:
        digest.update(runner.read_bytes())
    return digest.hexdigest()[:_DIGEST_LENGTH]
