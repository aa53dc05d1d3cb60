"""The control group that holds every process of the cluster, so that they can be ended without guessing.

Components and container shims are in `NAME/system`, each container in `NAME/ID`. With cgroup v1 each controller has its
own tree; membership is tracked in that of `pids`.
"""

import os
import signal
from pathlib import Path

from localkube.commands import wait_until
from localkube.errors import Unhealthy

_ROOT = Path("/sys/fs/cgroup")
_SHARES = 2048  # of each processor's time; a process outside has 1024. By default all pods together would count as one.
_KILL_TIMEOUT_SECONDS = 10.0


def is_v2(root: Path = _ROOT) -> bool:
    return (root / "cgroup.controllers").exists()


def prepare(name: str, root: Path = _ROOT) -> Path:
    """Make the group for components; returns the file a process writes its pid to in order to join."""
    for tree in _trees(root):
        (tree / name).mkdir(parents=True, exist_ok=True)
    _allow_all_processors(root / "cpuset", name)
    _share_processors(root / "cpu" / name)
    group = _tracking_tree(root) / name / "system"
    group.mkdir(parents=True, exist_ok=True)
    return group / "cgroup.procs"


def kill_all(name: str, root: Path = _ROOT) -> None:
    """End every process of the group at once, however many it forks meanwhile, and remove the group."""
    if not wait_until(lambda: _kill_once(_tracking_tree(root) / name), _KILL_TIMEOUT_SECONDS, 0.02):
        raise Unhealthy(f"processes {members(name, root)} of cgroup {name!r} do not end although they were killed")
    wait_until(lambda: _remove(name, root), 2.0)


def members(name: str, root: Path = _ROOT) -> list[int]:
    """Pids of all processes in the group and the groups below it."""
    return _pids(_tracking_tree(root) / name)


def _trees(root: Path) -> list[Path]:
    """Where a group has a directory: with v1 in the tree of each controller, some of which are links to others."""
    return [root] if is_v2(root) else sorted(tree for tree in root.iterdir() if tree.is_dir())


def _allow_all_processors(tree: Path, name: str) -> None:
    """A new group of v1's cpuset has no processors and no memory nodes, and could hold nothing."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        source, target = tree / file, tree / name / file
        if source.exists() and not target.read_text().strip():
            target.write_text(source.read_text())


def _share_processors(group: Path) -> None:
    """With v1 components are outside of the group, and so are the programs that use the cluster; pods are all that is in it."""
    if (file := group / "cpu.shares").exists():
        file.write_text(str(_SHARES * (os.cpu_count() or 1)))


def _tracking_tree(root: Path) -> Path:
    return root if is_v2(root) else root / "pids"


def _pids(group: Path) -> list[int]:
    pids: list[int] = []
    for procs in sorted(group.rglob("cgroup.procs")):
        try:
            pids += [int(line) for line in procs.read_text().split()]
        except OSError:  # the group went away meanwhile
            continue
    return pids


def _kill_once(group: Path) -> bool:
    """Kill what is in the group now; True if there was nothing. Membership was read this instant, not recorded."""
    pids = _pids(group)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return not pids


def _remove(name: str, root: Path) -> bool:
    """Remove the group's directories from all trees, deepest first; True if none is left."""
    tops = [tree / name for tree in _trees(root) if (tree / name).is_dir()]
    for top in tops:
        for directory, _, _ in os.walk(top, topdown=False):
            try:
                Path(directory).rmdir()
            except OSError:
                continue
    return not any(top.exists() for top in tops)
