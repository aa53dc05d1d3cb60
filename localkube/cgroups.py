"""Manage the control group that contains all of the cluster's processes, so that `down` can find and kill them.

Components and container shims are in the group `NAME/system`. Each container is in a group `NAME/ID`. cgroup v1 has one tree per
controller. This module finds processes in the tree of the controller `pids`.
"""

import os
import signal
from pathlib import Path

from localkube.commands import wait_until
from localkube.errors import Unhealthy

_ROOT = Path("/sys/fs/cgroup")
# CPU shares per CPU. With the default, 1024 in total, all pods together would get as much CPU as one process.
_SHARES = 2048
_KILL_TIMEOUT_SECONDS = 10.0


def is_v2(root: Path = _ROOT) -> bool:
    return (root / "cgroup.controllers").exists()


def prepare(name: str, root: Path = _ROOT) -> Path:
    """Create the control group of the components. Return the file to which a process writes its pid to join the group."""
    for tree in _trees(root):
        (tree / name).mkdir(parents=True, exist_ok=True)
    _allow_all_processors(root / "cpuset", name)
    _share_processors(root / "cpu" / name)
    group = _tracking_tree(root) / name / "system"
    group.mkdir(parents=True, exist_ok=True)
    return group / "cgroup.procs"


def kill_all(name: str, root: Path = _ROOT) -> None:
    """Kill every process of the group, including processes that are forked meanwhile, and delete the group. Raises Unhealthy if
    processes do not end."""
    if not wait_until(lambda: _kill_once(_tracking_tree(root) / name), _KILL_TIMEOUT_SECONDS, 0.02):
        raise Unhealthy(f"processes {members(name, root)} of cgroup {name!r} do not end although they were killed")
    wait_until(lambda: _remove(name, root), 2.0)


def members(name: str, root: Path = _ROOT) -> list[int]:
    """Return the pids of all processes in the group and its subgroups."""
    return _pids(_tracking_tree(root) / name)


def _trees(root: Path) -> list[Path]:
    """Return the root of each cgroup tree. cgroup v2 has one tree. v1 has a tree per controller, and some of these trees are links
    to others."""
    return [root] if is_v2(root) else sorted(tree for tree in root.iterdir() if tree.is_dir())


def _allow_all_processors(tree: Path, name: str) -> None:
    """Allow all CPUs and memory nodes. A new cpuset group of cgroup v1 has none, and no process can join such a group."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        source, target = tree / file, tree / name / file
        if source.exists() and not target.read_text().strip():
            target.write_text(source.read_text())


def _share_processors(group: Path) -> None:
    """Set the CPU shares of all pods (cgroup v1 only). Components and the cluster's clients are not in this CPU group."""
    if (file := group / "cpu.shares").exists():
        file.write_text(str(_SHARES * (os.cpu_count() or 1)))


def _tracking_tree(root: Path) -> Path:
    return root if is_v2(root) else root / "pids"


def _pids(group: Path) -> list[int]:
    pids: list[int] = []
    for procs in sorted(group.rglob("cgroup.procs")):
        try:
            pids += [int(line) for line in procs.read_text().split()]
        except OSError:  # the group was removed meanwhile
            continue
    return pids


def _kill_once(group: Path) -> bool:
    """Kill the processes that are in the group now. Return True if the group was already empty."""
    pids = _pids(group)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return not pids


def _remove(name: str, root: Path) -> bool:
    """Delete the group's directories in all trees, deepest first. Return True if no directory is left."""
    tops = [tree / name for tree in _trees(root) if (tree / name).is_dir()]
    for top in tops:
        for directory, _, _ in os.walk(top, topdown=False):
            try:
                Path(directory).rmdir()
            except OSError:
                continue
    return not any(top.exists() for top in tops)
