"""Select the cluster that the commands use. It is localkube's cluster (`local`), one of kind or k3s, or the user's current
cluster."""

import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from localkube import cluster, engines, health, images, machine
from localkube.clients import ensure_clients
from localkube.commands import capture, print_line, stream, succeeds
from localkube.config import Config
from localkube.engines import Engine
from localkube.errors import CommandFailed, LocalkubeError, Unsupported
from localkube.images import BOOKWORM

_KIND_NAME = "multistep"
_KIND_MODULE = "sigs.k8s.io/kind@v0.30.0"
_KIND_PREFIX = "kind-"  # prefix of the names of kind's contexts
_K3S_KUBECONFIG = Path("/etc/rancher/k3s/k3s.yaml")
_LOCALKUBE_SERVER = re.compile(r"https://10\.243\.(\d+)\.2:6443")
_ANOTHER = "CLUSTER=local starts a cluster of its own on this machine instead"


class Target(Protocol):
    """A cluster that localkube's commands start, stop and inspect, and into which they load images. Some targets support only some
    methods."""

    def up(self) -> None: ...
    def down(self) -> None: ...
    def status(self) -> bool:
        """Print the state on stdout. Return True if the cluster is healthy."""

    def kubeconfig(self) -> Path: ...
    @property
    def engine(self) -> Engine:
        """The engine that builds the cluster's images."""

    def load(self, image: str) -> None: ...


@dataclass(frozen=True)
class Context:
    """The current context of a kubeconfig, and the URL of its API server."""

    name: str
    server: str


def choose(config: Config, environment: Mapping[str, str] = os.environ) -> Target:
    """Return the target that the variable CLUSTER names.

    `auto`, the default, is a cluster that exists (that of KUBECONFIG, of kind or of k3s), otherwise a new one. `own` is a cluster
    that only this project uses, because the tests stop nodes and delete objects.
    """
    wanted = environment.get("CLUSTER") or "auto"
    if wanted == "auto":
        return _existing(config, environment) or _own(config)
    if wanted == "own":
        return _own(config)
    if wanted == "local":
        return Local(config)
    if wanted == "kind":
        return Kind(config.paths.cache_dir)
    if wanted == "k3s":
        return K3s(config)
    if wanted == "current":
        return Current(config, environment)
    raise Unsupported(f"CLUSTER={wanted} is not known; use local, kind, k3s, current, own or auto")


def _own(config: Config) -> Target:
    return Kind(config.paths.cache_dir) if engines.works() else Local(config)


def _existing(config: Config, environment: Mapping[str, str]) -> Target | None:
    if environment.get("KUBECONFIG"):
        return _of_kubeconfig(config, environment)
    if shutil.which("kind") and (names := _kind_clusters("kind")):
        return Kind(config.paths.cache_dir, _KIND_NAME if _KIND_NAME in names else names[0])
    if shutil.which("k3s") and succeeds(["k3s", "kubectl", "get", "--raw", "/readyz"]):
        return K3s(config)
    return None


def _of_kubeconfig(config: Config, environment: Mapping[str, str]) -> Target:
    current = Current(config, environment)
    if current.path == config.paths.kubeconfig:
        return Local(config)
    context = current.context()
    if found := _LOCALKUBE_SERVER.fullmatch(context.server):
        if context.server != config.network.api_url and not environment.get("LOCALKUBE_NUMBER"):
            raise Unsupported(f"KUBECONFIG names localkube's cluster {found[1]}: set LOCALKUBE_NUMBER={found[1]}, too")
        return Local(config)
    if context.name.startswith(_KIND_PREFIX) and shutil.which("kind"):
        return Kind(config.paths.cache_dir, context.name.removeprefix(_KIND_PREFIX))
    if current.path == _K3S_KUBECONFIG and shutil.which("k3s"):
        return K3s(config)
    return current


class Local:
    """The cluster that localkube itself runs on this machine."""

    def __init__(self, config: Config) -> None:
        self.config = config
        _refuse_unless_possible()

    def up(self) -> None:
        cluster.up(self.config)

    def load_base(self) -> None:
        """Load Debian's base image, so that pods can use it without a registry."""
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

    @property
    def engine(self) -> Engine:
        return engines.Buildah(self.config)

    def load(self, image: str) -> None:
        images.load(self.config, image)


