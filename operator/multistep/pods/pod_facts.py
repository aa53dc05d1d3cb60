"""Reads the facts that the engine's decisions need from a pod object. All functions are pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from multistep.engine.lifecycle.decisions import PodFacts
from multistep.kube.shard import LABEL_SHARD
from multistep.pods import agent_host, container_statuses, egress_sidecar, kueue, runner_mount, service_containers
from multistep.pods.pod_identity import CONTAINER, owner_uid
from multistep.timestamps import seconds_of

_EXIT_MESSAGE_CHARACTERS = 500
_IMAGE_ID_CHARACTERS = 1024
_CONTAINER_ID_CHARACTERS = 256


def pod_facts(pod: Mapping[str, Any]) -> PodFacts:
    """Return the facts about a pod that decisions need.

    No value of a label or a time raises an error, because any user may have written the pod.
    """
    metadata, status, spec = pod["metadata"], pod.get("status") or {}, pod.get("spec") or {}
    labels, container = metadata.get("labels") or {}, container_statuses.container_named(CONTAINER, status.get("containerStatuses"))
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or []}
    queue, inits = kueue.queue_of(metadata), status.get("initContainerStatuses")
    installers = [container_statuses.container_named(name, inits) for name in (egress_sidecar.CONTAINER, runner_mount.INSTALLER)]
    return PodFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=owner_uid(metadata),
        phase=status.get("phase") or "Pending",
        created_at=seconds_of(metadata.get("creationTimestamp")) or 0.0,
        gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or []),
        queue=queue,
        node=spec.get("nodeName") or "",
        deleting=bool(metadata.get("deletionTimestamp")),
        reason=status.get("reason") or "",
        ready=_ready(status, conditions),
        **_failed_init(status),
        container_id=str(container.get("containerID") or "")[:_CONTAINER_ID_CHARACTERS],
        image_id=_image_id(container),
        runner_image_id=next(filter(None, map(_image_id, installers)), ""),
        host_image_id=_image_id(container_statuses.container_named(agent_host.CONTAINER, status.get("containerStatuses"))),
        memory_limit=_memory_limit(spec),
        host_key=_host_key(spec),
        shard=labels.get(LABEL_SHARD, ""),
        service=container_statuses.ended_service(pod),
        **_scheduling(conditions),
        **_disruption(status, conditions, managed=queue is not None),
        **_container(status, container),
        **_agent_host(container_statuses.container_named(agent_host.CONTAINER, status.get("containerStatuses"))),
        **_egress(container_statuses.container_named(egress_sidecar.CONTAINER, inits)),
    )


def _ready(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Return whether no runner of the pod has a result that the operator must fetch. A runner with such a result is not ready.

    The readiness of services is ignored, because services have no results.
    """
    own = [container_statuses.container_named(name, status.get("containerStatuses")) for name in (CONTAINER, agent_host.CONTAINER)]
    own = [container for container in own if container]
    whole = (conditions.get("Ready") or {}).get("status") == "True"
    return whole or (bool(own) and all(container.get("ready") for container in own))


def _failed_init(status: Mapping[str, Any]) -> dict[str, Any]:
    ended = container_statuses.ended_init(status)
    return {"init_failed": ended is not None, "unfilled": service_containers.filled_by(ended["name"]) if ended else ""}


def _scheduling(conditions: Mapping[str, Any]) -> dict[str, Any]:
    scheduled = conditions.get("PodScheduled") or {}
    return {
        "scheduled_at": seconds_of(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        "unschedulable": scheduled.get("message", "") if scheduled.get("status") == "False" else "",
    }


def _disruption(status: Mapping[str, Any], conditions: Mapping[str, Any], *, managed: bool) -> dict[str, Any]:
    """Return why the pod is being disrupted, for example preempted, with its message.

    ``managed`` is whether Kueue manages the pod. An eviction by Kueue then also counts as a disruption.
    """
    target = conditions.get("DisruptionTarget") or {}
    if managed and (evicted := kueue.eviction_reason(conditions)) is not None:
        target = {"status": "True", "reason": kueue.EVICTED, "message": evicted}
    return {
        "disruption": target.get("reason", "") if target.get("status") == "True" else "",
        "message": target.get("message") or status.get("message") or "",
    }


def _container(status: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the trial's container, or of the init container because of which it cannot start."""
    state, restarted = container.get("state") or {}, bool(container.get("restartCount"))
    waiting = state.get("waiting") or {}
    if not waiting.get("message") and waiting.get("reason") in (None, "PodInitializing", "ContainerCreating"):
        waiting = container_statuses.waiting_init(status) or waiting
    ended = container_statuses.before_restart(container) if restarted else state.get("terminated")
    ended = ended or container_statuses.failed_init(status) or {}
    return {
        "started_at": seconds_of((state.get("running") or {}).get("startedAt")),
        "waiting_reason": waiting.get("reason") or "",
        "waiting_message": waiting.get("message") or "",
        "running": "running" in state,
        "terminated": bool(ended),
        "exit_code": ended.get("exitCode"),
        "exit_reason": ended.get("reason") or "",
        "exit_message": (ended.get("message") or "")[-_EXIT_MESSAGE_CHARACTERS:].strip(),
        "restarted": restarted,
    }


def _sidecar_end(prefix: str, ended: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of PodFacts about the end of a sidecar, whose names start with ``prefix``, {} if the sidecar has not
    ended."""
    if ended is None:
        return {}
    reason = str(ended.get("reason") or "no reason given")
    return {
        f"{prefix}_ended": f"ended with status {ended.get('exitCode')} ({reason[:_EXIT_MESSAGE_CHARACTERS]})",
        f"{prefix}_exit_code": ended.get("exitCode"),
        f"{prefix}_out_of_memory": reason == "OOMKilled",
    }


def _agent_host(container: Mapping[str, Any]) -> dict[str, Any]:
    return _sidecar_end("host", (container.get("state") or {}).get("terminated"))


def _egress(container: Mapping[str, Any]) -> dict[str, Any]:
    ended = (container.get("state") or {}).get("terminated")
    if ended is None and container.get("restartCount"):
        ended = container_statuses.before_restart(container)
    return _sidecar_end("egress", ended)


def _image_id(container: Mapping[str, Any]) -> str:
    return sys.intern(str(container.get("imageID") or "")[:_IMAGE_ID_CHARACTERS])  # one string for all trials of an image


def _memory_limit(spec: Mapping[str, Any]) -> str:
    main = container_statuses.container_named(CONTAINER, spec.get("containers"))
    return str(((main.get("resources") or {}).get("limits") or {}).get("memory") or "")


def _host_key(spec: Mapping[str, Any]) -> str:
    env = container_statuses.container_named(agent_host.CONTAINER, spec.get("containers")).get("env") or []
    # If several variables have this name, the last one counts, as in Kubernetes.
    return str({variable.get("name"): variable.get("value") for variable in env}.get(agent_host.KEY_VARIABLE) or "")
