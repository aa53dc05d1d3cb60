"""What the cluster is made of: addresses, names, versions and places, in one typed object read at start."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from localkube.errors import LocalkubeError

KUBERNETES_VERSION = "v1.35.4"
ADDED_NUMBERS = range(2, 10)
_NUMBERS = 20  # clusters that a machine can have: 0 to 9, and a second one for the tests of each
SOURCE_DIR = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Network:
    """Addresses inside the cluster's own network namespace; nothing of it is routed to the outside.

    So only names on the host and the link to it differ between several clusters of one machine.
    """

    namespace: str = "localkube"
    host_device: str = "lkh"
    cluster_device: str = "lkc"
    bridge: str = "lk0"
    host_address: str = "10.243.0.1"
    api_address: str = "10.243.0.2"
    link_prefix_length: int = 30
    node_address: str = "10.244.0.1"  # of the first node, as its pods' range
    pod_cidr: str = "10.244.0.0/16"
    added_nodes: str = "10.245"  # the node with number N has the pods' range 10.245.N.0/24
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
        """That of the cluster with this number, 0 to 19."""
        if not number:
            return cls()
        address = f"10.243.{number}"
        return cls(
            namespace=f"localkube{number}", host_device=f"lkh{number}", host_address=f"{address}.1", api_address=f"{address}.2"
        )


@dataclass(frozen=True)
class Node:
    """One machine of the cluster. The first, number 1, has the control plane; its files and processes have no prefix.

    address: of its bridge, which is its own and its pods' gateway.
    """

    number: int
    namespace: str
    address: str
    pod_cidr: str
    cgroup: str

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def holder(self) -> str:
        """The name of the process that keeps it alive, and of its directory."""
        return "node" if self.number == 1 else self.name

    @property
    def prefix(self) -> str:
        """Of the names of its processes, logs, files and certificates."""
        return "" if self.number == 1 else f"{self.name}-"


@dataclass(frozen=True)
class NodeOptions:
    """How an added node differs from the first. stream_idle_seconds: an exec stream that is silent for longer is ended."""

    stream_idle_seconds: int = 4 * 60 * 60  # Kubernetes' and containerd's own

    @classmethod
    def read(cls, file: Path) -> Self:
        return cls(**json.loads(file.read_text())) if file.exists() else cls()

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Paths:
    """Places of one cluster. All of `run_dir` goes away with `down`; `cache_dir` stays."""

    run_dir: Path
    cache_dir: Path

    @property
    def lock(self) -> Path:
        """Beside the directory, not in it: `down` removes that, and holds the lock meanwhile."""
        return Path("/run") / f"{self.run_dir.name}.lock"

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
        """Who asked the API server for what, one JSON object a line; older lines are in `audit-TIME.log` beside it."""
        return self.logs / "audit.log"

    @property
    def processes(self) -> Path:
        return self.run_dir / "processes"

    @property
    def bin(self) -> Path:
        """Symbolic links named after the parts, all to the one binary."""
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
        """What belongs to the node alone; an added node is one that has this."""
        return self.run_dir / node.holder

    def node_var_lib(self, node: Node) -> Path:
        """What the node's processes see as /var/lib."""
        return self.node(node) / "var-lib"

    def node_var_log(self, node: Node) -> Path:
        """What the node's processes see as /var/log."""
        return self.node(node) / "var-log"

    def node_options(self, node: Node) -> Path:
        """What was asked for when the node was added."""
        return self.node(node) / "options.json"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.run_dir / "kubeconfig"

    @property
    def made_of(self) -> Path:
        """Names the programs that this cluster was made of, and how they are called."""
        return self.run_dir / "made-of"


@dataclass(frozen=True)
class Config:
    """All settings of a cluster."""

    paths: Paths
    network: Network = Network()
    cgroup: str = "multistep-localkube"
    max_pods: int = 500
    volume_count: int = 8
    volume_gibibytes: int = 20
    start_timeout_seconds: float = 180.0

    @property
    def first(self) -> Node:
        """The node that is always there."""
        network = self.network
        return Node(1, network.namespace, network.node_address, network.pod_cidr, self.cgroup)

    def added(self, number: int) -> Node:
        """The node with this number, 2 to 9, whether it is there or not."""
        network, name = f"{self.network.added_nodes}.{number}", f"node{number}"
        return Node(number, f"{self.network.namespace}-{name}", f"{network}.1", f"{network}.0/24", f"{self.cgroup}/{name}")

    @property
    def nodes(self) -> list[Node]:
        """The first, and those that were added and not removed."""
        return [self.first, *(each for each in map(self.added, ADDED_NUMBERS) if self.paths.node(each).exists())]


def load_config(environment: Mapping[str, str] = os.environ) -> Config:
    """Read the settings from environment variables (all optional; see README.md)."""
    cache = environment.get("MULTISTEP_CACHE") or f"{environment.get('HOME', '/root')}/.cache/multistep"
    number = _number(environment)
    name = f"multistep-localkube-{number}" if number else "multistep-localkube"
    run_dir = environment.get("LOCALKUBE_DIR") or f"/var/opt/{name}"
    return Config(
        paths=Paths(run_dir=Path(run_dir).absolute(), cache_dir=Path(cache).absolute()),
        network=Network.numbered(number),
        cgroup=name,
    )


def second_cluster(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which all is about another cluster, which belongs to the one of this environment: tests use both."""
    others = {"LOCALKUBE_NUMBER": str((_number(environment) + _NUMBERS // 2) % _NUMBERS)}
    if directory := environment.get("LOCALKUBE_DIR"):
        others["LOCALKUBE_DIR"] = f"{directory.rstrip('/')}-second"
    return {**environment, **others}


def _number(environment: Mapping[str, str]) -> int:
    number = environment.get("LOCALKUBE_NUMBER") or "0"
    if number not in map(str, range(_NUMBERS)):
        raise LocalkubeError(f"LOCALKUBE_NUMBER is {number!r}: it must be a number, 0 to {_NUMBERS - 1}")
    return int(number)
