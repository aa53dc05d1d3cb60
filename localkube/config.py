"""Define the cluster's configuration (addresses, names, versions and paths) as one typed object, read at start."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from localkube.errors import LocalkubeError

KUBERNETES_VERSION = "v1.35.4"
ADDED_NUMBERS = range(2, 10)
_NUMBERS = 20  # cluster numbers are 0 to 19
SOURCE_DIR = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Network:
    """Addresses and interface names of one cluster. Its network namespaces have no route to other networks.

    Clusters on one machine differ only in `namespace`, `host_device`, `host_address` and `api_address`.
    """

    namespace: str = "localkube"
    host_device: str = "lkh"
    cluster_device: str = "lkc"
    bridge: str = "lk0"
    host_address: str = "10.243.0.1"
    api_address: str = "10.243.0.2"
    link_prefix_length: int = 30
    node_address: str = "10.244.0.1"  # the first node's address
    pod_cidr: str = "10.244.0.0/16"  # the first node's pod range
    added_nodes: str = "10.245"  # the pod range of node number N is 10.245.N.0/24
    service_cidr: str = "10.96.0.0/16"
    first_service_address: str = "10.96.0.1"
    dns_address: str = "10.96.0.10"
    api_port: int = 6443
    dns_ready_port: int = 8181

    @property
    def api_url(self) -> str:
        return f"https://{self.api_address}:{self.api_port}"

    @classmethod
    def numbered(cls, number: int) -> Self:
        """Return the network of the cluster with this number, 0 to 19."""
        if not number:
            return cls()
        address = f"10.243.{number}"
        return cls(
            namespace=f"localkube{number}", host_device=f"lkh{number}", host_address=f"{address}.1", api_address=f"{address}.2"
        )


@dataclass(frozen=True)
class Node:
    """One node of the cluster. Node 1 runs the control plane, and the names of its files and processes have no `nodeN-` prefix."""

    number: int
    namespace: str
    address: str
    """Address of the node's bridge, which is both the node's address and the gateway of its pods."""
    pod_cidr: str
    cgroup: str

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def holder(self) -> str:
        """The name of the process that keeps the node's namespaces open, and of the node's directory."""
        return "node" if self.number == 1 else self.name

    @property
    def prefix(self) -> str:
        """The prefix of the names of the node's processes, logs, files and certificates."""
        return "" if self.number == 1 else f"{self.name}-"


@dataclass(frozen=True)
class NodeOptions:
    """Options of an added node."""

    stream_idle_seconds: int = 4 * 60 * 60  # the default of Kubernetes and containerd
    """Idle timeout of exec streams."""

    @classmethod
    def read(cls, file: Path) -> Self:
        return cls(**json.loads(file.read_text())) if file.exists() else cls()

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Paths:
    """Paths of one cluster. `localkube down` deletes `run_dir`, but not `cache_dir`."""

    run_dir: Path
    cache_dir: Path

    @property
    def lock(self) -> Path:
        """The path of the cluster's lock file. It is outside `run_dir`, because `down` deletes `run_dir` while it holds the
        lock."""
        return Path("/run") / f"{self.run_dir.name}.lock"

    @property
    def images_lock(self) -> Path:
        """The path of the lock for loading images. Without the lock, concurrent imports of one image fail in containerd."""
        return Path("/run") / f"{self.run_dir.name}-images.lock"

    @property
    def pki(self) -> Path:
        return self.run_dir / "pki"

    @property
    def config(self) -> Path:
        return self.run_dir / "config"

    @property
    def logs(self) -> Path:
        return self.run_dir / "logs"

    @property
    def audit_log(self) -> Path:
        """The path of the audit log, which has one JSON object per line. Rotated files are named `audit-TIME.log`, in the same
        directory."""
        return self.logs / "audit.log"

    @property
    def registries(self) -> Path:
        """The directory of containerd's registry settings. containerd reads their files, HOST:PORT/hosts.toml, at each pull."""
        return self.run_dir / "registries"

    @property
    def processes(self) -> Path:
        return self.run_dir / "processes"

    @property
    def bin(self) -> Path:
        """The directory with a link to each component's program. A link has the component's name, and most links have the same
        target."""
        return self.run_dir / "bin"

    @property
    def etcd(self) -> Path:
        return self.run_dir / "etcd"

    @property
    def etcd_socket(self) -> Path:
        return self.run_dir / "etcd.sock"

    def containerd_socket(self, node: Node) -> Path:
        return self.run_dir / f"{node.prefix}containerd.sock"

    def node(self, node: Node) -> Path:
        """Return the node's own directory. An added node exists if this directory exists."""
        return self.run_dir / node.holder

    def node_var_lib(self, node: Node) -> Path:
        """Return the path that is /var/lib for the node's processes."""
        return self.node(node) / "var-lib"

    def node_var_log(self, node: Node) -> Path:
        """Return the path that is /var/log for the node's processes."""
        return self.node(node) / "var-log"

    def node_options(self, node: Node) -> Path:
        """Return the path of the file with the options of an added node."""
        return self.node(node) / "options.json"

    @property
    def kubeconfig(self) -> Path:
        """The path of the administrator's kubeconfig."""
        return self.run_dir / "kubeconfig"

    @property
    def made_of(self) -> Path:
        """The path of the file that records the programs and command lines with which this cluster was created."""
        return self.run_dir / "made-of"


@dataclass(frozen=True)
class Config:
    """The whole configuration of a cluster."""

    paths: Paths
    network: Network = Network()
    cgroup: str = "multistep-localkube"
    max_pods: int = 500
    volume_count: int = 8
    volume_gibibytes: int = 20
    start_timeout_seconds: float = 180.0

    @property
    def first(self) -> Node:
        """The first node, which always exists."""
        network = self.network
        return Node(1, network.namespace, network.node_address, network.pod_cidr, self.cgroup)

    def added(self, number: int) -> Node:
        """Return the node with this number, 2 to 9, whether it exists or not."""
        network, name = f"{self.network.added_nodes}.{number}", f"node{number}"
        return Node(number, f"{self.network.namespace}-{name}", f"{network}.1", f"{network}.0/24", f"{self.cgroup}/{name}")

    @property
    def nodes(self) -> list[Node]:
        """The first node and all added nodes that exist."""
        return [self.first, *(each for each in map(self.added, ADDED_NUMBERS) if self.paths.node(each).exists())]


def load_config(environment: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration from environment variables, which are all optional and described in README.md."""
    cache = environment.get("MULTISTEP_CACHE") or f"{environment.get('HOME', '/root')}/.cache/multistep"
    number = _number(environment)
    name = f"multistep-localkube-{number}" if number else "multistep-localkube"
    run_dir = environment.get("LOCALKUBE_DIR") or f"/var/opt/{name}"
    return Config(
        paths=Paths(run_dir=Path(run_dir).absolute(), cache_dir=Path(cache).absolute()),
        network=Network.numbered(number),
        cgroup=name,
    )


def _number(environment: Mapping[str, str]) -> int:
    number = environment.get("LOCALKUBE_NUMBER") or "0"
    if number not in map(str, range(_NUMBERS)):
        raise LocalkubeError(f"LOCALKUBE_NUMBER is {number!r}: it must be a number, 0 to {_NUMBERS - 1}")
    return int(number)
