"""Converts the services of a compose file to init containers, host names and volumes of a pod. All functions are pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from multistep.api.task.layout import MAIN, Host, Mount, Service, ServiceHealthcheck, Services
from multistep.engine.plan.uncounted_services import refuse_uncounted
from multistep.errors import InvalidSpec, InvalidTask

CONTAINER_PREFIX: Final = "svc-"
BUILDS_OFF: Final = "set the chart's value builds.registry, so that the cluster builds it"
_HOSTNAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PLACEHOLDER = re.compile("\ue000([^\ue000\ue001]+)\ue001")
_LONGEST_NAME = 63 - len(CONTAINER_PREFIX)


@dataclass(frozen=True)
class StartupProbe:
    """The startup probe of a service. It must succeed before the next container starts."""

    argv: tuple[str, ...]
    period: int
    """Seconds between two probes."""
    timeout: int
    """Timeout of one probe in seconds."""
    failures: int
    """Number of failed probes after which the service is unhealthy."""


@dataclass(frozen=True)
class ServicePlan:
    """The container of one service."""

    service: Service
    container: str
    """The container's name."""
    image: str
    once: bool = False
    """Whether the service must complete before the next container starts."""
    probe: StartupProbe | None = None

    @property
    def name(self) -> str:
        return self.service.name


@dataclass(frozen=True)
class PodServices:
    """The services of one pod."""

    order: tuple[ServicePlan, ...]
    """The services in the order in which they start, before the trial's container."""
    main: Service
    """The service of the compose file that describes the trial's container."""
    names: tuple[str, ...]
    """All host names that the pod resolves to 127.0.0.1."""
    hosts: tuple[Host, ...] = ()
    """The same as api.task.layout.Services.hosts."""
    files: str = ""
    """The same as api.task.layout.Services.files."""

    @property
    def background(self) -> tuple[str, ...]:
        """Return the command that runs in the background of the trial's container, () for none."""
        return (*(self.main.entrypoint or ()), *(self.main.command or ()))

    def container_of(self, service: str) -> str:
        """Return the name of a service's container. Raises KeyError if the pod has no such service."""
        return {plan.name: plan.container for plan in self.order}[service]

    @property
    def may_end(self) -> tuple[str, ...]:
        """Return the containers that may terminate without failing the trial, because Compose would restart their services."""
        return tuple(plan.container for plan in self.order if not plan.once and plan.service.restarts)


def placeholder(name: str) -> str:
    """Return the placeholder of a variable in a parsed compose file. The variable gets its value from each trial's spec."""
    return f"\ue000{name}\ue001"


def plan_services(services: Services, image: str, images: Mapping[str, str], env: Mapping[str, str]) -> PodServices:
    """Return the plan of a pod's services.

    ``image`` is the image of the pod's main container. ``images`` has, by service, the images that replace the compose file's image
    or build. ``env`` has the values of the placeholders. Raises InvalidTask, InvalidSpec for an image that must be built first, and
    UncountedModel.
    """
    resolved = [_service_with_values(service, env) for service in services.services]
    whole = replace(services, services=tuple(resolved))
    _refuse_meeting(whole)
    refuse_uncounted(whole)
    order = tuple(
        ServicePlan(
            service=service,
            container=container_name(service.name),
            image=_image(whole, service, image, images),
            once=service.name in whole.jobs,
            probe=startup_probe(service.healthcheck) if service.healthcheck and service.name not in whole.jobs else None,
        )
        for service in _ordered(whole)
    )
    names = tuple(dict.fromkeys(name.lower() for service in whole.services for name in service.names))
    return PodServices(order, whole.main, names or (MAIN,), whole.hosts, whole.files)


def container_name(service: str) -> str:
    """Return the name of the container in which a service runs."""
    return CONTAINER_PREFIX + re.sub(r"[^a-z0-9]+", "-", service.lower()).strip("-")


def startup_probe(check: ServiceHealthcheck) -> StartupProbe:
    """Convert a healthcheck to a startup probe.

    The probe fails no earlier than Docker would report the service unhealthy, which is after the start period plus retries times
    the interval. It runs at least as often as the healthcheck, but at most once per second.
    """
    period = max(1, math.floor(min(check.interval, check.start_interval)))
    seconds = check.start_period + check.retries * check.interval
    return StartupProbe(check.argv, period, max(1, math.ceil(check.timeout)), max(1, math.ceil(seconds / period)))


