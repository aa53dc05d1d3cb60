"""Reads facts from the statuses of a pod's containers, as the API server sends them. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from multistep.api.common.base_model import GROUP
from multistep.engine.lifecycle.decisions import ServiceEnd
from multistep.engine.plan.plan_services import CONTAINER_PREFIX
from multistep.pods import egress_sidecar
from multistep.timestamps import seconds_of


def container_named(name: str, containers: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    """Return the status (or spec) of the container with this name, {} if there is none."""
    return next((container for container in containers or [] if container["name"] == name), {})


def before_restart(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a restarted container ended before its restart."""
    return (status.get("lastState") or {}).get("terminated") or {"exitCode": None, "reason": "Restarted"}


def waiting_init(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return why an init container waits, for example because its image is missing, None if no init container waits.

    The message names the service that the container runs.
    """
    for container in status.get("initContainerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") != "PodInitializing":
            service = container["name"].removeprefix(CONTAINER_PREFIX)
            message = waiting.get("message")
            named = {"message": f"service {service}: {message}"} if message and service != container["name"] else {}
            return {**waiting, **named}
    return None


def failed_init(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how a failed pod ended before its main container started, None if the pod has not failed."""
    if status.get("phase") != "Failed":
        return None
    if (ended := ended_init(status)) is not None:
        return ended
    return {"exitCode": None, "reason": status.get("reason") or "PodFailed"}


def ended_init(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return name and end of the first init container that failed, None if none failed. The egress sidecar and services are
    ignored."""
    for container in status.get("initContainerStatuses") or []:
        if container["name"] == egress_sidecar.CONTAINER or container["name"].startswith(CONTAINER_PREFIX):
            continue
        ended = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return {"name": container["name"], **ended}
    return None


RESTARTING: Final = f"{GROUP}/restarting-services"
"""Annotation that lists, separated by commas, the containers of services that may end, because their compose file restarts them."""
_MESSAGE_CHARACTERS = 500
_DOWN_SECONDS = 30.0


def ended_service(pod: Mapping[str, Any]) -> ServiceEnd | None:
    """Return the termination of the first service that ended although it must not, None if no such service ended."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    may_end = str((pod["metadata"].get("annotations") or {}).get(RESTARTING) or "").split(",")
    for container_status in status.get("initContainerStatuses") or []:
        if container_status["name"].startswith(CONTAINER_PREFIX) and container_status["name"] not in may_end:
            container = container_named(container_status["name"], spec.get("initContainers"))
            if (end := _end(container, container_status)) is not None:
                return end
    return None


def stopped_service(pod: Mapping[str, Any], container: str, now: float) -> str | None:
    """Return how a service's container ended if it has not run for at least _DOWN_SECONDS, else None.

    The kubelet waits longer before each further restart of a container.
    """
    status = container_named(container, (pod.get("status") or {}).get("initContainerStatuses"))
    last = _last_end(status) or {}
    if "running" in (status.get("state") or {}) or not last.get("finishedAt"):
        return None
    finished = seconds_of(last["finishedAt"])
    if finished is None or now - finished < _DOWN_SECONDS:
        return None
    return f"ended with status {last.get('exitCode')} ({last.get('reason') or 'no reason given'})"


def _last_end(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how a container ended last, even if it runs again, None if it never ended."""
    return (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get("terminated")


def _end(container: Mapping[str, Any], status: Mapping[str, Any]) -> ServiceEnd | None:
    last = _last_end(status)
    if last is None or (container.get("restartPolicy") != "Always" and not last.get("exitCode")):
        return None
    code, reason = last.get("exitCode"), last.get("reason") or "no reason given"
    unhealthy = _was_unhealthy(container.get("startupProbe"), last)
    output = (last.get("message") or "")[-_MESSAGE_CHARACTERS:].strip()
    how = f"did not become healthy in time; it ended with status {code}" if unhealthy else f"ended with status {code} ({reason})"
    return ServiceEnd(
        name=status["name"].removeprefix(CONTAINER_PREFIX),
        how=f"{how}: {output}" if output else how,
        exit_code=code,
        out_of_memory=reason == "OOMKilled",
        unhealthy=unhealthy,
    )


def _was_unhealthy(probe: Mapping[str, Any] | None, last: Mapping[str, Any]) -> bool:
    """Return whether the container ran so long that its startup probe may have failed.

    The status does not show whether the kubelet ended the container for that reason.
    """
    started, finished = seconds_of(last.get("startedAt")), seconds_of(last.get("finishedAt"))
    if probe is None or started is None or finished is None:
        return False
    return bool(finished - started >= (probe.get("failureThreshold", 3) - 1) * probe.get("periodSeconds", 10))
