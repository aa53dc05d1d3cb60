"""Define the cluster's components in start order, and their command lines."""

from dataclasses import dataclass

from localkube import cgroups, node, processes
from localkube.config import Config, Node
from localkube.errors import LocalkubeError
from localkube.pki import Pki
from localkube.processes import Identity, Registry


@dataclass(frozen=True)
class Component:
    """A long-running process of a node. Its log has the component's name."""

    name: str
    node: Node
    command: list[str]


def containerd(config: Config, node: Node) -> list[str]:
    return [str(config.paths.bin / "containerd"), "--config", str(config.paths.config / f"{node.prefix}containerd.toml")]


def etcd(config: Config) -> list[str]:
    """Return etcd's command line. Only root can open etcd's socket. The data need not survive a crash of the machine, so fsync is
    off."""
    advertised = "http://127.0.0.1"  # etcd requires an HTTP URL, to which nothing connects, because there are no other members
    return [
        str(config.paths.bin / "etcd"),
        f"--name={config.first.name}",
        f"--data-dir={config.paths.etcd}",
        "--unsafe-no-fsync",
        f"--listen-client-urls=unix://{config.paths.etcd_socket}",
        f"--listen-peer-urls=unix://{config.paths.etcd_socket}.peer",
        f"--advertise-client-urls={advertised}:2379",
        f"--initial-advertise-peer-urls={advertised}:2380",
        f"--initial-cluster={config.first.name}={advertised}:2380",
    ]


def apiserver(config: Config) -> list[str]:
    pki = Pki(config.paths.pki)
    return [
        str(config.paths.bin / "kube-apiserver"),
        f"--etcd-servers=unix://{config.paths.etcd_socket}",
        f"--secure-port={config.network.api_port}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={config.network.node_address}",
        f"--tls-cert-file={pki.certificate('apiserver')}",
        f"--tls-private-key-file={pki.key('apiserver')}",
        f"--client-ca-file={pki.certificate(pki.ca)}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki.key('service-accounts')}",
        f"--service-account-signing-key-file={pki.key('service-accounts')}",
        f"--service-cluster-ip-range={config.network.service_cidr}",
        f"--kubelet-certificate-authority={pki.certificate(pki.ca)}",
        f"--kubelet-client-certificate={pki.certificate('apiserver-kubelet-client')}",
        f"--kubelet-client-key={pki.key('apiserver-kubelet-client')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--audit-policy-file={config.paths.config / 'audit.yaml'}",
        f"--audit-log-path={config.paths.audit_log}",
        "--audit-log-maxsize=100",  # maximum MB per audit log. Rotated logs are in the same directory
        "--audit-log-maxbackup=2",
    ]


def controller_manager(config: Config) -> list[str]:
    pki = Pki(config.paths.pki)
    return [
        str(config.paths.bin / "kube-controller-manager"),
        *_as_user(config, "controller-manager"),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.key('service-accounts')}",
        f"--root-ca-file={pki.certificate(pki.ca)}",
        f"--cluster-signing-cert-file={pki.certificate(pki.ca)}",
        f"--cluster-signing-key-file={pki.key(pki.ca)}",
        "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
        "--kube-api-qps=100",
        "--kube-api-burst=200",
        # Detect a failed node quickly. For this, kubelets renew their leases more often than by default (settings_files.kubelet).
        "--node-monitor-period=2s",
        "--node-monitor-grace-period=24s",
    ]


def scheduler(config: Config) -> list[str]:
    return [
        str(config.paths.bin / "kube-scheduler"),
        *_as_user(config, "scheduler"),
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def _as_user(config: Config, user: str) -> list[str]:
    """Return the flags that the scheduler and the controller manager share. Without `--authentication-kubeconfig`, both serve only
    /healthz."""
    kubeconfig = config.paths.config / f"{user}.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--profiling=false",
    ]


def kubelet(config: Config, node: Node) -> list[str]:
    return [
        str(config.paths.bin / "kubelet"),
        f"--config={config.paths.config / f'{node.prefix}kubelet.yaml'}",
        f"--kubeconfig={config.paths.config / f'{node.prefix}kubelet.kubeconfig'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]


def proxy(config: Config) -> list[str]:
    return [str(config.paths.bin / "kube-proxy"), f"--config={config.paths.config / 'proxy.yaml'}"]


def dns(config: Config) -> list[str]:
    return [str(config.paths.bin / "coredns"), "-conf", str(config.paths.config / "Corefile")]


def of_node(config: Config, node: Node) -> list[Component]:
    """Return a node's components in start order. The first node runs the control plane, kube-proxy and DNS for all nodes."""
    if node != config.first:
        return [
            Component(f"{node.prefix}containerd", node, containerd(config, node)),
            Component(f"{node.prefix}kubelet", node, kubelet(config, node)),
        ]
    return [
        Component("containerd", node, containerd(config, node)),
        Component("etcd", node, etcd(config)),
        Component("apiserver", node, apiserver(config)),
        Component("kubelet", node, kubelet(config, node)),
        Component("proxy", node, proxy(config)),
        Component("dns", node, dns(config)),
        Component("controller-manager", node, controller_manager(config)),
        Component("scheduler", node, scheduler(config)),
    ]


def of_all(config: Config) -> list[Component]:
    """Return the components of all nodes."""
    return [component for node in config.nodes for component in of_node(config, node)]


def by_name(config: Config, name: str) -> Component:
    known = of_all(config)
    for component in known:
        if component.name == name:
            return component
    raise LocalkubeError(f"no component {name!r}; there are: {', '.join(each.name for each in known)}")


def start(config: Config, component: Component) -> Identity:
    """Start the component on its node, unless it already runs."""
    registry = Registry(config.paths.processes)
    running = registry.running(component.name)
    if running:
        return running
    log = config.paths.logs / f"{component.name}.log"
    command = node.inside(config, component.node, component.command)
    identity = processes.start(command, log, cgroups.prepare(component.node.cgroup))
    registry.record(component.name, identity)
    return identity


def stop(config: Config, component: Component, grace_seconds: float) -> None:
    """Stop the component's process. Processes that it started (such as containers) keep running."""
    registry = Registry(config.paths.processes)
    running = registry.running(component.name)
    if running:
        processes.stop(running, grace_seconds)
    registry.forget(component.name)


def dead(config: Config) -> list[Component]:
    """Return the cluster's components whose process is not running."""
    registry = Registry(config.paths.processes)
    return [component for component in of_all(config) if registry.running(component.name) is None]
