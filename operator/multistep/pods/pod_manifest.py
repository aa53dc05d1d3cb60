"""Builds the manifests of a trial's pods, as dicts in the API server's format. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from multistep.api.common import labels
from multistep.api.task.task_toml import EnvironmentConfig
from multistep.api.trial.spec import EnvironmentSpec
from multistep.api.trial.status import VerifierStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.plan import container_resources
from multistep.engine.plan.network_types import PUBLIC, Network
from multistep.engine.plan.plan_services import PodServices
from multistep.errors import InvalidSpec
from multistep.kube.shard import LABEL_SHARD
from multistep.pods import agent_host, container_statuses, egress_sidecar, kueue, runner_mount, service_containers
from multistep.pods.pod_identity import (
    CONTAINER,
    LABEL_AGENT,
    LABEL_ATTEMPT,
    LABEL_NETWORK,
    LABEL_POD,
    LABEL_ROLE,
    LABEL_TASK,
    LABEL_TRIAL,
    container_image,
    label_value,
    owner_reference,
)
from multistep.pods.runner_mount import RUNNER
from multistep.settings import Settings

RUNNER_CALL = (RUNNER, "call")

# Annotations for cluster autoscalers, which the trial's pod template can override.
_DRAINS = {
    "Move": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    "Wait": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"},
}
_FEW_RESOURCES: Mapping[str, Any] = {"requests": {"cpu": "10m", "memory": "16Mi"}}
# Hostname of all pods. The default would be the pod's name, with the trial's name and attempt, to which an agent could adapt
# itself.
_HOSTNAME = "multistep"


@dataclass(frozen=True)
class PodRequest:
    """Everything from which a pod's manifest is built."""

    trial: MultiStepTrial
    environment: EnvironmentConfig
    image: str
    task_name: str
    settings: Settings
    verifier: VerifierStatus | None = None
    """Status of a step's separate verifier, None for the agent's pod."""
    own_image: bool = False
    """Whether the verifier's environment has another image than the trial."""
    network: Network = PUBLIC
    sidecar: bool = False
    """Whether the pod has an egress sidecar."""
    checkpoints: bool = False
    """Whether the runner lists the image's files, so that it can create checkpoints."""
    services: PodServices | None = None
    """The services of the pod's compose file."""
    host_key: str = ""
    """The key with which the agent host's requests are sealed, "" for a pod without an agent host."""

    @property
    def name(self) -> str:
        return self.verifier.pod_name if self.verifier else self.trial.status.pod_name or ""

    @property
    def image_user(self) -> str | None:
        """Return the default user of phases if the pod's container itself must run as root, None if it runs as the image's user."""
        own = self.services.main.user if self.services else ""
        return own or (self.verifier.image_user if self.verifier else self.trial.status.image_user)

    @property
    def devices(self) -> EnvironmentConfig:
        """Return the environment with the resources and devices that the container gets."""
        environment = container_resources.with_limits(self.environment, self.services.main) if self.services else self.environment
        return container_resources.with_overrides(environment, self.trial.spec.environment.resources)

    @property
    def records_only(self) -> bool:
        """Return whether the pod is a regrade's own pod, which only stores records. Neither an agent nor a verifier runs in it."""
        return self.verifier is None and self.trial.spec.regrade is not None

    @property
    def hosted(self) -> bool:
        """Return whether the pod has an agent host."""
        return self.verifier is None and self.trial.spec.agent.hosted

    @property
    def agent_image(self) -> str | None:
        """Return the image with the agent's program, None if the pod mounts no such program."""
        return self.trial.spec.agent.image if self.hosted else None

    @property
    def runner_in_image(self) -> bool:
        return self.trial.spec.environment.runner_in_image and not self.own_image


def reserved_ports(settings: Settings, *, sidecar: bool) -> dict[int, str]:
    """Return the ports on which the operator's own programs listen in a pod, each with its purpose.

    ``sidecar`` is whether the pod has an egress sidecar.
    """
    sidecars = dict.fromkeys(egress_sidecar.PORTS, "the egress sidecar") if sidecar else {}
    return {settings.runner_port: "the runner", settings.agent_host_port: "the agent host", **sidecars}


def pod_manifest(request: PodRequest) -> dict[str, Any]:
    """Return the manifest of the pod.

    Raises InvalidSpec for a field of the pod template that is not allowed, and InvalidTask for an unknown type of device.
    """
    template = request.trial.spec.environment.pod_template or {}
    _check_template(template, hosted=request.hosted)
    own = _own_pod(request)
    given = template.get("metadata") or {}
    queued = kueue.queue_labels(request.trial.metadata.labels, given.get("labels") or {}, verifier=request.verifier is not None)
    metadata = _merge({"annotations": _DRAINS[request.settings.drain], "labels": queued}, kueue.without_queue_labels(given))
    pod = _merge({"metadata": metadata, "spec": {"hostname": _HOSTNAME, **(template.get("spec") or {})}}, own)
    pod["spec"]["containers"] = _containers(template, own)
    if not request.records_only and (terms := container_resources.node_terms(request.devices, request.settings.known_gpu_types)):
        pod["spec"]["affinity"] = container_resources.node_affinity(terms, pod["spec"].get("affinity") or {})
    judged = request.trial.spec.models.judge is not None
    if judged and not request.settings.gateway_url:
        raise InvalidSpec("spec.models.judge needs the chart's model gateway (gateway.enabled)")
    calls_gateway = judged or (request.hosted and request.trial.spec.agent.uses_gateway)
    return egress_sidecar.with_sidecar(pod, request.settings, gateway=calls_gateway) if request.sidecar else pod


