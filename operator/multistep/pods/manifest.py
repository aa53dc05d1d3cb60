"""The pods of a trial: their manifests and the facts read from them. Pure functions on dicts in the API server's format."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from multistep.api import labels
from multistep.api.model import API_VERSION, GROUP
from multistep.api.task_toml import EnvironmentConfig
from multistep.api.trial import KIND, MultiStepTrial
from multistep.api.trial_status import VerifierStatus
from multistep.engine.decisions import PodFacts
from multistep.engine.network import Network
from multistep.errors import InvalidSpec
from multistep.kube.shard import LABEL_SHARD
from multistep.pods import container_status, kueue
from multistep.settings import Settings

CONTAINER = "main"
RUNNER = "/multistep/runner"
RUNNER_CALL = (RUNNER, "call")
LABEL_TRIAL = labels.TRIAL
LABEL_TASK = labels.TASK
LABEL_AGENT = labels.AGENT
LABEL_ATTEMPT = labels.ATTEMPT
LABEL_ROLE = f"{GROUP}/role"  # agent or verifier
LABEL_POD = f"{GROUP}/pod"  # the pod's name, for its NetworkPolicy
LABEL_NETWORK = f"{GROUP}/network"  # Limited: the pod has its own NetworkPolicy; policies for all pods of trials must not select it
OURS = "app.kubernetes.io/managed-by=multistep"  # selects all objects that the operator creates

# Annotations for autoscalers; the trial's pod template can override them.
_DRAINS = {
    "Move": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    "Wait": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"},
}
_ROOT = "-root"
_VOLUME = "multistep-runner"
_INSTALL_DIR = "/multistep-install"
_EXIT_MESSAGE_CHARACTERS = 500
_IMAGE_ID_CHARACTERS = 1024
_CONTAINER_ID_CHARACTERS = 256
# Not the pod's name, which contains the trial's name and attempt: an agent could change its behaviour by them.
_HOSTNAME = "multistep"


@dataclass(frozen=True)
class PodRequest:
    """The inputs of a pod's manifest.

    verifier: status of a step's separate verifier, None for the agent's pod; own_image: the verifier's environment sets
    another image than spec.environment.
    """

    trial: MultiStepTrial
    environment: EnvironmentConfig
    image: str
    task_name: str
    settings: Settings
    verifier: VerifierStatus | None = None
    own_image: bool = False
    network: Network | None = None

    @property
    def name(self) -> str:
        return self.verifier.pod_name if self.verifier else self.trial.status.pod_name or ""

    @property
    def image_user(self) -> str | None:
        return self.verifier.image_user if self.verifier else self.trial.status.image_user

    @property
    def runner_in_image(self) -> bool:
        return self.trial.spec.environment.runner_in_image and not self.own_image


def verifier_pod_name(trial_name: str, attempt: int, step: int, *, as_root: bool) -> str:
    """Return the name of the separate verifier's pod. step: index."""
    suffix = f"-{attempt}-v{step}{_ROOT if as_root else ''}"
    return cut(trial_name, 63 - len(suffix)).rstrip("-.") + suffix


def verifier_pod_names(trial: MultiStepTrial, step: int) -> Sequence[str]:
    """Return both names that the verifier's pod can have in the current attempt: as the image's user, and as root."""
    return [verifier_pod_name(trial.metadata.name, trial.status.attempt or 1, step, as_root=as_root) for as_root in (False, True)]


def pod_name(trial_name: str, attempt: int, *, as_root: bool) -> str:
    """Return the name of an attempt's pod: at most 63 characters, so that it is also a valid label value."""
    suffix = f"-{attempt}{_ROOT if as_root else ''}"
    return cut(trial_name, 63 - len(suffix)).rstrip("-.") + suffix


def cut(text: str, length: int) -> str:
    """Return text, cut to at most length characters. A hash of the whole text replaces the part cut off."""
    if len(text) <= length:
        return text
    return f"{text[: length - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def label_value(text: str) -> str:
    """Return text as a label value: invalid characters become hyphens, and a hash keeps different texts distinct."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    if clean != text:
        clean = f"{clean[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}".lstrip("-")
    return cut(clean, 63).strip("-._")


def manifest(request: PodRequest) -> dict[str, Any]:
    """Return the manifest of the pod. Raises InvalidSpec for a pod template with a field that is not allowed."""
    template = request.trial.spec.environment.pod_template or {}
    _check_template(template)
    own = _own_pod(request)
    given = template.get("metadata") or {}
    queued = kueue.labels(request.trial.metadata.labels, given.get("labels") or {}, verifier=request.verifier is not None)
    metadata = _merge({"annotations": _DRAINS[request.settings.drain], "labels": queued}, kueue.without(given))
    pod = _merge({"metadata": metadata, "spec": {"hostname": _HOSTNAME, **(template.get("spec") or {})}}, own)
    pod["spec"]["containers"] = _containers(template, own)
    return pod


def owned_by(trial: MultiStepTrial, obj: Mapping[str, Any]) -> bool:
    """Return whether the object's controller is this trial, by uid."""
    return _owner_uid(obj["metadata"]) == trial.metadata.uid


