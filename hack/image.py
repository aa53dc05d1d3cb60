"""Build and load the operator's image. Its tag is a digest of its inputs, so only changes cause a build."""

import os
import shutil
import subprocess
from pathlib import Path

from hack.places import ROOT, cached, digest_of, files_below
from hack.stages import Failure, stage
from hack.tools import go, go_environment
from localkube import targets
from localkube.commands import capture, stream, succeeds
from localkube.config import load_config
from localkube.images import Build

_RUNNER = ROOT / "runner"
_LOCAL_REPOSITORY = "localhost/multistep-operator"
_INPUTS = ("Dockerfile", ".dockerignore", "pyproject.toml", "requirements/operator.lock", "hack/tools.lock", "operator")
_KEPT_IMAGES = 3


def repository() -> str:
    """Return the image's repository; IMAGE_REPOSITORY sets it for a cluster that pulls from a registry."""
    return os.environ.get("IMAGE_REPOSITORY") or _LOCAL_REPOSITORY


def tag() -> str:
    """Return the image's tag, which changes with every input of the image."""
    inputs = files_below(*(ROOT / name for name in _INPUTS), ROOT / "localkube" / "python.Dockerfile")
    return f"dev-{digest_of(inputs, _runner_digest())}"


def ensure(target: targets.Target) -> str:
    """Build the image unless it exists, and return its name."""
    name = f"{repository()}:{tag()}"
    ensure_runner()
    if not _exists(target, name):
        with stage(f"image {name}"):
            target.build(Build(name, ROOT, ROOT / "Dockerfile", ("RUNNER=prebuilt",)))
            _tag_dev(target, name)
            _delete_old(target)
    return name


def deliver(target: targets.Target, name: str) -> None:
    """Load the image on the cluster's nodes, or push it to the registry from which they pull."""
    with stage("image into the cluster"):
        if not isinstance(target, targets.Current):
            target.load(name)
        elif repository() == _LOCAL_REPOSITORY:
            raise Failure("CLUSTER=current needs a registry: set IMAGE_REPOSITORY=registry.example/multistep-operator")
        else:
            stream(["docker", "push", name])


def ensure_runner() -> Path:
    """Build runner/bin/runner from the current sources unless it is up to date, and return its path."""
    built = cached("runner", _runner_digest(), _build_runner) / "runner"
    binary = _RUNNER / "bin" / "runner"
    if not binary.exists() or not _same(built, binary):
        binary.parent.mkdir(exist_ok=True)
        unfinished = binary.with_name(f"runner.{os.getpid()}")
        shutil.copy2(built, unfinished)
        unfinished.rename(binary)
    return binary


def version() -> str:
    """Return Multistep's version."""
    text = (ROOT / "operator" / "multistep" / "__init__.py").read_text()
    return text.partition('__version__ = "')[2].partition('"')[0]


def _runner_digest() -> str:
    sources = [file for file in files_below(_RUNNER) if not file.name.endswith("_test.go")]
    return digest_of(sources, capture([str(go()), "env", "GOVERSION"], env=go_environment()), version())


def _build_runner(directory: Path) -> None:
    with stage("runner"):
        flags = ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w -X main.version={version()}"]
        stream([str(go()), "build", *flags, "-o", str(directory / "runner"), "."], env=go_environment(), cwd=_RUNNER)


def _same(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _exists(target: targets.Target, name: str) -> bool:
    if isinstance(target, targets.Local):
        return succeeds(["buildah", "inspect", "--type", "image", name])
    return succeeds(["docker", "image", "inspect", name])


def _tag_dev(target: targets.Target, name: str) -> None:
    """Add the tag `dev`, which is the default in settings.py."""
    tool = "buildah" if isinstance(target, targets.Local) else "docker"
    capture([tool, "tag", name, f"{repository()}:dev"])


def _delete_old(target: targets.Target) -> None:
    """Delete all but the newest images; buildah lists the newest first."""
    if not isinstance(target, targets.Local):
        return
    listed = capture(["buildah", "images", "--format", "{{.Name}}:{{.Tag}}", "--filter", f"reference={repository()}"])
    digests = [name for name in listed.split() if ":dev-" in name]
    for name in digests[_KEPT_IMAGES:]:
        subprocess.run(["buildah", "rmi", name], capture_output=True, check=False)


def main() -> None:
    """Build the image and print its name on stdout, for scripts (`make image`)."""
    print(ensure(targets.choose(load_config())))
