"""The cluster's own network: a namespace for each node with a bridge for its pods, a link to the host, and no way out."""

from pathlib import Path

from localkube.commands import capture, succeeds
from localkube.config import Network, Node


def exists(node: Node) -> bool:
    return _namespace_file(node).exists()


def create(network: Network, node: Node) -> None:
    """Make the first node's namespace and everything in it; what is there from an interrupted attempt is replaced."""
    remove(node)
    unlink(network)
    _make_namespace(node)
    link = ["ip", "link", "add", network.host_device, "type", "veth"]
    capture([*link, "peer", "name", network.cluster_device, "netns", node.namespace])
    capture(["ip", "address", "add", f"{network.host_address}/{network.link_prefix_length}", "dev", network.host_device])
    capture(["ip", "link", "set", network.host_device, "up"])
    _configure(node, _first_commands(network, node))


def join(network: Network, first: Node, node: Node) -> None:
    """Make an added node's namespace with a link to the first node, which is its way to everything else."""
    leave(first, node)
    _make_namespace(node)
    _configure(first, f"link add {node.name} type veth peer name {first.name} netns {node.namespace}\n")
    _configure(first, _link_commands(first, node, node.pod_cidr))
    _configure(node, _bridge_commands(network, node) + _link_commands(node, first, "default"))


def leave(first: Node, node: Node) -> None:
    """Remove an added node's namespace, and the first node's end of the link: it would go by itself, but not at once."""
    remove(node)
    succeeds(["ip", "-netns", first.namespace, "link", "delete", node.name])


def cut(first: Node, node: Node) -> None:
    """From now on, nothing reaches the added node, and nothing that it says reaches anybody."""
    _configure(node, f"link set {first.name} down\n")


def remove(node: Node) -> None:
    """Remove the namespace with all of its interfaces; other ends of links go with them."""
    if exists(node):
        capture(["ip", "netns", "delete", node.namespace])


def unlink(network: Network) -> None:
    """Remove the host's end of its link to the first node; it may be gone already with its other end."""
    succeeds(["ip", "link", "delete", network.host_device])


def enter(node: Node) -> list[str]:
    """Prefix of a command that shall run in the namespace (`ip netns exec` would hide the cgroup mounts)."""
    return ["nsenter", f"--net={_namespace_file(node)}"]


def _make_namespace(node: Node) -> None:
    capture(["ip", "netns", "add", node.namespace])
    capture([*enter(node), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])


def _configure(node: Node, commands: str) -> None:
    capture(["ip", "-netns", node.namespace, "-batch", "-"], stdin=commands)


def _first_commands(network: Network, node: Node) -> str:
    return f"""\
{_bridge_commands(network, node)}\
address add {network.api_address}/{network.link_prefix_length} dev {network.cluster_device}
link set {network.cluster_device} up
"""


def _bridge_commands(network: Network, node: Node) -> str:
    return f"""\
link set lo up
link add {network.bridge} type bridge
address add {node.address}/{node.pod_cidr.split("/")[1]} dev {network.bridge}
link set {network.bridge} up
"""


def _link_commands(here: Node, there: Node, behind: str) -> str:
    """One end of the link between two nodes; it is named after the other one, which is the way to `behind`."""
    return f"""\
address add {here.address} peer {there.address} dev {there.name}
link set {there.name} up
route add {behind} via {there.address} dev {there.name}
"""


def _namespace_file(node: Node) -> Path:
    return Path("/run/netns") / node.namespace