def owner_reference(trial: MultiStepTrial) -> dict[str, Any]:
    """Return the owner reference by which the garbage collector deletes an object after its trial."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": trial.metadata.name,
        "uid": trial.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def chooses_user(trial: MultiStepTrial) -> bool:
    """Return whether the pod template sets the container's user, which the operator then leaves unchanged."""
    spec = (trial.spec.environment.pod_template or {}).get("spec") or {}
    contexts = [spec.get("securityContext"), *(each.get("securityContext") for each in spec.get("containers") or [])]
    return any(context and (context.get("runAsUser") is not None or context.get("runAsNonRoot")) for context in contexts)


def facts(pod: Mapping[str, Any]) -> PodFacts:
    """Return the facts about a pod that the engine's decisions need."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    whole = _status(status.get("containerStatuses"))
    main, restarted = whole.get("state") or {}, bool(whole.get("restartCount"))
    waiting = main.get("waiting") or {}
    if not waiting.get("message") and waiting.get("reason") in (None, "PodInitializing", "ContainerCreating"):
        waiting = container_status.waiting_init(status) or waiting
    ended = (
        (container_status.before_restart(whole) if restarted else main.get("terminated"))
        or container_status.failed_init(status)
        or {}
    )
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled") or {}
    disruption, queue = conditions.get("DisruptionTarget") or {}, kueue.queue(metadata)
    if queue is not None and (evicted := kueue.eviction(conditions)) is not None:
        disruption = {"status": "True", "reason": kueue.EVICTED, "message": evicted}
    return PodFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=_owner_uid(metadata),
        attempt=int((metadata.get("labels") or {}).get(LABEL_ATTEMPT, 0)),
        as_root=metadata["name"].endswith(_ROOT),
        phase=status.get("phase") or "Pending",
        created_at=_seconds(metadata.get("creationTimestamp")) or 0.0,
        scheduled_at=_seconds(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        started_at=_seconds((main.get("running") or {}).get("startedAt")),
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        gates=tuple(each["name"] for each in (pod.get("spec") or {}).get("schedulingGates") or []),
        queue=queue,
        node=(pod.get("spec") or {}).get("nodeName") or "",
        deleting=bool(metadata.get("deletionTimestamp")),
        disruption=disruption.get("reason", "") if disruption.get("status") == "True" else "",
        reason=status.get("reason") or "",
        message=disruption.get("message") or status.get("message") or "",
        waiting_reason=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        running="running" in main,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        terminated=bool(ended),
        init_failed=container_status.ended_init(status) is not None,
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason") or "",
        exit_message=(ended.get("message") or "")[-_EXIT_MESSAGE_CHARACTERS:].strip(),
        restarted=restarted,
        container_id=str(whole.get("containerID") or "")[:_CONTAINER_ID_CHARACTERS],
        image_id=str(whole.get("imageID") or "")[:_IMAGE_ID_CHARACTERS],
        memory_limit=_memory_limit(pod.get("spec") or {}),
        shard=(metadata.get("labels") or {}).get(LABEL_SHARD, ""),
    )


def created_by_operator(pod: Mapping[str, Any]) -> bool:
    """Return whether the operator created the pod, by its labels, whatever its owner is now."""
    metadata = pod["metadata"]
    found = metadata.get("labels") or {}
    return found.get(LABEL_POD) == metadata["name"] and LABEL_TRIAL in found and LABEL_ROLE in found


def trial_of(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return namespace and name of the trial that owns a pod; None without such an owner."""
    for reference in pod["metadata"].get("ownerReferences") or []:
        if reference.get("kind") == KIND and str(reference.get("apiVersion", "")).startswith(f"{GROUP}/"):
            return pod["metadata"]["namespace"], reference["name"]
    return None


def _own_pod(request: PodRequest) -> dict[str, Any]:
    trial = request.trial
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": request.name,
            "namespace": trial.metadata.namespace,
            "labels": _labels(request),
            "annotations": {LABEL_TRIAL: trial.metadata.name, LABEL_TASK: request.task_name},
            "ownerReferences": [owner_reference(trial)],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": request.settings.pod_grace_seconds,
            "containers": [_container(request)],
            **_runner_parts(request),
        },
    }


def _labels(request: PodRequest) -> dict[str, str]:
    trial = request.trial
    limited = {LABEL_NETWORK: "Limited"} if request.network is not None else {}
    shard = {name: value for name, value in trial.metadata.labels.items() if name == LABEL_SHARD}
    return {
        **limited,
        **shard,
        "app.kubernetes.io/managed-by": "multistep",
        LABEL_TRIAL: label_value(trial.metadata.name),
        LABEL_TASK: label_value(request.task_name),
        LABEL_AGENT: label_value(trial.spec.agent.name),
        LABEL_ATTEMPT: str(trial.status.attempt),
        LABEL_ROLE: "verifier" if request.verifier else "agent",
        LABEL_POD: request.name,
    }


