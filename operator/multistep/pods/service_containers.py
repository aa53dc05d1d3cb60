"""Builds the parts of a pod's manifest for the services of a compose file: native sidecars, in the order of their dependencies.

All parts comply with the Pod Security Standard ``baseline``. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from multistep.api.task.layout import MAIN, Service
from multistep.engine.plan.plan_services import (
    CONTAINER_PREFIX,
    FILES_VOLUME,
    PodMount,
    PodServices,
    PodVolume,
    ServicePlan,
    plan_mounts,
)
from multistep.errors import InvalidSpec
from multistep.pods import runner_mount
from multistep.pods.pod_identity import container_image
from multistep.pods.runner_mount import RUNNER

_COPY_DIR: Final = "/multistep-volumes"
_FILES_DIR: Final = "/multistep-files"
_FILL: Final = "fill-"
_FILL_FILES: Final = "fill-files"  # init container for the task's files, unlike fill-svc-files for a service named "files"
_CHUNK: Final = 96 << 10  # size of one command-line argument in bytes, of which Linux allows at most 128 KiB
_STATE: Final = "multistep-service"
_STATE_DIR: Final = "/run/multistep-service"
Policy = Callable[[str], str | None]
STATE: Final = f"{_STATE_DIR}/records"
"""Directory with the runner's records of its operations in a service's container."""


def service_parts(services: PodServices, policy: Policy, runner: Mapping[str, Any], reserved: Mapping[int, str]) -> dict[str, Any]:
    """Return the parts of a pod's spec that its services add: volumes, initContainers, hostAliases.

    ``policy`` returns an image's pull policy. ``runner`` is an image that contains the runner, with its pull policy. ``reserved``
    are ports that services must not use, with their purpose. Raises InvalidSpec for a service with such a port.
    """
    refuse_ports(services, reserved)
    mounts = plan_mounts(services)
    volumes = [_volume(volume) for volume in mounts.volumes]
    volumes += [{"name": _state(service), "emptyDir": {"sizeLimit": "64Mi"}} for service in services.order if not service.once]
    containers = [{**runner, **_files(services.files)}] if services.files else []
    for service in services.order:
        mounted = mounts.of(service.name)
        containers += _copies(service.container, service.image, policy(service.image), mounted)
        containers.append(_container(service, policy(service.image), mounted))
    return {"volumes": volumes, "initContainers": containers, "hostAliases": _aliases(services)}


def main_copies(services: PodServices, image: str, policy: str | None) -> list[dict[str, Any]]:
    """Return the init container that fills the volumes that only the trial's container mounts, [] if there are none."""
    return _copies(MAIN, image, policy, plan_mounts(services).of(MAIN))


def main_mounts(services: PodServices) -> list[dict[str, Any]]:
    """Return the mounts of the trial's container."""
    return [_mount(mount) for mount in plan_mounts(services).of(MAIN)]


def refuse_ports(services: PodServices, reserved: Mapping[int, str]) -> None:
    """Raise InvalidSpec for a service with a port of the operator's own programs, which ``reserved`` has with their purpose."""
    for service in (*(plan.service for plan in services.order), services.main):
        for port in service.ports:
            number, _, protocol = port.partition("/")
            if protocol == "tcp" and (purpose := reserved.get(int(number))) is not None:
                where = f"docker-compose.yaml:{service.line}: services.{service.name}.ports"
                raise InvalidSpec(f"{where}: {number} is the port of {purpose}; all services share the pod's one network")


def filled_by(container: str) -> str:
    """Return the service whose volumes an init container fills from the service's image, "" if it fills none."""
    name = container.removeprefix(_FILL)
    return "" if name == container or container == _FILL_FILES else name.removeprefix(CONTAINER_PREFIX)


def _volume(volume: PodVolume) -> dict[str, Any]:
    given = {
        **({"medium": "Memory"} if volume.memory else {}),
        **({"sizeLimit": str(volume.size_bytes)} if volume.size_bytes else {}),
    }
    return {"name": volume.name, "emptyDir": given}


def _mount(mount: PodMount) -> dict[str, Any]:
    return {
        "name": mount.volume.name,
        "mountPath": mount.target,
        **({"subPath": mount.subpath} if mount.subpath else {}),
        **({"readOnly": True} if mount.read_only else {}),
    }


