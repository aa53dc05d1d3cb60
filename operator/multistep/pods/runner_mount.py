"""The runner in a pod: an init container or the egress sidecar installs it in a volume, and each container that runs it mounts the
volume read-only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

VOLUME: Final = "multistep-runner"
USER: Final = 65532  # user and group ID of the operator's own containers that need no rights
UNPRIVILEGED: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "capabilities": {"drop": ["ALL"]},
}
"""The security context of such a container."""
INSTALLER: Final = "install-runner"
INSTALL_DIR: Final = "/multistep-install"
_DIRECTORY: Final = "/multistep"
RUNNER: Final = f"{_DIRECTORY}/runner"
POD_UID: Final[Mapping[str, Any]] = {"name": "MULTISTEP_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
"""The variable with the UID that the runner reports, so that the operator detects an exec session with another pod."""


def runner_mount() -> dict[str, Any]:
    """Return a container's mount of the runner."""
    return {"name": VOLUME, "mountPath": _DIRECTORY, "readOnly": True}


def runner_volume() -> dict[str, Any]:
    """Return the volume that contains the runner."""
    return {"name": VOLUME, "emptyDir": {"sizeLimit": "64Mi"}}


def runner_installer(image: Mapping[str, Any], **security: Any) -> dict[str, Any]:
    """Return the init container that installs the runner. image: an image that contains the runner, with its pull policy; security:
    more fields of the container's security context."""
    return {
        "name": INSTALLER,
        **image,
        "command": [RUNNER, "install", INSTALL_DIR],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **security},
        "volumeMounts": [install_mount()],
    }


def install_mount() -> dict[str, Any]:
    """Return the mount of the container that installs the runner."""
    return {"name": VOLUME, "mountPath": INSTALL_DIR}


def readiness_probe(port: int) -> dict[str, Any]:
    """Return the probe of a container whose runner listens on this port. The runner is not ready while the result of a phase is
    not acknowledged."""
    return {
        "httpGet": {"path": "/ready", "port": port},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 1,
    }
