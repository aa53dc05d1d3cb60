"""The node as its processes see it: own network, and an own view of /run, /var/lib and /var/log.

Mounts made in this view (container root filesystems, volumes, pods' network namespaces) are not seen by the host and
vanish with the last process in it. A process that does nothing, the holder, keeps it alive.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from localkube import cgroups, network, processes
from localkube.commands import capture, wait_until
from localkube.config import Config
from localkube.errors import Unhealthy
from localkube.processes import Identity, Registry

HOLDER = "node"

_MOUNTS = """\
set -e
mount --make-rshared /
mount -t tmpfs -o mode=755 localkube-run /run
mkdir /run/lock /run/netns
mount --bind "$1" /var/lib
mount --bind "$2" /var/log
"""


def start_holder(config: Config) -> None:
    """Make the node's view of the machine; nothing must be left of an earlier one."""
    network.create(config.network)
    _forget_earlier_run(config)
    log = config.paths.logs / f"{HOLDER}.log"
    command = [*network.enter(config.network), "unshare", "--mount", "--propagation", "slave"]
    procs = cgroups.prepare(config.cgroup)
    holder = processes.start([*command, str(config.paths.bin / "pause")], log, procs)
    if not wait_until(lambda: _has_own_mounts(holder), 5.0, 0.01):
        raise Unhealthy("the node's namespaces could not be made", log)
    views = [str(config.paths.node_var_lib), str(config.paths.node_var_log)]
    capture(["nsenter", f"--mount={_mounts_of(holder)}", "sh", "-c", _MOUNTS, "sh", *views])
    Registry(config.paths.processes).record(HOLDER, holder)


def is_up(config: Config) -> bool:
    return network.exists(config.network) and Registry(config.paths.processes).running(HOLDER) is not None


def inside(config: Config, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` on the node."""
    holder = Registry(config.paths.processes).running(HOLDER)
    if holder is None:
        raise Unhealthy("the node is not running; start it with `python3 -m localkube up`")
    return [*network.enter(config.network), f"--mount={_mounts_of(holder)}", *command]


def stop(config: Config) -> None:
    """End every process of the cluster at once and take the network away."""
    cgroups.kill_all(config.cgroup)
    network.remove(config.network)


def _forget_earlier_run(config: Config) -> None:
    """What a reboot would clear, and addresses leased to pods that are no more."""
    paths = config.paths
    shutil.rmtree(paths.node_var_lib / "cni", ignore_errors=True)
    for directory in (paths.node_var_lib / "cni", paths.node_var_log, paths.logs):
        directory.mkdir(parents=True, exist_ok=True)
    for socket in (paths.containerd_socket, paths.etcd_socket):
        socket.unlink(missing_ok=True)


def _mounts_of(process: Identity) -> Path:
    return Path(f"/proc/{process.pid}/ns/mnt")


def _has_own_mounts(process: Identity) -> bool:
    if not process.alive:
        return False
    return _mounts_of(process).readlink() != Path("/proc/self/ns/mnt").readlink()