class Kind:
    """A kind cluster, in containers of this machine's engine. This project creates and deletes only the one named `multistep`."""

    def __init__(self, cache_dir: Path, name: str = _KIND_NAME) -> None:
        self.directory = cache_dir / "kind"
        self.name = name

    def up(self) -> None:
        kind = self._ensure_kind()
        if self.name in _kind_clusters(kind):
            print_line(f"using the kind cluster {self.name}; {_ANOTHER}")
            stream([kind, "export", "kubeconfig", "--name", self.name, *self._kubeconfig_flag()])
        else:
            stream([kind, "create", "cluster", "--name", self.name, "--wait", "120s", *self._kubeconfig_flag()])

    def down(self) -> None:
        if self.name != _KIND_NAME:
            print_line(f"kind cluster {self.name}: it was not created here, so it is not deleted")
            return
        stream([self._ensure_kind(), "delete", "cluster", "--name", self.name, *self._kubeconfig_flag()])
        self.kubeconfig().unlink(missing_ok=True)

    def status(self) -> bool:
        exists = self.name in _kind_clusters(self._ensure_kind())
        print(f"kind cluster {self.name}: {'exists' if exists else 'does not exist'}")
        return exists

    def kubeconfig(self) -> Path:
        return self.directory / ("kubeconfig" if self.name == _KIND_NAME else f"kubeconfig-{self.name}")

    @property
    def engine(self) -> Engine:
        return engines.Docker()

    def load(self, image: str) -> None:
        stream([self._ensure_kind(), "load", "docker-image", "--name", self.name, image])

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


def _kind_clusters(kind: str) -> list[str]:
    """Return the names of kind's clusters, or [] if kind finds no container engine."""
    try:
        return capture([kind, "get", "clusters"]).split()  # without a cluster, kind prints a sentence on stderr
    except CommandFailed:
        return []


class K3s:
    """The cluster of k3s on this machine, which runs as its service. localkube neither starts nor stops it."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def up(self) -> None:
        if not succeeds(["k3s", "kubectl", "get", "--raw", "/readyz"]):
            raise Unsupported(f"k3s does not answer: start it, for example with `systemctl start k3s`; {_ANOTHER}")
        print_line(f"using the cluster of k3s; {_ANOTHER}")

    def down(self) -> None:
        print_line("k3s: nothing was started here, nothing is stopped")

    def status(self) -> bool:
        print(capture(["k3s", "kubectl", "get", "nodes"]), end="")
        return True

    def kubeconfig(self) -> Path:
        return _K3S_KUBECONFIG

    @cached_property
    def engine(self) -> Engine:
        return engines.find_engine(self.config)

    def load(self, image: str) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "image.tar"
            self.engine.save(image, file)
            capture(["k3s", "ctr", "images", "import", str(file)])


class Current:
    """The cluster of kubectl's current context. localkube neither starts nor stops it."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        self.config = config
        first = environment.get("KUBECONFIG", "").split(os.pathsep)[0]
        self.path = Path(first or Path.home() / ".kube" / "config")

    def up(self) -> None:
        context = self.context()
        print_line(f"using the context {context.name} of {self.path}, {context.server}; {_ANOTHER}")

    def down(self) -> None:
        print_line("CLUSTER=current: nothing was started here, nothing is stopped")

    def status(self) -> bool:
        print(self._kubectl("get", "nodes"), end="")
        return True

    def kubeconfig(self) -> Path:
        return self.path

    @cached_property
    def engine(self) -> Engine:
        return engines.find_engine(self.config)

    def load(self, image: str) -> None:
        raise LocalkubeError(
            f"CLUSTER=current: push {image} to a registry that the cluster's nodes can pull from "
            f"(docker push {image}), and use that name"
        )

    def context(self) -> Context:
        """Return the current context. Raises Unsupported if the kubeconfig is missing or has none."""
        if not self.path.exists():
            raise Unsupported(f"the kubeconfig {self.path} does not exist; name another with KUBECONFIG; {_ANOTHER}")
        try:
            found = json.loads(self._kubectl("config", "view", "--minify", "--output", "json"))
            return Context(found["current-context"], found["clusters"][0]["cluster"]["server"])
        except (CommandFailed, LookupError, TypeError) as error:
            raise Unsupported(f"the kubeconfig {self.path} has no current context; {_ANOTHER}: {error}") from error

    def _kubectl(self, *arguments: str) -> str:
        return capture([str(ensure_clients(self.config.paths.cache_dir) / "kubectl"), "--kubeconfig", str(self.path), *arguments])


def _refuse_unless_possible() -> None:
    """Raise Unsupported if this machine cannot run localkube's cluster. The message names what is missing."""
    missing = []
    if platform.system() != "Linux":
        missing.append("Linux")
    elif os.geteuid() != 0:
        missing.append("root (it makes namespaces, mounts and control groups)")
    if missing:
        raise Unsupported(
            f"localkube needs {' and '.join(missing)}; use a cluster that you have: set KUBECONFIG, or install kind and docker"
        )
