"""Builds the container of the agent host, a sidecar that runs one of Harbor's agents against the environment's runner."""

from __future__ import annotations

from typing import Any, Final, Literal

from multistep.api.trial.agent_spec import PROGRAM_DIR, AgentSpec
from multistep.errors import InvalidSpec
from multistep.pods import runner_mount
from multistep.pods.pod_identity import container_image
from multistep.pods.runner_mount import RUNNER
from multistep.settings import Settings

CONTAINER: Final = "agent-host"
_SOCKET: Final = "multistep/host"  # unique in the pod, because the containers of a pod share the names of abstract sockets
CALL: Final = (RUNNER, "call", "--socket", _SOCKET)
KEY_VARIABLE: Final = "MULTISTEP_OPERATOR_KEY"
_STATE: Final = "multistep-host"


def host_container(agent: AgentSpec, settings: Settings, key: str) -> dict[str, Any]:
    """Return the agent host's container. Its file system is read-only, it has no credentials of the pod, and it is not root.

    The operator encrypts requests to the container's runner with ``key`` (docs/internals/runner-protocol.md). In the pod, only the
    runner has the key. A user who reads the key in the pod object can use it only with a process in the pod.

    Raises InvalidSpec if the chart sets no image for the agent host, or no gateway for an agent that needs one.
    """
    if agent.uses_gateway and not settings.gateway_url:
        raise InvalidSpec("spec.agent.access: Gateway needs the chart's model gateway (gateway.enabled); use Direct without one")
    if not settings.agent_host_image:
        raise InvalidSpec("spec.agent: agents of Harbor need the chart's setting agentHostImage, which is not set")
    return {
        "name": CONTAINER,
        **container_image(settings.agent_host_image, settings.operator_image_pull_policy),
        "command": [RUNNER, "serve", "--socket", _SOCKET, "--port", str(settings.agent_host_port)],
        "env": [
            dict(runner_mount.POD_UID),
            *([{"name": KEY_VARIABLE, "value": key}] if key else []),
        ],
        "resources": {
            # An agent host uses 0.4 s of CPU time, most of it to import Harbor. A larger request would only delay scheduling.
            "requests": {"cpu": "20m", "memory": "64Mi"},
            "limits": {"memory": settings.agent_host_memory},
        },
        "readinessProbe": runner_mount.readiness_probe(settings.agent_host_port),
        "securityContext": dict(runner_mount.UNPRIVILEGED),
        "volumeMounts": [
            runner_mount.runner_mount(),
            {"name": _STATE, "mountPath": "/run/multistep-host", "subPath": "run"},
            {"name": _STATE, "mountPath": "/tmp", "subPath": "tmp"},
        ],
    }


def host_volumes() -> list[dict[str, Any]]:
    """Return the volume for the agent host's files: sockets, outcomes, and the agent's logs before they are in the environment."""
    return [{"name": _STATE, "emptyDir": {"sizeLimit": "1Gi"}}]


_VOLUME: Final = "multistep-agent"
_COPY_DIR: Final = "/multistep-agent-copy"
_SIZE_LIMIT: Final = "4Gi"

Mount = Literal["Volume", "Copy"]


def program_mount(how: Mount) -> dict[str, Any]:
    """Return the mount of the agent's program in the environment's container.

    The mount is read-only, so that no agent can change the program that a later step runs.
    """
    inside = {"subPath": PROGRAM_DIR.strip("/")} if how == "Volume" else {}
    return {"name": _VOLUME, "mountPath": PROGRAM_DIR, "readOnly": True, **inside}


def program_volume(image: str, how: Mount) -> dict[str, Any]:
    """Return the volume with the agent's program: an image volume, or an emptyDir into which an init container copies the
    program."""
    if how == "Volume":
        return {"name": _VOLUME, "image": {"reference": image}}
    return {"name": _VOLUME, "emptyDir": {"sizeLimit": _SIZE_LIMIT}}


def program_init_containers(image: str, how: Mount) -> list[dict[str, Any]]:
    """Return the init container that copies the agent's program, [] for an image volume.

    The image has no shell, so the container runs the runner's command ``copy``.
    """
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
                runner_mount.runner_mount(),
                {"name": _VOLUME, "mountPath": _COPY_DIR},
            ],
        }
    ]
