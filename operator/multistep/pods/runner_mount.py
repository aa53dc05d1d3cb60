"""Builds the parts of a pod that contain the runner.

An init container or the egress sidecar installs the runner in a volume. Each container that runs it mounts the volume read-only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

VOLUME: Final = "multistep-runner"
USER: Final = 65532  # user and group ID of the operator's own containers that need no privileges
UNPRIVILEGED: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "capabilities": {"drop": ["ALL"]},
}
"""The security context of a container that needs no privileges."""
INSTALLER: Final = "install-runner"
INSTALL_DIR: Final = "/multistep-install"
_DIRECTORY: Final = "/multistep"
RUNNER: Final = f"{_DIRECTORY}/runner"
POD_UID: Final[Mapping[str, Any]] = {"name": "MULTISTEP_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
"""The variable with the pod's UID, which the runner reports, so that the operator detects an exec session with another pod."""


def runner_mount() -> dict[str, Any]:
    """Return a container's mount of the runner."""
    return {"name": VOLUME, "mountPath": _DIRECTORY, "readOnly": True}


def runner_volume() -> dict[str, Any]:
    """Return the volume that contains the runner."""
    return {"name": VOLUME, "emptyDir": {"sizeLimit": "64Mi"}}


def runner_installer(image: Mapping[str, Any], **security: Any) -> dict[str, Any]:
    """Return the init container that installs the runner.

    ``image`` is an image that contains the runner, with its pull policy. ``security`` has further fields of the security context.
    """
    return {
        "name": INSTALLER,
        **image,
        "command": [RUNNER, "install", INSTALL_DIR],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **security},
        "volumeMounts": [install_mount()],
    }


def install_mount() -> dict[str, Any]:
    """Return the mount through which a container installs the runner."""
    return {"name": VOLUME, "mountPath": INSTALL_DIR}


def readiness_probe(port: int) -> dict[str, Any]:
    """Return the readiness probe of a container whose runner listens on this port.

    The runner is not ready while it has a result of a phase that the operator has not acknowledged.
    """
    return {
        "httpGet": {"path": "/ready", "port": port},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 1,
    }