def values_of(services: Services, env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the placeholders in a compose file.

    ``env`` is the resolved environment.env, and ``variables`` are the trial's variables. Raises InvalidTask for a variable that is
    not set.
    """
    for name, place in services.variables.items():
        if name not in variables:
            text = f"uses ${{{name}}}, which is not set: add it to spec.variables, or write ${{{name}:-DEFAULT}}"
            raise InvalidTask(text, kind="ValueError", field=place)
    return {**{name: variables[name] for name in services.variables}, **env}


def with_values(text: str, env: Mapping[str, str]) -> str:
    """Return the text with its placeholders replaced."""
    return _PLACEHOLDER.sub(lambda match: env.get(match[1], ""), text)


def _service_with_values(service: Service, env: Mapping[str, str]) -> Service:
    """Return the service with the placeholders in its variables and commands replaced."""

    def value(text: str) -> str:
        return with_values(text, env)

    def values(texts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if texts is None else tuple(map(value, texts))

    check = service.healthcheck
    return replace(
        service,
        environment={name: value(text) for name, text in service.environment.items()},
        entrypoint=values(service.entrypoint),
        command=values(service.command),
        image=value(service.image),
        healthcheck=replace(check, argv=tuple(map(value, check.argv))) if check else None,
    )


def _image(services: Services, service: Service, image: str, images: Mapping[str, str]) -> str:
    if service.name in images:
        return images[service.name]
    if service.build is not None:
        raise InvalidSpec(
            f"spec.environment.serviceImages: the image of service {service.name!r} must be built from "
            f"{service.build.context}/{service.build.dockerfile} ({services.path}:{service.line}); "
            f"{BUILDS_OFF}, or build it, and name the image here"
        )
    return image if service.same_image else service.image


def _ordered(services: Services) -> Iterator[Service]:
    """Yield the services other than main, each after the services that it depends on.

    There are no circular dependencies, because the parser rejects them.
    """
    by_name = {service.name: service for service in services.others}
    done: set[str] = set()

    def visit(service: Service) -> Iterator[Service]:
        if service.name in done:
            return
        done.add(service.name)
        for dependency in service.depends_on:
            if dependency.service == MAIN:
                _refuse_waiting_for_main(services, service, dependency.condition)
            else:
                yield from visit(by_name[dependency.service])
        yield service

    for service in services.others:
        yield from visit(service)


def _refuse_waiting_for_main(services: Services, service: Service, condition: str) -> None:
    main = services.main
    if condition != "started" or main.command or main.entrypoint:
        raise _invalid(services, service, "depends_on", "must not have main, which starts when all services are ready")


def _refuse_meeting(services: Services) -> None:
    """Raise InvalidTask for services that cannot share one pod.

    Two services must not have the same port or container name, and every name must be a valid host name.
    """
    ports: dict[str, str] = {}
    containers: dict[str, str] = {}
    for service in services.services:
        for port in service.ports:
            if (other := ports.setdefault(port, service.name)) != service.name:
                text = f"{port} is also a port of service {other!r}, but all services share the pod's one network"
                raise _invalid(services, service, "ports", text)
        for name in service.names:
            if not _HOSTNAME.fullmatch(name.lower()) or len(name) > _LONGEST_NAME:
                text = f"{name!r} must be a host name of at most {_LONGEST_NAME} letters, digits, '-' and '.'"
                raise _invalid(services, service, "", text)
        if service.name != MAIN and (other := containers.setdefault(container_name(service.name), service.name)) != service.name:
            raise _invalid(services, service, "", f"must differ from {other!r} by more than case and '.'")


def _invalid(services: Services, service: Service, key: str, message: str) -> InvalidTask:
    where = ".".join(filter(None, ("services", service.name, key)))
    return InvalidTask(message, kind="ValueError", field=f"{services.path}:{service.line}: {where}")


@dataclass(frozen=True)
class PodVolume:
    """A volume of the pod."""

    name: str
    """Name of the volume, unique in the pod."""
    memory: bool = False
    """Whether the volume is in memory."""
    size_bytes: int = 0
    """Maximum size in bytes, 0 for no limit."""


@dataclass(frozen=True)
class PodMount:
    """A mount of a volume in a container."""

    volume: PodVolume
    target: str
    subpath: str = ""
    read_only: bool = False
    copied: bool = False
    """Whether the image's files at ``target`` are copied to the new volume."""


@dataclass(frozen=True)
class PodMounts:
    """The volume mounts of a pod's containers, by service."""

    by_service: Mapping[str, tuple[PodMount, ...]] = field(default_factory=dict)

    def of(self, service: str) -> tuple[PodMount, ...]:
        """Return the mounts of one service's container."""
        return self.by_service.get(service, ())

    @property
    def volumes(self) -> tuple[PodVolume, ...]:
        """Return all volumes, each once."""
        return tuple({mount.volume.name: mount.volume for mounts in self.by_service.values() for mount in mounts}.values())


FILES_VOLUME: Final = "svc-files"


def plan_mounts(services: PodServices) -> PodMounts:
    """Return the mounts of all containers.

    As in Compose, a new named volume gets the files of the image of the first service that mounts it.
    """
    filled: set[str] = set()
    numbers = iter(range(10**6))
    named: dict[str, PodVolume] = {}

    def volume_of(mount: Mount) -> PodVolume:
        if mount.kind == "file":
            return PodVolume(FILES_VOLUME)
        if mount.kind == "volume" and mount.source:
            return named.setdefault(mount.source, PodVolume(f"svc-volume-{len(named)}"))
        return PodVolume(f"svc-own-{next(numbers)}", mount.kind == "tmpfs", mount.size_bytes)

    def mounts(service: Service) -> Iterable[PodMount]:
        for mount in service.mounts:
            volume = volume_of(mount)
            copied = mount.kind == "volume" and not (mount.no_copy or mount.subpath) and volume.name not in filled
            filled.add(volume.name)
            subpath = mount.source if mount.kind == "file" else mount.subpath
            yield PodMount(volume, mount.target, subpath, mount.read_only, copied)
        if service.shm_bytes:
            yield PodMount(PodVolume(f"svc-own-{next(numbers)}", memory=True, size_bytes=service.shm_bytes), "/dev/shm")

    return PodMounts(
        {service.name: tuple(mounts(service)) for service in (*(plan.service for plan in services.order), services.main)}
    )