def chooses_user(trial: MultiStepTrial) -> bool:
    """Return whether the pod template sets the container's user. The operator then does not change the user."""
    spec = (trial.spec.environment.pod_template or {}).get("spec") or {}
    contexts = [spec.get("securityContext"), *(container.get("securityContext") for container in spec.get("containers") or [])]
    return any(context and (context.get("runAsUser") is not None or context.get("runAsNonRoot")) for context in contexts)


def _own_pod(request: PodRequest) -> dict[str, Any]:
    trial = request.trial
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": request.name,
            "namespace": trial.metadata.namespace,
            "labels": _labels(request),
            "annotations": {
                LABEL_TRIAL: trial.metadata.name,
                LABEL_TASK: request.task_name,
                **({container_statuses.RESTARTING: ",".join(request.services.may_end)} if request.services else {}),
            },
            "ownerReferences": [owner_reference(trial)],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": request.settings.pod_grace_seconds,
            "containers": [
                _container(request),
                *([agent_host.host_container(trial.spec.agent, request.settings, request.host_key)] if request.hosted else []),
            ],
            **_runner_parts(request),
        },
    }


def _labels(request: PodRequest) -> dict[str, str]:
    trial = request.trial
    limited = {LABEL_NETWORK: "Limited"} if request.network.limited and request.settings.egress == "NetworkPolicy" else {}
    shard = {name: value for name, value in trial.metadata.labels.items() if name == LABEL_SHARD}
    return {
        **limited,
        **shard,
        **labels.MANAGED,
        LABEL_TRIAL: label_value(trial.metadata.name),
        LABEL_TASK: label_value(request.task_name),
        LABEL_AGENT: label_value(trial.spec.agent.label),
        LABEL_ATTEMPT: str(trial.status.attempt),
        LABEL_ROLE: "verifier" if request.verifier else "records" if request.records_only else "agent",
        LABEL_POD: request.name,
    }


def _runner_parts(request: PodRequest) -> dict[str, Any]:
    """Return the volumes for the runner, the agent host, the agent's program and the services, and the init containers that fill
    them.

    The runner is installed in a read-only volume even if the trial's image contains it, because root in the container could replace
    the image's file.
    """
    settings, spec = request.settings, request.trial.spec.environment
    own = container_image(settings.operator_image, settings.operator_image_pull_policy)
    if request.runner_in_image:
        own = container_image(request.image, _pull_policy(spec, request.image))
    program, how = request.agent_image, settings.agent_image_mount
    added = _services(request, own)
    return {
        "volumes": [
            runner_mount.runner_volume(),
            *(agent_host.host_volumes() if request.hosted else []),
            *([agent_host.program_volume(program, how)] if program else []),
            *added.pop("volumes", []),
        ],
        "initContainers": [
            *([] if request.sidecar else [runner_mount.runner_installer(own)]),
            *(agent_host.program_init_containers(program, how) if program else []),
            *added.pop("initContainers", []),
        ],
        **added,
    }


