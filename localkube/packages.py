"""Install the Debian packages that the node needs, if their programs are missing."""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from localkube.commands import capture, step
from localkube.errors import CommandFailed, Unsupported
from localkube.locking import exclusive

_PROGRAMS = {  # a program or file of each Debian package
    "buildah": "buildah",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "debootstrap": "debootstrap",
    "gcc": "gcc",  # needed to build runc, as are libc6-dev, libseccomp-dev and pkg-config
    "iproute2": "ip",
    "libc6-dev": "/usr/include/stdio.h",
    "libseccomp-dev": "/usr/include/seccomp.h",
    "nftables": "nft",
    "openssl": "openssl",
    "pkg-config": "pkg-config",
    "util-linux": "nsenter",
}
_LOCK = Path("/run/multistep-packages.lock")
_POLICY = Path("/usr/sbin/policy-rc.d")
_REFUSE_TO_START = "#!/bin/sh\nexit 101\n"
_LOCK_SECONDS = 300  # maximum time to wait for another program that holds a lock of apt
_RETRY_SECONDS = 1.0


def ensure_packages(programs: Mapping[str, str] = _PROGRAMS) -> None:
    """Install packages whose program is missing, without upgrading packages or starting services.

    ``programs`` has a program of each package. Raises Unsupported without apt-get.
    """
    check_installable(programs)
    if not missing_packages(programs):
        return
    with exclusive(_LOCK):
        if missing := missing_packages(programs):  # another process may have installed them
            with step(f"installing Debian packages {' '.join(missing)}"), _no_services_started():
                apt_get("update")
                apt_get("install", "-y", "--no-install-recommends", "--no-upgrade", *missing)


def check_installable(programs: Mapping[str, str] = _PROGRAMS) -> None:
    """Raise Unsupported if programs are missing and there is no apt-get, which could install them."""
    missing = missing_packages(programs)
    if missing and not shutil.which("apt-get"):
        raise Unsupported(f"these programs are needed: {', '.join(programs[name] for name in missing)}")


def apt_get(*arguments: str, cwd: Path | None = None) -> None:
    """Run apt-get. If another program holds one of apt's locks, wait for at most five minutes."""
    command = ["apt-get", "-qq", "-o", f"DPkg::Lock::Timeout={_LOCK_SECONDS}", *arguments]
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            capture(command, env=env, cwd=cwd)
            return
        except CommandFailed as error:  # apt's timeout is only for dpkg's lock, not for those of package lists and archives
            if "Could not get lock" not in error.output or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def missing_packages(programs: Mapping[str, str] = _PROGRAMS) -> list[str]:
    """Return the packages whose program or file is missing."""
    return [package for package, program in programs.items() if not shutil.which(program, os.F_OK)]


@contextmanager
def _no_services_started() -> Iterator[None]:
    """Prevent service starts during the installation with a policy script, which package scripts run first (invoke-rc.d(8))."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text(_REFUSE_TO_START)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