def _files(packed: str) -> dict[str, Any]:
    """Return the init container that writes the task's files into their volume."""
    chunks = [packed[start : start + _CHUNK] for start in range(0, len(packed), _CHUNK)]
    return {
        "name": _FILL_FILES,
        "command": [RUNNER, "unpack", _FILES_DIR, *chunks],
        "volumeMounts": [runner_mount.runner_mount(), {"name": FILES_VOLUME, "mountPath": _FILES_DIR}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _copies(name: str, image: str, policy: str | None, mounts: tuple[PodMount, ...]) -> list[dict[str, Any]]:
    """Return the init container that copies the image's files at each mount's target into the new volume, as Docker does.

    Return [] if no mount needs this.
    """
    copied = [mount for mount in mounts if mount.copied]
    if not copied:
        return []
    pairs = [part for mount in copied for part in (mount.target, f"{_COPY_DIR}/{mount.volume.name}")]
    volumes = [{"name": mount.volume.name, "mountPath": f"{_COPY_DIR}/{mount.volume.name}"} for mount in copied]
    return [
        {
            "name": f"{_FILL}{name}"[:63].rstrip("-"),
            **container_image(image, policy),
            "command": [RUNNER, "populate", *pairs],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [runner_mount.runner_mount(), *volumes],
            "securityContext": {
                "runAsUser": 0,
                "runAsGroup": 0,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"]},
            },
        }
    ]


def _container(plan: ServicePlan, policy: str | None, mounts: tuple[PodMount, ...]) -> dict[str, Any]:
    service = plan.service
    mounted = [_mount(mount) for mount in mounts]
    if not plan.once:  # the runner in the service's container runs hooks and sends files to the operator
        mounted += [runner_mount.runner_mount(), {"name": _state(plan), "mountPath": _STATE_DIR}]
    container: dict[str, Any] = {
        "name": plan.container,
        **container_image(plan.image, policy),
        **({} if plan.once else {"restartPolicy": "Always"}),
        **_argv(service),
        "env": [*_environment(plan)],
        **({"workingDir": service.working_dir} if service.working_dir else {}),
        **({"stdin": True} if service.stdin else {}),
        **({"tty": True} if service.tty else {}),
        "volumeMounts": mounted,
        "resources": _resources(service),
        "securityContext": _security(service),
    }
    if plan.probe is not None:
        container["startupProbe"] = {
            "exec": {"command": [*map(_literal, plan.probe.argv)]},
            "periodSeconds": plan.probe.period,
            "timeoutSeconds": plan.probe.timeout,
            "failureThreshold": plan.probe.failures,
        }
    return container


def _argv(service: Service) -> dict[str, Any]:
    """Return command and args of a service's container.

    In Kubernetes, an empty command means the image's entrypoint. In a compose file, an empty entrypoint means none.
    """
    entrypoint, command = service.entrypoint, service.command
    if entrypoint == ():
        entrypoint, command = command, None
    return {
        **({"command": [*map(_literal, entrypoint)]} if entrypoint is not None else {}),
        **({"args": [*map(_literal, command)]} if command is not None else {}),
    }


def _environment(plan: ServicePlan) -> Iterator[dict[str, Any]]:
    if not plan.once:
        yield dict(runner_mount.POD_UID)
    for name, value in sorted(plan.service.environment.items()):
        yield {"name": name, "value": _literal(value)}


def _state(plan: ServicePlan) -> str:
    return f"{_STATE}-{plan.container}"[:63].rstrip("-")


def _literal(value: str) -> str:
    """Return the value with each $ escaped as $$, because the kubelet would expand $(NAME)."""
    return value.replace("$", "$$")


def _resources(service: Service) -> dict[str, Any]:
    limits = {
        **({"cpu": f"{service.cpus:g}"} if service.cpus else {}),
        **({"memory": str(service.memory_bytes)} if service.memory_bytes else {}),
    }
    requests = {
        **({"cpu": f"{service.cpu_request:g}"} if service.cpu_request else {}),
        **({"memory": str(service.memory_request)} if service.memory_request else {}),
    }
    return {**({"requests": requests} if requests else {}), **({"limits": limits} if limits else {})}


def _security(service: Service) -> dict[str, Any]:
    """Return the security context of a service's container.

    NET_RAW is dropped, because with it a process could forge packets of another process of the pod.
    """
    uid, _, gid = service.user.partition(":")
    return {
        "capabilities": {
            "drop": sorted({*service.cap_drop, "NET_RAW"}) if "ALL" not in service.cap_drop else ["ALL"],
            **({"add": [*service.cap_add]} if service.cap_add else {}),
        },
        **({"runAsUser": int(uid)} if uid else {}),
        **({"runAsGroup": int(gid)} if gid else {}),
        **({"readOnlyRootFilesystem": True} if service.read_only else {}),
        **({"allowPrivilegeEscalation": False} if service.no_new_privileges else {}),
    }


def _aliases(services: PodServices) -> list[dict[str, Any]]:
    by_address = {"127.0.0.1": [*services.names]}
    for host in services.hosts:
        by_address.setdefault(host.address, []).append(host.name)
    return [{"ip": address, "hostnames": names} for address, names in by_address.items()]
