"""Install the third-party programs that the tests use, most of them in the cache directory, and add them to the tests' PATH.

Debian packages are unpacked, not installed, because an installation would start their services.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hack.paths import ROOT, cached
from hack.stages import stage
from hack.tools import apt_install, go, go_environment
from localkube.build import BUILD_FLAGS, FEWER_COLLECTIONS
from localkube.commands import capture, stream
from localkube.packages import apt_get

_PACKAGES = ("docker-registry", "prometheus")
_PROMETHEUS_OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
_S3_SERVER = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_KUBE_STATE_METRICS = "k8s.io/kube-state-metrics/v2@v2.15.0"


def directories() -> list[Path]:
    """Install missing third-party programs, and return the directories of the cache that contain them, for PATH."""
    for program in ("lua5.4", "git", "chromium"):
        if not shutil.which(program):
            with stage(f"Debian's {program}"):
                apt_install(program)
    unpacked = cached("peers", "-".join(("debian", *_PACKAGES)), _unpack)
    return [
        unpacked / "usr" / "bin",
        cached("versitygw", _version(_S3_SERVER), _build_s3_server),
        cached("kube-state-metrics", _version(_KUBE_STATE_METRICS), _build_kube_state_metrics),
    ]


def _version(module: str) -> str:
    return module.partition("@")[2].replace(".", "-")


def _downloaded(module: str, elsewhere: Path) -> Path:
    """Download a module and return its directory in Go's cache. `elsewhere` is a working directory outside any Go module."""
    output = capture([str(go()), "mod", "download", "-json", module], env=go_environment(), cwd=elsewhere)
    return Path(json.loads(output)["Dir"])


def monitoring_crds() -> list[Path]:
    """Return the files of the Prometheus operator's CRDs, for the kinds of object that the chart can create."""
    directory = cached("monitoring-crds", _version(_PROMETHEUS_OPERATOR), _fetch_monitoring_crds)
    return sorted(directory.glob("*.yaml"))


def _fetch_monitoring_crds(directory: Path) -> None:
    module = _downloaded(_PROMETHEUS_OPERATOR, directory)
    for kind in ("podmonitors", "prometheusrules"):
        shutil.copy(module / "example" / "prometheus-operator-crd" / f"monitoring.coreos.com_{kind}.yaml", directory)


def _unpack(directory: Path) -> None:
    with stage(f"Debian's {' and '.join(_PACKAGES)}"), tempfile.TemporaryDirectory() as downloads:
        apt_get("update")
        # Without this option, apt run by root drops its privileges for downloads, and cannot write to the directory.
        apt_get("download", "-o", "APT::Sandbox::User=root", *_PACKAGES, cwd=Path(downloads))
        for package in Path(downloads).glob("*.deb"):
            capture(["dpkg-deb", "--extract", str(package), str(directory)])


def _build_s3_server(directory: Path) -> None:
    with stage("an S3 server from source (a minute, once)"):
        env = go_environment(GOBIN=str(directory), **FEWER_COLLECTIONS)
        stream([str(go()), "install", *BUILD_FLAGS, _S3_SERVER], env=env, cwd=ROOT)


def _build_kube_state_metrics(directory: Path) -> None:
    """Build kube-state-metrics in its module's directory. `go install` needs a list of versions, which some proxies lack."""
    with stage("kube-state-metrics from source (2 to 4 minutes, once)"):
        module = _downloaded(_KUBE_STATE_METRICS, directory)
        command = [str(go()), "build", "-C", str(module), *BUILD_FLAGS, "-ldflags", "-s -w"]
        env = go_environment(**FEWER_COLLECTIONS)
        stream([*command, "-o", str(directory / "kube-state-metrics"), "."], env=env, cwd=directory)


def path(environment: Mapping[str, str]) -> str:
    """Return PATH with the third-party programs first."""
    return os.pathsep.join([*map(str, directories()), environment.get("PATH", "")])
