"""What the cluster is made of: addresses, names, versions and places, in one typed object read at start."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KUBERNETES_VERSION = "v1.35.4"
SOURCE_DIR = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Network:
    """Addresses inside the cluster's own network namespace; nothing of it is routed to the outside."""

    namespace: str = "localkube"
    host_device: str = "lkh"
    cluster_device: str = "lkc"
    bridge: str = "lk0"
    host_address: str = "10.243.0.1"
    api_address: str = "10.243.0.2"
    link_prefix_length: int = 30
    node_address: str = "10.244.0.1"
    pod_cidr: str = "10.244.0.0/16"
    service_cidr: str = "10.96.0.0/16"
    first_service_address: str = "10.96.0.1"
    dns_address: str = "10.96.0.10"
    api_port: int = 6443
    dns_ready_port: int = 8181

    @property
    def api_url(self) -> str:
        return f"https://{self.api_address}:{self.api_port}"


@dataclass(frozen=True)
class Paths:
    """Places of one cluster. All of `run_dir` goes away with `down`; `cache_dir` stays."""

    run_dir: Path
    cache_dir: Path

    @property
    def lock(self) -> Path:
        return Path("/run/multistep-localkube.lock")

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

    @property
    def containerd_socket(self) -> Path:
        return self.run_dir / "containerd.sock"

    @property
    def node_var_lib(self) -> Path:
        """What the node's processes see as /var/lib."""
        return self.run_dir / "node" / "var-lib"

    @property
    def node_var_log(self) -> Path:
        """What the node's processes see as /var/log."""
        return self.run_dir / "node" / "var-log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.run_dir / "kubeconfig"

    @property
    def binary_digest(self) -> Path:
        """Names the binary that this cluster was made with."""
        return self.run_dir / "binary-digest"


@dataclass(frozen=True)
class Config:
    """All settings of a cluster."""

    paths: Paths
    network: Network = Network()
    node_name: str = "node1"
    cgroup: str = "multistep-localkube"
    audit: bool = False
    max_pods: int = 500
    volume_count: int = 8
    volume_gibibytes: int = 20
    start_timeout_seconds: float = 60.0


def load_config(environment: Mapping[str, str] = os.environ) -> Config:
    """Read the settings from environment variables (all optional; see README.md)."""
    cache = environment.get("MULTISTEP_CACHE") or f"{environment.get('HOME', '/root')}/.cache/multistep"
    run_dir = environment.get("LOCALKUBE_DIR") or "/var/opt/multistep-localkube"
    return Config(
        paths=Paths(run_dir=Path(run_dir).absolute(), cache_dir=Path(cache).absolute()),
        audit=environment.get("LOCALKUBE_AUDIT", "") in {"1", "true", "yes"},
    )
