"""The runner in a pod: an init container or the egress sidecar installs it in a volume, and each container that runs it mounts the
volume read-only."""

from __future__ import annotations

from typing import Any, Final

VOLUME: Final = "multistep-runner"
INSTALLER: Final = "install-runner"
INSTALL_DIR: Final = "/multistep-install"
_DIRECTORY: Final = "/multistep"
RUNNER: Final = f"{_DIRECTORY}/runner"


def mount() -> dict[str, Any]:
    """Return a container's mount of the runner."""
    return {"name": VOLUME, "mountPath": _DIRECTORY, "readOnly": True}


def install_mount() -> dict[str, Any]:
    """Return the mount of the container that installs the runner."""
    return {"name": VOLUME, "mountPath": INSTALL_DIR}
