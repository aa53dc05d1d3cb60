"""Install tools that may be missing, such as Go, kubectl, Helm and a C compiler."""

import os
import shutil
from functools import cache
from pathlib import Path

from hack.paths import CACHE, ROOT
from hack.stages import Failure, stage
from localkube.build import required_go_version
from localkube.clients import ensure_clients
from localkube.packages import apt_get
from localkube.toolchain import find_go


@cache
def go() -> Path:
    """Return the path of the machine's Go if it is new enough, otherwise the path of a Go that is installed in the cache."""
    return find_go(CACHE, minimum=required_go_version(ROOT / "runner"))


def go_environment(**more: str) -> dict[str, str]:
    """Return environment variables for Go that override the user's Go settings."""
    path = f"{go().parent}{os.pathsep}{os.environ.get('PATH', '')}"
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "", "PATH": path}
    return os.environ | settings | more


def kubectl() -> Path:
    """Return the path of kubectl, and install kubectl if it is not in the cache."""
    return ensure_clients(CACHE) / "kubectl"


def helm() -> Path:
    """Return the path of Helm, and install Helm if it is not in the cache. Its `lint` and `template` assume Kubernetes 1.35."""
    return ensure_clients(CACHE) / "helm"


def c_compiler() -> None:
    """Install a C compiler, which Go's race detector needs, if it is missing."""
    if not shutil.which("gcc"):
        with stage("a C compiler for Go's race detector"):
            apt_install("gcc", "libc6-dev")


def network_tools() -> None:
    """Install iproute2, with which the egress sidecar's tests create networks, if it is missing."""
    if not shutil.which("ip"):
        with stage("iproute2 for the tests of the egress sidecar"):
            apt_install("iproute2")


def apt_install(*packages: str) -> None:
    """Install Debian packages. Raises Failure if apt-get is missing or the user is not root."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise Failure(f"missing packages: {' '.join(packages)}; install them (automatic only as root on Debian)")
    apt_get("update")
    apt_get("install", "-y", "--no-install-recommends", *packages)