def _services(request: PodRequest, runner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the pod's spec that its services add.

    ``runner`` is an image that contains the runner, with its pull policy.
    """
    if request.services is None:
        return {}
    policy = partial(_pull_policy, request.trial.spec.environment)
    parts = service_containers.service_parts(
        request.services, policy, runner, reserved_ports(request.settings, sidecar=request.sidecar)
    )
    parts["initContainers"] += service_containers.main_copies(request.services, request.image, policy(request.image))
    return parts


def _pull_policy(spec: EnvironmentSpec, image: str) -> str | None:
    """Return an image's pull policy, None for Kubernetes' default.

    Never applies only to spec.environment.image, which `multistep run` loads into the nodes. Images of services and verifiers may
    have to be pulled.
    """
    other = spec.image is not None and image != spec.image
    return "IfNotPresent" if other and spec.image_pull_policy == "Never" else spec.image_pull_policy


def _container(request: PodRequest) -> dict[str, Any]:
    spec = request.trial.spec.environment
    env = [dict(runner_mount.POD_UID)]
    container: dict[str, Any] = {
        "name": CONTAINER,
        **container_image(request.image, _pull_policy(spec, request.image)),
        "command": [
            RUNNER,
            "serve",
            "--port",
            str(request.settings.runner_port),
            *(["--checkpoints"] if request.checkpoints else []),
        ],
        "env": env,
        "volumeMounts": [
            runner_mount.runner_mount(),
            *([agent_host.program_mount(request.settings.agent_image_mount)] if request.agent_image else []),
            *(service_containers.main_mounts(request.services) if request.services else []),
        ],
        "resources": _FEW_RESOURCES if request.records_only else container_resources.requests_and_limits(request.devices),
        "readinessProbe": runner_mount.readiness_probe(request.settings.runner_port),
    }
    if workdir := request.environment.workdir or (request.services.main.working_dir if request.services else ""):
        container["workingDir"] = workdir
    if request.image_user:
        container["env"] = [*env, {"name": "MULTISTEP_DEFAULT_USER", "value": request.image_user}]
    if security := _security(request):
        container["securityContext"] = security
    return container


def _security(request: PodRequest) -> dict[str, Any]:
    return {
        **({"runAsUser": 0, "runAsGroup": 0} if request.image_user else {}),
        **({"allowPrivilegeEscalation": False} if request.services and request.services.main.no_new_privileges else {}),
    }


def _check_template(template: Mapping[str, Any], *, hosted: bool) -> None:
    spec = template.get("spec") or {}
    for field in ("shareProcessNamespace", "hostPID", *(("hostNetwork",) if hosted else ())):
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
    main = container_statuses.container_named(CONTAINER, spec.get("containers"))
    for field in ("restartPolicy", "restartPolicyRules"):
        if main.get(field):
            raise InvalidSpec(
                f"spec.environment.podTemplate.spec.containers[main].{field}: must not be set; "
                "a restart would lose the work done in the container"
            )
    hooks = {"livenessProbe": main.get("livenessProbe"), "lifecycle.preStop": (main.get("lifecycle") or {}).get("preStop")}
    for field, hook in hooks.items():
        if (hook or {}).get("exec"):
            raise InvalidSpec(
                f"spec.environment.podTemplate.spec.containers[main].{field}.exec: must not be set; "
                "an agent could replace the program, and the runner could not distinguish it from the operator"
            )


def _containers(template: Mapping[str, Any], own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the operator's containers, each merged with the template's container of the same name, then the template's others."""
    given = (template.get("spec") or {}).get("containers") or []
    names = [container["name"] for container in own["spec"]["containers"]]
    merged = [
        _merge(container_statuses.container_named(container["name"], given), container) for container in own["spec"]["containers"]
    ]
    # The template's agent-host container only changes the operator's own. It is ignored in a pod that has no agent host.
    return [*merged, *(container for container in given if container.get("name") not in (*names, agent_host.CONTAINER))]


def _merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return two objects merged. Nested objects are merged, lists are concatenated, and other values come from ``override``."""
    merged = dict(base)
    for key, value in override.items():
        former = merged.get(key)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(former, value)
        elif isinstance(former, list) and isinstance(value, list):
            merged[key] = [*former, *value]
        else:
            merged[key] = value
    return merged


def network_policy(request: PodRequest) -> dict[str, Any] | None:
    """Return the NetworkPolicy of one pod, which has the pod's name, None if the operator does not use NetworkPolicies.

    Ingress is always denied, because other pods could flood the runner's readiness port. The kubelet's probes still arrive, because
    policies allow traffic from the pod's node. Egress is limited only if the task limits the network.
    """
    if request.settings.egress != "NetworkPolicy":
        return None
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": request.name,
            "namespace": request.trial.metadata.namespace,
            "labels": {**labels.MANAGED, LABEL_TRIAL: label_value(request.trial.metadata.name)},
            "ownerReferences": [owner_reference(request.trial)],
        },
        "spec": {
            "podSelector": {"matchLabels": _own_labels(request.trial, request.name)},
            "ingress": [],
            **_egress(request.network),
        },
    }


def _egress(network: Network) -> dict[str, Any]:
    if not network.limited:
        return {"policyTypes": ["Ingress"]}
    to = [{"ipBlock": {"cidr": cidr}} for cidr in network.hosts]
    return {"policyTypes": ["Ingress", "Egress"], "egress": [{"to": to}] if to else []}  # an empty ``to`` would allow all egress


def disruption_budget_name(trial: MultiStepTrial, pod_name: str) -> str:
    """Return the name of a pod's PodDisruptionBudget.

    It contains the trial's UID, so that the operator can delete the budget without reading it first.
    """
    return f"{pod_name}-{trial.metadata.uid}"


def disruption_budget(request: PodRequest) -> dict[str, Any] | None:
    """Return the PodDisruptionBudget that makes a drain wait for one pod, None if drains may evict pods of trials.

    A pod is not ready while it has a result that the operator must fetch. The budget protects such a pod too, because of the
    default of unhealthyPodEvictionPolicy.
    """
    if request.settings.drain != "Wait":
        return None
    trial = request.trial
    own = _own_labels(trial, request.name)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": disruption_budget_name(trial, request.name),
            "namespace": trial.metadata.namespace,
            "labels": {**labels.MANAGED, LABEL_TRIAL: own[LABEL_TRIAL]},
            "ownerReferences": [owner_reference(trial)],
        },
        "spec": {"minAvailable": 1, "selector": {"matchLabels": own}},
    }


def _own_labels(trial: MultiStepTrial, name: str) -> dict[str, str]:
    """Return labels that select one pod."""
    return {LABEL_TRIAL: label_value(trial.metadata.name), LABEL_POD: name}
