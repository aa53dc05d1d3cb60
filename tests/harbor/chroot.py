"""Provide a newer Python than the machine's: in a Debian system that debootstrap installs in a directory, run through chroot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube.packages import ensure_packages

OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # stops litellm from fetching prices at import: slow without a network
SUITE = "trixie"  # this Debian release has Python 3.13
_PACKAGES = "python3,python3-venv,ca-certificates"
_VENV = "/venv"
_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_CA_OF_MACHINE = "/etc/ssl/certs/ca-certificates.crt"
_CA_INSIDE = "/etc/ssl/machine.crt"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_PASSED_ON = ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", *_PROXIES)


@dataclass(frozen=True)
class ChrootPython:
    """The Python of a virtual environment in the Debian system at `root`."""

    root: Path

    def run(self, script: Path, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run the script with a copy of the directory as its argument."""
        with tempfile.TemporaryDirectory(dir=self.root / "tmp") as temporary:
            copy = Path(temporary)
            shutil.copy(script, copy)
            shutil.copytree(directory, copy / "directory", symlinks=True)
            inside = Path("/", copy.relative_to(self.root))
            return _in_chroot(self.root, [f"{_VENV}/bin/python", str(inside / script.name), str(inside / "directory")])

    def pytest(self, project: Path, runner: Path) -> subprocess.CompletedProcess[str]:
        """Run pytest in a copy of `project`, with the path of a copy of the runner's program in MULTISTEP_RUNNER."""
        with tempfile.TemporaryDirectory(dir=self.root / "tmp") as temporary:
            copy = Path(temporary) / "project"
            shutil.copytree(project, copy, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(runner, copy / "runner")
            inside = Path("/", copy.relative_to(self.root))
            python = ["env", f"MULTISTEP_RUNNER={inside}/runner", f"{_VENV}/bin/python", "-B"]
            return _in_chroot(self.root, [*python, "-m", "pytest", "-q", f"--rootdir={inside}", str(inside)])


def make(root: Path, requirements: Path, pip_options: Sequence[str]) -> None:
    """Install a Debian system at `root` with the requirements in its /venv. `root` exists only once the system is complete."""
    if os.geteuid() != 0:
        raise RuntimeError("no Python >= 3.12 found, and only root can make one by debootstrap: install Python 3.12 or be root")
    ensure_packages({"debootstrap": "debootstrap"})
    unfinished = root.with_name(root.name + ".new")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    _print(f"no Python >= 3.12 found: making a Debian {SUITE} that has one, in {root} (a minute)")
    # Run debootstrap in a separate mount namespace, so that its mounts (/proc) disappear even if it is killed.
    debootstrap = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", SUITE, str(unfinished)]
    _checked(subprocess.run(["unshare", "--mount", *debootstrap], capture_output=True, text=True, check=False))
    _share_network(unfinished)
    _print("installing Harbor in it (a minute)")
    shutil.copy(requirements, unfinished / "requirements.txt")
    _checked(_in_chroot(unfinished, ["/usr/bin/python3", "-m", "venv", _VENV]))
    pip = [f"{_VENV}/bin/python", "-m", "pip", "install", "--no-cache-dir", *pip_options]
    _checked(_in_chroot(unfinished, [*pip, "-r", "/requirements.txt"]))
    unfinished.rename(root)


def _share_network(root: Path) -> None:
    """Copy the machine's resolv.conf and CA certificates into the Debian system at root, so that it has network access."""
    candidates = [os.environ.get(name) for name in _CA_VARIABLES] + [_CA_OF_MACHINE]
    bundle = next((each for each in candidates if each and Path(each).is_file()), f"{root}{_CA_OF_MACHINE}")
    for source, inside in ((bundle, _CA_INSIDE), ("/etc/resolv.conf", "/etc/resolv.conf")):
        if Path(source).is_file():
            target = Path(f"{root}{inside}")
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)


def _in_chroot(root: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "PIP_CERT": _CA_INSIDE} | OFFLINE
    env |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"
    # Run in a separate mount namespace, so that the mounts disappear with the command. Bind-mount the root onto itself: a command
    # in the chroot that calls `unshare` changes the mount propagation of /, which fails unless / is a mount point.
    script = 'mount --bind "$1" "$1" && mount -t proc proc "$1/proc" && exec "$0" "$@"'
    entering = ["unshare", "--mount", "sh", "-c", script, chroot, str(root)]
    return subprocess.run([*entering, *command], env=env, capture_output=True, text=True, check=False)


def _checked(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise RuntimeError(f"{' '.join(done.args)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _print(message: str) -> None:
    print(f"tests/harbor: {message} ...", file=sys.stderr, flush=True)
