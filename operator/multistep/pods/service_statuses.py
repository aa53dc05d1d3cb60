"""Reads from a pod's status whether one of its services ended. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from multistep.api.common.base_model import GROUP
from multistep.engine.lifecycle.decisions import ServiceEnd
from multistep.engine.plan.plan_services import CONTAINER_PREFIX
from multistep.pods import container_statuses
from multistep.timestamps import seconds_of

RESTARTING: Final = f"{GROUP}/restarting-services"
"""Annotation: containers, separated by commas, of services that may end, because their compose file lets them restart."""
_MESSAGE_CHARACTERS = 500
_DOWN_SECONDS = 30.0


def ended(pod: Mapping[str, Any]) -> ServiceEnd | None:
    """Return the termination of the first service that ended although it must not end; None if no such service ended."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    may_end = str((pod["metadata"].get("annotations") or {}).get(RESTARTING) or "").split(",")
    for each in status.get("initContainerStatuses") or []:
        if each["name"].startswith(CONTAINER_PREFIX) and each["name"] not in may_end:
            container = container_statuses.named(each["name"], spec.get("initContainers"))
            if (found := _end(container, each)) is not None:
                return found
    return None


def down(pod: Mapping[str, Any], container: str, now: float) -> str | None:
    """Return how a service's container ended if it does not run and ended _DOWN_SECONDS ago or earlier; None otherwise. (The
    kubelet's back-off delays each further restart of a container longer.)"""
    status = container_statuses.named(container, (pod.get("status") or {}).get("initContainerStatuses"))
    last = _last_end(status) or {}
    if "running" in (status.get("state") or {}) or not last.get("finishedAt"):
        return None
    finished = seconds_of(last["finishedAt"])
    if finished is None or now - finished < _DOWN_SECONDS:
        return None
    return f"ended with status {last.get('exitCode')} ({last.get('reason') or 'no reason given'})"


def _last_end(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how a container ended last, also if it runs again; None if it never ended."""
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
    """Return whether the container ran so long that its startup probe may have failed. The status does not
    show whether the kubelet ended it."""
    started, finished = seconds_of(last.get("startedAt")), seconds_of(last.get("finishedAt"))
    if probe is None or started is None or finished is None:
        return False
    return bool(finished - started >= (probe.get("failureThreshold", 3) - 1) * probe.get("periodSeconds", 10))
