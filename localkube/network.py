"""Create the cluster's network. Each node has a network namespace with a bridge for pods, and the first node a link to the host.
There is no route to other networks."""

from pathlib import Path

from localkube.commands import capture, succeeds
from localkube.config import Network, Node


def exists(node: Node) -> bool:
    return _namespace_file(node).exists()


def create(network: Network, node: Node) -> None:
    """Create the first node's network namespace and its devices. Delete the network of an interrupted start before."""
    remove(node)
    unlink(network)
    _make_namespace(node)
    link = ["ip", "link", "add", network.host_device, "type", "veth"]
    capture([*link, "peer", "name", network.cluster_device, "netns", node.namespace])
    capture(["ip", "address", "add", f"{network.host_address}/{network.link_prefix_length}", "dev", network.host_device])
    capture(["ip", "link", "set", network.host_device, "up"])
    _configure(node, _first_commands(network, node))


def join(network: Network, first: Node, node: Node) -> None:
    """Create an added node's namespace and its link to the first node, which is its default route."""
    leave(first, node)
    _make_namespace(node)
    _configure(first, f"link add {node.name} type veth peer name {first.name} netns {node.namespace}\n")
    _configure(first, _link_commands(first, node, node.pod_cidr))
    _configure(node, _bridge_commands(network, node) + _link_commands(node, first, "default"))


def leave(first: Node, node: Node) -> None:
    """Delete an added node's namespace, and the first node's end of the link, which the kernel would only delete later."""
    remove(node)
    succeeds(["ip", "-netns", first.namespace, "link", "delete", node.name])


def cut(first: Node, node: Node) -> None:
    """Disable the added node's network link, so that no packet reaches or leaves the node."""
    _configure(node, f"link set {first.name} down\n")


def remove(node: Node) -> None:
    """Delete the node's network namespace with its interfaces. The kernel later deletes the other ends of their links."""
    if exists(node):
        capture(["ip", "netns", "delete", node.namespace])


def unlink(network: Network) -> None:
    """Delete the host's end of the link to the first node, if it exists."""
    succeeds(["ip", "link", "delete", network.host_device])


def enter(node: Node) -> list[str]:
    """Return the prefix of a command to run in the node's network namespace. It is not `ip netns exec`, which would hide the cgroup
    mounts."""
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
    """Return commands that configure the end of the link to node `there` on node `here`, and route the CIDR `behind` (or "default")
    over the link."""
    return f"""\
address add {here.address} peer {there.address} dev {there.name}
link set {there.name} up
route add {behind} via {there.address} dev {there.name}
"""


def _namespace_file(node: Node) -> Path:
    return Path("/run/netns") / node.namespace
