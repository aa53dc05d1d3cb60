"""Reads the statuses of a pod's containers, as the API server sends them. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multistep.engine.plan.plan_services import CONTAINER_PREFIX
from multistep.pods import egress_sidecar


def named(name: str, containers: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    """Return the status (or spec) of the container with this name; {} if there is none."""
    return next((each for each in containers or [] if each["name"] == name), {})


def before_restart(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a restarted container ended before its restart."""
    return (status.get("lastState") or {}).get("terminated") or {"exitCode": None, "reason": "Restarted"}


def waiting_init(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return why an init container waits, for example because its image is missing; None if none waits. The message names the
    service that the container runs."""
    for each in status.get("initContainerStatuses") or []:
        waiting = (each.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") != "PodInitializing":
            service = each["name"].removeprefix(CONTAINER_PREFIX)
            message = waiting.get("message")
            named = {"message": f"service {service}: {message}"} if message and service != each["name"] else {}
            return {**waiting, **named}
    return None


def failed_init(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how a failed pod ended before its main container started; None if the pod has not failed."""
    if status.get("phase") != "Failed":
        return None
    if (ended := ended_init(status)) is not None:
        return ended
    return {"exitCode": None, "reason": status.get("reason") or "PodFailed"}


def ended_init(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the first failed init container ended, with its name, except the egress sidecar and services
    (pods.service_statuses); None if none failed."""
    for each in status.get("initContainerStatuses") or []:
        if each["name"] == egress_sidecar.CONTAINER or each["name"].startswith(CONTAINER_PREFIX):
            continue
        ended = (each.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return {"name": each["name"], **ended}
    return None
