"""Manage a node's network namespace, and its mount namespace with its own /run, /var/lib and /var/log.

The host does not see mounts in these namespaces (container root filesystems, volumes, pods' network namespaces). The kernel
deletes the namespaces with the node's last process. An idle process, the holder, keeps them open.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from localkube import cgroups, network, processes
from localkube.commands import capture, wait_until
from localkube.config import Config, Node
from localkube.errors import Unhealthy
from localkube.processes import Identity, Registry

_MOUNTS = """\
set -e
mount --make-rshared /
mount -t tmpfs -o mode=755 localkube-run /run
mkdir /run/lock /run/netns
mount --bind "$1" /var/lib
mount --bind "$2" /var/log
"""


def start_holder(config: Config, node: Node) -> None:
    """Create the node's namespaces and the process that keeps them open. The caller has killed the processes of an earlier run.

    Raises Unhealthy if the namespaces cannot be created.
    """
    if node == config.first:
        network.create(config.network, node)
    else:
        network.join(config.network, config.first, node)
    _forget_earlier_run(config, node)
    log = config.paths.logs / f"{node.holder}.log"
    command = [*network.enter(node), "unshare", "--mount", "--propagation", "slave"]
    holder = processes.start([*command, str(config.paths.bin / "pause")], log, cgroups.prepare(node.cgroup))
    if not wait_until(lambda: _has_own_mounts(holder), 5.0, 0.01):
        raise Unhealthy(f"the namespaces of {node.name} could not be created", log)
    views = [str(config.paths.node_var_lib(node)), str(config.paths.node_var_log(node))]
    capture(["nsenter", f"--mount={_mounts_of(holder)}", "sh", "-c", _MOUNTS, "sh", *views])
    Registry(config.paths.processes).record(node.holder, holder)


def is_up(config: Config, node: Node) -> bool:
    return network.exists(node) and Registry(config.paths.processes).running(node.holder) is not None


def inside(config: Config, node: Node, command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` on the node."""
    holder = Registry(config.paths.processes).running(node.holder)
    if holder is None:
        raise Unhealthy(f"{node.name} is not running; start it with `python3 -m localkube up`")
    return [*network.enter(node), f"--mount={_mounts_of(holder)}", *command]


def stop_all(config: Config) -> None:
    """Kill every process of the cluster and delete its network."""
    cgroups.kill_all(config.cgroup)
    for node in reversed(config.nodes):
        network.remove(node)
    network.unlink(config.network)


def cut_power(config: Config, node: Node) -> None:
    """Kill an added node without a clean shutdown. First cut its network, so that its connections are not closed."""
    if network.exists(node):
        network.cut(config.first, node)
    cgroups.kill_all(node.cgroup)


def remove(config: Config, node: Node) -> None:
    """End an added node's processes, and delete its network and files."""
    cut_power(config, node)
    network.leave(config.first, node)
    paths = config.paths
    for directory in (paths.run_dir, paths.config, paths.pki, paths.logs, paths.processes):
        for each in directory.glob(f"{node.name}*"):
            shutil.rmtree(each) if each.is_dir() else each.unlink()


def _forget_earlier_run(config: Config, node: Node) -> None:
    """Delete the sockets and the IP address leases of pods of the node's earlier run, and create missing directories."""
    paths = config.paths
    var_lib = paths.node_var_lib(node)
    shutil.rmtree(var_lib / "cni", ignore_errors=True)
    for directory in (var_lib / "cni", paths.node_var_log(node), paths.logs):
        directory.mkdir(parents=True, exist_ok=True)
    for socket in (paths.containerd_socket(node), *([paths.etcd_socket] if node == config.first else [])):
        socket.unlink(missing_ok=True)


def _mounts_of(process: Identity) -> Path:
    return Path(f"/proc/{process.pid}/ns/mnt")


def _has_own_mounts(process: Identity) -> bool:
    if not process.is_running:
        return False
    return _mounts_of(process).readlink() != Path("/proc/self/ns/mnt").readlink()
