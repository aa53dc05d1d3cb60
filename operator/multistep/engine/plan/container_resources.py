"""Computes a container's resources, and the node affinity for its GPUs or TPU. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from multistep.api.task.layout import Service
from multistep.api.task.task_toml import (
    GPU_RESOURCE,
    TPU_RESOURCE,
    TPU_TOPOLOGY_LABEL,
    TPU_TYPE_LABEL,
    TPU_TYPES,
    EnvironmentConfig,
    GpuLabels,
)
from multistep.api.trial.spec import ResourcesSpec
from multistep.errors import InvalidTask

Term = list[dict[str, Any]]  # the matchExpressions of a node selector term; a node must match all of them


def with_limits(environment: EnvironmentConfig, main: Service) -> EnvironmentConfig:
    """Return the environment with the limits that a compose file sets for its service ``main``.

    They replace the limits of task.toml, as in Harbor 0.26.
    """
    given = {"cpus": main.cpus, "memory_mb": math.ceil(main.memory_bytes / 2**20)}
    return environment.model_copy(update={name: value for name, value in given.items() if value})


def with_overrides(environment: EnvironmentConfig, resources: ResourcesSpec) -> EnvironmentConfig:
    """Return the environment with the resources of the trial's spec in place of the task's, like Harbor 0.26's override_cpus."""
    given = {name: getattr(resources, name) for name in ResourcesSpec.model_fields}
    return environment.model_copy(update={name: value for name, value in given.items() if value is not None})


def requests_and_limits(environment: EnvironmentConfig) -> dict[str, Any]:
    """Return a container's requests and limits. Both are equal, so a trial gets exactly the resources that its task requests."""
    amounts = {
        "cpu": environment.cpus and f"{environment.cpus:g}",
        "memory": environment.memory_mb and f"{environment.memory_mb}Mi",
        "ephemeral-storage": environment.storage_mb and f"{environment.storage_mb}Mi",
        GPU_RESOURCE: environment.gpus and str(environment.gpus),
        TPU_RESOURCE: environment.tpu and str(math.prod(map(int, environment.tpu.topology.split("x")))),
    }
    given = {name: amount for name, amount in amounts.items() if amount}
    return {"requests": given, "limits": given} if given else {}


def node_terms(environment: EnvironmentConfig, known: GpuLabels) -> list[Term]:
    """Return the node selector terms for the environment's GPUs or TPU. A node must match one of them. [] matches every node.

    ``known`` maps each GPU type in lower case to the node labels for it. Raises InvalidTask for an unknown type of GPU or TPU.
    """
    if environment.tpu is not None:
        named = environment.tpu.type.lower().strip()
        label = TPU_TYPES.get(named, named)
        if label not in TPU_TYPES.values():
            raise _unknown("environment.tpu.type", environment.tpu.type, [*TPU_TYPES, *TPU_TYPES.values()])
        return [[_is_in(TPU_TYPE_LABEL, [label]), _is_in(TPU_TOPOLOGY_LABEL, [environment.tpu.topology])]]
    terms: list[Term] = []
    for named in (environment.gpu_types or ()) if environment.gpus else ():
        labels = known.get(named.lower().strip())
        if labels is None:
            hint = "; settings.gpuTypes of the chart adds types"
            raise _unknown("environment.gpu_types", named, known, hint)
        terms += [[_is_in(label, values)] for label, values in labels.items()]
    return terms


def node_affinity(terms: Sequence[Term], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's affinity, which requires one of the terms in addition to ``given``, the affinity of the pod template."""
    node = dict(given.get("nodeAffinity") or {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    others = (node.get(required) or {}).get("nodeSelectorTerms") or [{}]
    both = [
        {**other, "matchExpressions": [*(other.get("matchExpressions") or []), *term]} for other in others for term in terms
    ]  # node selector terms are alternatives, so each of the template's terms is combined with each new term
    return {**given, "nodeAffinity": {**node, required: {"nodeSelectorTerms": both}}}


def _is_in(label: str, values: Sequence[str]) -> dict[str, Any]:
    return {"key": label, "operator": "In", "values": list(values)}


def _unknown(field: str, value: str, known: Mapping[str, Any] | Sequence[str], hint: str = "") -> InvalidTask:
    return InvalidTask(f"{value!r} is not a known type: {', '.join(dict.fromkeys(known))}{hint}", field=field)