def _runner_parts(request: PodRequest) -> dict[str, Any]:
    """Return the runner's volume, read-only in the container, and the init container that fills it.

    An image with a runner needs it, too: root in the container could replace the image's copy.
    """
    settings, spec = request.settings, request.trial.spec.environment
    image, policy = settings.operator_image, settings.operator_image_pull_policy
    if request.runner_in_image:
        image, policy = request.image, spec.image_pull_policy or ""
    return {
        "volumes": [{"name": _VOLUME, "emptyDir": {"sizeLimit": "64Mi"}}],
        "initContainers": [
            {
                "name": "install-runner",
                "image": image,
                **({"imagePullPolicy": policy} if policy else {}),
                "command": [RUNNER, "install", _INSTALL_DIR],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": _VOLUME, "mountPath": _INSTALL_DIR}],
            }
        ],
    }


def _container(request: PodRequest) -> dict[str, Any]:
    spec = request.trial.spec.environment
    env = [{"name": "MULTISTEP_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": request.image,
        "command": [RUNNER, "serve", "--port", str(request.settings.runner_port)],
        "env": env,
        "volumeMounts": [{"name": _VOLUME, "mountPath": "/multistep", "readOnly": True}],
        "resources": _resources(request.environment),
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": request.settings.runner_port},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 1,
        },
    }
    if spec.image_pull_policy:
        container["imagePullPolicy"] = spec.image_pull_policy
    if request.environment.workdir:
        container["workingDir"] = request.environment.workdir
    if request.image_user:
        container["env"] = [*env, {"name": "MULTISTEP_DEFAULT_USER", "value": request.image_user}]
        container["securityContext"] = {"runAsUser": 0, "runAsGroup": 0}
    return container


def _resources(environment: EnvironmentConfig) -> dict[str, Any]:
    """Return equal requests and limits, so that a trial gets exactly the resources that the task requests."""
    amounts = {
        "cpu": environment.cpus and str(environment.cpus),
        "memory": environment.memory_mb and f"{environment.memory_mb}Mi",
        "ephemeral-storage": environment.storage_mb and f"{environment.storage_mb}Mi",
        "nvidia.com/gpu": environment.gpus and str(environment.gpus),
    }
    given = {name: amount for name, amount in amounts.items() if amount}
    return {"requests": given, "limits": given} if given else {}


def _check_template(template: Mapping[str, Any]) -> None:
    spec = template.get("spec") or {}
    for field in ("shareProcessNamespace", "hostPID"):
        if spec.get(field):
            raise InvalidSpec(
                f"spec.environment.podTemplate.spec.{field}: must not be true; "
                "the runner could not distinguish the operator from the agent"
            )
    if spec.get("activeDeadlineSeconds") is not None:
        raise InvalidSpec(
            "spec.environment.podTemplate.spec.activeDeadlineSeconds: must not be set; use spec.activeDeadlineSeconds, "
            "which ends the trial instead of its pod"
        )
    main = _status(spec.get("containers"))
    for field in ("restartPolicy", "restartPolicyRules"):
        if main.get(field):
            raise InvalidSpec(
                f"spec.environment.podTemplate.spec.containers[main].{field}: must not be set; "
                "a restart would lose the work done in the container"
            )


def _containers(template: Mapping[str, Any], own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers: "main" of the template with the operator's fields over it, then the template's others."""
    operators = own["spec"]["containers"][0]
    given = (template.get("spec") or {}).get("containers") or []
    templates: Mapping[str, Any] = next((each for each in given if each.get("name") == CONTAINER), {})
    return [_merge(templates, operators), *(each for each in given if each.get("name") != CONTAINER)]


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two objects: nested objects are merged, lists concatenated, other values taken from ``over``."""
    merged = dict(under)
    for key, value in over.items():
        former = merged.get(key)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(former, value)
        elif isinstance(former, list) and isinstance(value, list):
            merged[key] = [*former, *value]
        else:
            merged[key] = value
    return merged


def _status(statuses: list[dict[str, Any]] | None) -> dict[str, Any]:
    return next((each for each in statuses or [] if each["name"] == CONTAINER), {})


def _memory_limit(spec: Mapping[str, Any]) -> str:
    main: Mapping[str, Any] = next((each for each in spec.get("containers") or [] if each["name"] == CONTAINER), {})
    return str(((main.get("resources") or {}).get("limits") or {}).get("memory") or "")


def _owner_uid(metadata: Mapping[str, Any]) -> str:
    return next((each["uid"] for each in metadata.get("ownerReferences") or [] if each.get("controller")), "")


def _seconds(timestamp: str | None) -> float | None:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
