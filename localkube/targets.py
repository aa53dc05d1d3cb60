"""Select the cluster that the commands use: localkube's cluster (`local`), a kind cluster, or the user's current cluster."""

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from localkube import cluster, health, images, machine
from localkube.commands import capture, print_line, stream, succeeds
from localkube.config import Config
from localkube.errors import LocalkubeError, Unsupported
from localkube.images import BOOKWORM, Build

_KIND_NAME = "multistep"
_KIND_MODULE = "sigs.k8s.io/kind@v0.30.0"


class Target(Protocol):
    """A cluster that localkube's commands start, stop and inspect, and load images into. Some targets support only some methods."""

    def up(self) -> None: ...
    def down(self) -> None: ...
    def status(self) -> bool:
        """Print the state on stdout. Return True if the cluster is healthy."""

    def kubeconfig(self) -> Path: ...
    def build(self, wanted: Build) -> None: ...
    def load(self, image: str) -> None: ...


def choose(config: Config, environment: Mapping[str, str] = os.environ) -> Target:
    """Return the target that the variable CLUSTER names. By default: kind if a container engine works, else `local`."""
    wanted = environment.get("CLUSTER") or "auto"
    if wanted == "auto":
        wanted = "kind" if succeeds(["docker", "info"]) else "local"
    if wanted == "local":
        return Local(config)
    if wanted == "kind":
        return Kind(config.paths.cache_dir)
    if wanted == "current":
        return Current(environment)
    raise Unsupported(f"CLUSTER={wanted} is not known; use local, kind, current or auto")


class Local:
    """The cluster that localkube itself runs on this machine."""

    def __init__(self, config: Config) -> None:
        self.config = config
        _refuse_unless_possible()

    def up(self) -> None:
        """Start the cluster and load the base image, so that pods can use it without a registry."""
        cluster.up(self.config)
        images.ensure_debian(self.config)
        images.load(self.config, BOOKWORM.image.removeprefix("localhost/"))

    def down(self) -> None:
        cluster.down(self.config)

    def status(self) -> bool:
        for state in cluster.states(self.config):
            print(f"{state.name:<20} {f'pid {state.pid}' if state.pid else 'not running':<14} {state.log}")
        problems = health.problems(self.config)
        print(f"machine              {machine.description()}")
        print(f"cluster              {'; '.join(problems) or 'healthy'}")
        print(f"kubeconfig           {self.kubeconfig()}")
        return not problems

    def kubeconfig(self) -> Path:
        return self.config.paths.kubeconfig

    def build(self, wanted: Build) -> None:
        cluster.ensure_tools(self.config)
        images.ensure_bases(self.config, wanted.dockerfile)
        images.build(self.config, wanted)

    def load(self, image: str) -> None:
        images.load(self.config, image)


class Kind:
    """A kind cluster, in containers of this machine's engine."""

    def __init__(self, cache_dir: Path) -> None:
        self.directory = cache_dir / "kind"

    def up(self) -> None:
        kind = self._ensure_kind()
        if _KIND_NAME not in capture([kind, "get", "clusters"]).split():
            stream([kind, "create", "cluster", "--name", _KIND_NAME, "--wait", "120s", *self._kubeconfig_flag()])
        else:
            stream([kind, "export", "kubeconfig", "--name", _KIND_NAME, *self._kubeconfig_flag()])

    def down(self) -> None:
        stream([self._ensure_kind(), "delete", "cluster", "--name", _KIND_NAME, *self._kubeconfig_flag()])
        self.kubeconfig().unlink(missing_ok=True)

    def status(self) -> bool:
        there = _KIND_NAME in capture([self._ensure_kind(), "get", "clusters"]).split()
        print(f"kind cluster {_KIND_NAME}: {'there' if there else 'not there'}")
        return there

    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def build(self, wanted: Build) -> None:
        _docker_build(wanted)

    def load(self, image: str) -> None:
        stream([self._ensure_kind(), "load", "docker-image", "--name", _KIND_NAME, image])

    def _kubeconfig_flag(self) -> list[str]:
        return ["--kubeconfig", str(self.kubeconfig())]

    def _ensure_kind(self) -> str:
        found = shutil.which("kind")
        if found:
            return found
        kind = self.directory / "bin" / "kind"
        if not kind.exists():
            stream(["go", "install", _KIND_MODULE], env=os.environ | {"GOBIN": str(kind.parent)})
        return str(kind)


class Current:
    """The cluster of kubectl's current context. localkube neither starts nor stops it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        first = environment.get("KUBECONFIG", "").split(os.pathsep)[0]
        self.path = Path(first or Path.home() / ".kube" / "config")

    def up(self) -> None:
        if not self.path.exists():
            raise Unsupported(f"CLUSTER=current needs a kubeconfig, and {self.path} does not exist")
        print_line(f"using the current context of {self.path}")

    def down(self) -> None:
        print_line("CLUSTER=current: nothing was started here, nothing is stopped")

    def status(self) -> bool:
        print(capture(["kubectl", "--kubeconfig", str(self.path), "get", "nodes"]), end="")
        return True

    def kubeconfig(self) -> Path:
        return self.path

    def build(self, wanted: Build) -> None:
        _docker_build(wanted)

    def load(self, image: str) -> None:
        raise LocalkubeError(
            f"CLUSTER=current: push {image} to a registry that the cluster's nodes can pull from "
            f"(docker push {image}), and use that name"
        )


def _refuse_unless_possible() -> None:
    """Raise Unsupported if this machine cannot run localkube's cluster. The message names what is missing."""
    missing = []
    if platform.system() != "Linux":
        missing.append("Linux")
    elif os.geteuid() != 0:
        missing.append("root (it makes namespaces, mounts and control groups)")
    if missing:
        raise Unsupported(
            f"localkube needs {' and '.join(missing)}; "
            "or use an engine that `docker info` reaches, or CLUSTER=current with a cluster you have"
        )


def _docker_build(wanted: Build) -> None:
    stream(["docker", "build", *wanted.options, str(wanted.context)])
