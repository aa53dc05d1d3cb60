"""Write the components' configuration files. YAML files are written as JSON, which is valid YAML."""

import base64
import json
from pathlib import Path
from typing import Any

from localkube.config import Config, Network, Node, NodeOptions
from localkube.pki import Pki

PAUSE_IMAGE = "localhost/multistep-pause:1"
Document = dict[str, Any]


def write_all(config: Config, pki: Pki) -> None:
    """Write every file that a component reads when it starts."""
    directory = config.paths.config
    directory.mkdir(parents=True, exist_ok=True)
    for node in config.nodes:
        _write_of_node(config, pki, node)
    (directory / "Corefile").write_text(corefile(config))
    _write(directory / "proxy.yaml", proxy(config))
    _write(directory / "audit.yaml", AUDIT_POLICY)
    for user in ("controller-manager", "scheduler", "proxy", "dns"):
        _write(directory / f"{user}.kubeconfig", kubeconfig(config.network, pki, user))
    _write(config.paths.kubeconfig, kubeconfig(config.network, pki, "admin"))


def _write_of_node(config: Config, pki: Pki, node: Node) -> None:
    directory, prefix = config.paths.config, node.prefix
    options = NodeOptions.read(config.paths.node_options(node))
    (directory / f"{prefix}cni").mkdir(exist_ok=True)
    _write(directory / f"{prefix}cni" / "10-bridge.conflist", cni(config.network, node))
    (directory / f"{prefix}containerd.toml").write_text(containerd(config, node, options))
    _write(directory / f"{prefix}kubelet.yaml", kubelet(config, pki, node, options))
    _write(directory / f"{prefix}kubelet.kubeconfig", kubeconfig(config.network, pki, f"{prefix}kubelet"))


def kubeconfig(network: Network, pki: Pki, user: str) -> Document:
    """Return a kubeconfig for the certificate's user, with embedded certificates and key."""
    name = "multistep-localkube"
    ca = _embedded(pki.certificate(pki.ca))
    credentials = {
        "client-certificate-data": _embedded(pki.certificate(user)),
        "client-key-data": _embedded(pki.key(user)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": network.api_url, "certificate-authority-data": ca}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }


def kubelet(config: Config, pki: Pki, node: Node, options: NodeOptions) -> Document:
    """Return the kubelet's configuration, with client certificates, authorization by the API server, and no anonymous access."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki.certificate(pki.ca))},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki.certificate(f"{node.prefix}kubelet")),
        "tlsPrivateKeyFile": str(pki.key(f"{node.prefix}kubelet")),
        "containerRuntimeEndpoint": f"unix://{config.paths.containerd_socket(node)}",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "clusterDomain": "cluster.local",
        "clusterDNS": [config.network.dns_address],
        "resolvConf": "",
        "maxPods": config.max_pods,
        "serializeImagePulls": False,
        "streamingConnectionIdleTimeout": f"{options.stream_idle_seconds}s",
        "nodeLeaseDurationSeconds": 8,  # the kubelet then renews its lease every 2 s, so that a slow node does not count as failed
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        # This is not "systemd", because all cgroups are below the node's own cgroup, which localkube creates without systemd.
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "cgroupRoot": f"/{node.cgroup}",
        "enforceNodeAllocatable": ["none"],
        "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,  # images are never deleted, because they cannot be pulled again
    }


def proxy(config: Config) -> Document:
    """Return kube-proxy's configuration, which implements Services with nftables."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(config.paths.config / "proxy.kubeconfig")},
        "mode": "nftables",
        # Pods share a bridge, so without masquerading, replies between pods would bypass the Service's address translation.
        "nftables": {"masqueradeAll": True},
        "clusterCIDR": config.network.pod_cidr,
        "hostnameOverride": config.first.name,
        "bindAddress": "127.0.0.1",
        "healthzBindAddress": "127.0.0.1:10256",
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def cni(network: Network, node: Node) -> Document:
    """Return the CNI configuration, with one bridge for all pods, and addresses from the node's range."""
    bridge = {
        "type": "bridge",
        "bridge": network.bridge,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.pod_cidr, "gateway": node.address}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "0.4.0", "name": "localkube", "plugins": [bridge]}


def containerd(config: Config, node: Node, options: NodeOptions) -> str:
    """Return containerd's configuration. Without `restrict_oom_score_adj`, runc fails if CAP_SYS_RESOURCE is missing."""
    programs = config.paths.bin
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
imports = []

[grpc]
  address = "{config.paths.containerd_socket(node)}"

[plugins."io.containerd.grpc.v1.cri"]
  stream_idle_timeout = "{options.stream_idle_seconds}s"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{config.paths.registries}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{config.paths.config / f"{node.prefix}cni"}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "{programs / "containerd-shim-runc-v2"}"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{programs / "runc"}"
      SystemdCgroup = false
"""


def corefile(config: Config) -> str:
    """Return CoreDNS's configuration, which resolves the cluster's names, and answers NXDOMAIN for all other names."""
    address = config.network.node_address
    return f"""\
. {{
    bind {address}
    ready {address}:{config.network.dns_ready_port}
    errors
    cache 5
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {config.paths.config / "dns.kubeconfig"}
        fallthrough in-addr.arpa ip6.arpa
    }}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


AUDIT_POLICY: Document = {  # logs requests of service accounts, without bodies
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write(path: Path, document: Document) -> None:
    """Write a file that only its owner can read, because some files contain keys. A file that already has this content is not
    written, because kube-proxy exits when its file changes."""
    text = json.dumps(document, indent=2) + "\n"
    if path.exists() and path.read_text() == text:
        return
    path.touch(mode=0o600)
    path.write_text(text)
