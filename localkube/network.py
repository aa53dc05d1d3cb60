"""The cluster's own network namespace: a link to the host, a bridge for the pods, and no way out."""

from pathlib import Path

from localkube.commands import capture, succeeds
from localkube.config import Network


def exists(network: Network) -> bool:
    return _namespace_file(network).exists()


def create(network: Network) -> None:
    """Make the namespace and everything in it; what is there from an interrupted attempt is replaced."""
    remove(network)
    prefix = network.link_prefix_length
    capture(["ip", "netns", "add", network.namespace])
    link = ["ip", "link", "add", network.host_device, "type", "veth"]
    capture([*link, "peer", "name", network.cluster_device, "netns", network.namespace])
    capture(["ip", "address", "add", f"{network.host_address}/{prefix}", "dev", network.host_device])
    capture(["ip", "link", "set", network.host_device, "up"])
    inside = ["ip", "-netns", network.namespace, "-batch", "-"]
    capture(inside, stdin=_inside_commands(network))
    capture([*enter(network), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])


def remove(network: Network) -> None:
    """Remove the namespace, with all of its interfaces, and the host's end of the link."""
    if exists(network):
        capture(["ip", "netns", "delete", network.namespace])
    succeeds(["ip", "link", "delete", network.host_device])  # it may be gone already with its other end


def enter(network: Network) -> list[str]:
    """Prefix of a command that shall run in the namespace (`ip netns exec` would hide the cgroup mounts)."""
    return ["nsenter", f"--net={_namespace_file(network)}"]


def _inside_commands(network: Network) -> str:
    pod_prefix_length = network.pod_cidr.split("/")[1]
    return f"""\
link set lo up
address add {network.api_address}/{network.link_prefix_length} dev {network.cluster_device}
link set {network.cluster_device} up
link add {network.bridge} type bridge
address add {network.node_address}/{pod_prefix_length} dev {network.bridge}
link set {network.bridge} up
"""


def _namespace_file(network: Network) -> Path:
    return Path("/run/netns") / network.namespace
