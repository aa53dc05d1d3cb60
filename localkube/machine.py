"""Describe what this machine's kernel offers to pods."""

import platform
import re
from pathlib import Path

from localkube import cgroups

_NEEDED = (6, 3)  # first kernel that can mount a tmpfs, such as a pod's Secret volume, with mapped user IDs
_MAXIMUM = Path("/proc/sys/user/max_user_namespaces")


def description() -> str:
    """Return the version of control groups, and whether pods can have user namespaces, as a text."""
    version = "v2" if cgroups.is_v2() else "v1"
    problem = user_namespaces_problem()
    return f"cgroup {version}; " + (f"no user namespaces for pods: {problem}" if problem else "user namespaces for pods")


def user_namespaces_problem(release: str = platform.release(), maximum: Path = _MAXIMUM) -> str | None:
    """Return why no pod can have a user namespace (`hostUsers: false`) with this kernel release, or None if pods can have one.

    With user namespaces, the image's files and volumes are mounted with mapped user IDs, which the kernel must support.
    """
    if not maximum.exists() or int(maximum.read_text()) == 0:
        return "the kernel allows none (sysctl user.max_user_namespaces)"
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    return f"Linux {release} is older than {'.'.join(map(str, _NEEDED))}" if version < _NEEDED else None
