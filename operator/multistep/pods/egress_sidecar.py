"""Adds the egress sidecar to a pod, which controls all egress from the pod's network namespace. All functions are pure.

The sidecar is the first init container, so nothing in the pod runs before the network is blocked. It also installs the runner,
because a separate init container for this would delay the pod's start by about a second. No other container may change the
network's rules. Each drops NET_RAW, with which a process could mark its packets as those of the sidecar or bypass the rules, and
adds only capabilities that the Pod Security Standard ``baseline`` allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from multistep.errors import InvalidSpec
from multistep.pods import runner_mount
from multistep.pods.pod_identity import container_image
from multistep.settings import Settings

CONTAINER: Final = "egress"
_PROGRAM: Final = "/multistep/egress"
CALL: Final = (_PROGRAM, "call")
PORTS: Final = (15001, 15053)  # ports of the sidecar's proxy and name server, on the loopback addresses
_STATE: Final = "multistep-egress"
# The capabilities that `baseline` lets a container add, without NET_RAW.
_HARMLESS: Final = frozenset(
    ("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
     "SETPCAP", "SETUID", "SYS_CHROOT")
)  # fmt: skip


def with_sidecar(pod: Mapping[str, Any], settings: Settings, *, gateway: bool) -> dict[str, Any]:
    """Return the pod with the sidecar. The pod then starts without a network.

    ``gateway`` is whether the pod's agent calls the model gateway. Raises InvalidSpec if the pod template would let a container
    change the network's rules.
    """
    spec = pod["spec"]
    if spec.get("hostNetwork"):
        raise InvalidSpec(f"{_TEMPLATE}.hostNetwork: must not be true, as the task limits the network")
    kinds = ("initContainers", "containers")
    others = {kind: [_without_raw(container, f"{_TEMPLATE}.{kind}") for container in spec.get(kind) or []] for kind in kinds}
    own = _container(settings, sorted({*_probe_ports(others["containers"])}), gateway=gateway)
    others["initContainers"].insert(0, own)
    volumes = [*(spec.get("volumes") or []), {"name": _STATE, "emptyDir": {"sizeLimit": "1Mi"}}]
    return {**pod, "spec": {**spec, **others, "volumes": volumes}}


_TEMPLATE: Final = "spec.environment.podTemplate.spec"


def _container(settings: Settings, probes: list[int], *, gateway: bool) -> dict[str, Any]:
    to_gateway = ["--gateway", _host_and_port(settings.gateway_url)] if gateway else []
    return {
        "name": CONTAINER,
        **container_image(settings.operator_image, settings.operator_image_pull_policy),
        "restartPolicy": "Always",
        "command": [_PROGRAM, "serve", "--runner", runner_mount.INSTALL_DIR, "--probes", ",".join(map(str, probes)), *to_gateway],
        "env": [{"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
        # The next container starts when this hook has finished. A probe would take up to a second longer.
        "lifecycle": {"postStart": {"exec": {"command": [_PROGRAM, "ready"]}}},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": False,
            "runAsUser": 0,
            "runAsGroup": 0,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
        },
        "volumeMounts": [{"name": _STATE, "mountPath": "/run/egress"}, runner_mount.install_mount()],
    }


def _without_raw(container: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the container without the capability NET_RAW.

    Raises InvalidSpec if the container could change the network's rules, or mounts the sidecar's volume.
    """
    at = f"{where}[{container['name']}]"
    if any(mount.get("name") == _STATE for mount in container.get("volumeMounts") or []):
        raise InvalidSpec(f"{at}.volumeMounts: {_STATE!r} is the egress sidecar's own volume")
    context = container.get("securityContext") or {}
    if context.get("privileged"):
        raise InvalidSpec(f"{at}.securityContext.privileged: must not be true, as the task limits the network")
    capabilities = context.get("capabilities") or {}
    if more := [
        capability for capability in capabilities.get("add") or [] if str(capability).removeprefix("CAP_") not in _HARMLESS
    ]:
        raise InvalidSpec(
            f"{at}.securityContext.capabilities.add: {', '.join(more)} must not be added, as the task limits the network"
        )
    drop = capabilities.get("drop") or []
    if not {"ALL", "NET_RAW"} & {*drop}:
        drop = [*drop, "NET_RAW"]
    return {**container, "securityContext": {**context, "capabilities": {**capabilities, "drop": drop}}}


def _probe_ports(containers: list[dict[str, Any]]) -> Iterator[int]:
    """Yield the ports of the containers' probes, to which the kubelet connects. A named port is resolved to its number."""
    for container in containers:
        named = {port_spec.get("name"): port_spec.get("containerPort") for port_spec in container.get("ports") or []}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(kind) or {}
            for action in ("httpGet", "tcpSocket", "grpc"):
                port = (probe.get(action) or {}).get("port")
                port = named.get(port, port)
                if isinstance(port, int):
                    yield port


def _host_and_port(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 80}"
