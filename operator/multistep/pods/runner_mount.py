"""The runner in a pod: an init container fills its volume, and every container that runs it mounts that read-only."""

from __future__ import annotations

from typing import Any, Final

VOLUME: Final = "multistep-runner"
INSTALLER: Final = "install-runner"
_DIRECTORY: Final = "/multistep"
RUNNER: Final = f"{_DIRECTORY}/runner"


def mount() -> dict[str, Any]:
    """Return a container's mount of the runner."""
    return {"name": VOLUME, "mountPath": _DIRECTORY, "readOnly": True}
