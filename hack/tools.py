"""Install build tools that may be missing: Go, Helm, a C compiler."""

import os
import shutil
from functools import cache
from pathlib import Path

from hack.paths import CACHE, ROOT, cached
from hack.stages import Failure, stage
from localkube.build import required_go_version
from localkube.commands import stream
from localkube.packages import apt_get
from localkube.toolchain import find_go

_HELM = "v3.22.0"
_HELM_MODULE = "helm.sh/helm/v3"
_KUBERNETES_MINOR = "35"  # Kubernetes version that `helm lint` and `helm template` assume


@cache
def go() -> Path:
    """Return the path of the machine's Go if it is new enough, otherwise of a Go that is installed in the cache."""
    return find_go(CACHE, minimum=required_go_version(ROOT / "runner"))


def go_environment(**more: str) -> dict[str, str]:
    """Return environment variables for Go that override the user's Go settings."""
    path = f"{go().parent}{os.pathsep}{os.environ.get('PATH', '')}"
    settings = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": "", "PATH": path}
    return os.environ | settings | more


def helm() -> Path:
    """Return the path of Helm; build it from source if it is not cached."""
    return cached("helm", f"{_HELM}-{_KUBERNETES_MINOR}".replace(".", "-"), _build_helm) / "helm"


def c_compiler() -> None:
    """Install a C compiler if it is missing; Go's race detector needs it."""
    if not shutil.which("gcc"):
        with stage("a C compiler for Go's race detector"):
            apt_install("gcc", "libc6-dev")


def network_tools() -> None:
    """Install iproute2 if it is missing; the egress sidecar's tests build networks with it."""
    if not shutil.which("ip"):
        with stage("iproute2 for the tests of the egress sidecar"):
            apt_install("iproute2")


def apt_install(*packages: str) -> None:
    """Install Debian packages. Raises Failure without apt-get or root."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise Failure(f"missing packages: {' '.join(packages)}; install them (automatic only as root on Debian)")
    apt_get("update")
    apt_get("install", "-y", "--no-install-recommends", *packages)


def _build_helm(directory: Path) -> None:
    packages = [f"{_HELM_MODULE}/pkg/{name}" for name in ("chartutil", "lint/rules")]
    versions = [f"-X {name}.k8sVersionMajor=1 -X {name}.k8sVersionMinor={_KUBERNETES_MINOR}" for name in packages]
    with stage(f"Helm {_HELM} from source (1 to 2 minutes, once)"):
        command = [str(go()), "install", "-trimpath", "-ldflags", " ".join(["-s -w", *versions])]
        stream([*command, f"{_HELM_MODULE}/cmd/helm@{_HELM}"], env=go_environment(GOBIN=str(directory)), cwd=ROOT)
