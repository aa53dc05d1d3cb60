"""The agent's program in the environment, from the image spec.agent.image. Pure functions on manifests."""

from __future__ import annotations

from typing import Any, Final, Literal

from multistep.api.trial.agent_spec import PROGRAM_DIR
from multistep.pods import runner_mount
from multistep.pods.runner_mount import RUNNER

_VOLUME: Final = "multistep-agent"
_COPY_DIR: Final = "/multistep-agent-copy"
_SIZE_LIMIT: Final = "4Gi"

Mount = Literal["Volume", "Copy"]


def mount(how: Mount) -> dict[str, Any]:
    """Return the mount of the program in the environment's container. The mount is read-only, so that no agent can change the
    program that a later step runs."""
    inside = {"subPath": PROGRAM_DIR.strip("/")} if how == "Volume" else {}
    return {"name": _VOLUME, "mountPath": PROGRAM_DIR, "readOnly": True, **inside}


def volume(image: str, how: Mount) -> dict[str, Any]:
    """Return the volume with the program: an image volume, or an emptyDir into which an init container copies the program."""
    if how == "Volume":
        return {"name": _VOLUME, "image": {"reference": image}}
    return {"name": _VOLUME, "emptyDir": {"sizeLimit": _SIZE_LIMIT}}


def init_containers(image: str, how: Mount) -> list[dict[str, Any]]:
    """Return the init container that copies the program; [] for an image volume. The image has no shell, so the
    container runs the runner's command ``copy``."""
    if how == "Volume":
        return []
    return [
        {
            "name": "copy-agent",
            "image": image,
            "command": [RUNNER, "copy", PROGRAM_DIR, _COPY_DIR],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [
                runner_mount.mount(),
                {"name": _VOLUME, "mountPath": _COPY_DIR},
            ],
        }
    ]
