"""Reads the state of a cluster for `multistep doctor`. If a read fails, it records the error and continues with the other reads."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

from multistep.api.common import labels
from multistep.cli.doctor.permissions import OPERATOR_PERMISSIONS, USER_PERMISSIONS, Permission, granted
from multistep.errors import ClusterError, NotFound
from multistep.kube.client import ClusterClient, server_version
from multistep.kube.resources import CRDS, LEASES, NAMESPACES, PODS, TRIALS, Resource

Object = Mapping[str, Any]
Verdict = Literal["ok", "warning", "fault", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    verdict: Verdict
    message: str
    fix: str = ""
    """What the user can do; "" if nothing needs to be done."""


@dataclass
class Observation:
    """The state of a cluster and an installation. A field that could not be read is None, and ``errors`` has the reason."""

    now: datetime
    """This machine's time."""
    namespace: str
    """The namespace whose trials are checked."""
    server_time: datetime | None = None
    version: str | None = None
    """The version of Kubernetes."""
    user: str | None = None
    crds: Mapping[str, Object] | None = None
    """The CRDs by name."""
    namespace_object: Object | None = None
    operators: Sequence[Object] | None = None
    """The Deployments of all operators."""
    operator: Object | None = None
    """The Deployment to check."""
    pods: Sequence[Object] | None = None
    """The pods of that operator."""
    lease: Object | None = None
    claims: Mapping[str, Object | None] | None = None
    """The operator's PersistentVolumeClaims by name. The value is None if a claim does not exist."""
    storage_classes: Sequence[Object] | None = None
    gateways: Sequence[Object] | None = None
    """The StatefulSets of the model gateway."""
    free_bytes: float | None = None
    """Free space of the results volume."""
    quotas: Sequence[Object] | None = None
    nodes: Sequence[Object] | None = None
    trial_pods: Sequence[Object] | None = None
    trials: Sequence[Object] | None = None
    rights: Mapping[Permission, bool] | None = None
    """Whether the user has each permission."""
    operator_rights: Mapping[Permission, bool] | None = None
    """Whether the operator has each permission."""
    errors: dict[str, str] = field(default_factory=dict)
    """Why a field could not be read, by its name."""


def settings_of(deployment: Object) -> dict[str, str]:
    """Return the environment variables of an operator's container that have a value."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for container in containers for each in container.get("env") or () if "value" in each}


T = TypeVar("T")
_DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
_STATEFUL_SETS: Final = Resource("apps/v1", "StatefulSet", "statefulsets")
_CLAIMS: Final = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
_CLASSES: Final = Resource("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
_QUOTAS: Final = Resource("v1", "ResourceQuota", "resourcequotas")
_NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
_MARK: Final = "MULTISTEP_OPERATOR_IMAGE"  # every operator's container has this variable, so it identifies operators
# Before the first measurement, the value is NaN and the expression does not match.
_FREE: Final = re.compile(rb"^multistep_results_free_bytes(?:\{[^}]*\})? (\d\S*)$", re.MULTILINE)
_MAX_METRICS_BYTES: Final = 8 << 20
_MAX_TRIALS: Final = 2000


async def observe(client: ClusterClient, namespace: str, operator_namespace: str | None) -> Observation:
    """Return the cluster's state. operator_namespace: the namespace of the installation to check, or None for the first one in any
    namespace. Raises Unavailable if the API server does not answer."""
    seen = Observation(datetime.now(UTC), namespace)
    version, seen.server_time = await server_version(client)
    seen.version, seen.now = version.get("gitVersion"), datetime.now(UTC)
    read = _Reader(seen)
    seen.user = await read("user", _user(client))
    crds = await read("crds", _listed(client, CRDS, None))
    seen.crds = None if crds is None else {each["metadata"]["name"]: each for each in crds}
    seen.namespace_object = await read("namespace_object", client.get(NAMESPACES, None, namespace))
    seen.operators = await read("operators", _operators(client, operator_namespace))
    seen.nodes = await read("nodes", _listed(client, _NODES, None))
    seen.storage_classes = await read("storage_classes", _listed(client, _CLASSES, None))
    seen.quotas = await read("quotas", _listed(client, _QUOTAS, namespace))
    seen.trial_pods = await read("trial_pods", _listed(client, PODS, namespace, labels.MANAGED_SELECTOR))
    seen.trials = await read("trials", _listed(client, TRIALS, namespace, most=_MAX_TRIALS))
    seen.rights = await read("rights", granted(client, USER_PERMISSIONS, namespace, None))
    if seen.operators:
        seen.operator = seen.operators[0]
        await _observe_operator(client, seen, read)
    return seen


async def _observe_operator(client: ClusterClient, seen: Observation, read: _Reader) -> None:
    assert seen.operator is not None
    found, place = seen.operator, seen.operator["metadata"]["namespace"]
    spec, settings = found["spec"]["template"]["spec"], settings_of(found)
    selector = ",".join(f"{name}={value}" for name, value in found["spec"]["selector"]["matchLabels"].items())
    seen.pods = await read("pods", _listed(client, PODS, place, selector))
    lease = settings.get("MULTISTEP_LEASE_NAME", "multistep"), settings.get("MULTISTEP_LEASE_NAMESPACE") or place
    seen.lease = await read("lease", client.get(LEASES, lease[1], lease[0]))
    names = [each["persistentVolumeClaim"]["claimName"] for each in spec.get("volumes") or () if "persistentVolumeClaim" in each]
    seen.claims = await read("claims", _claims(client, place, names))
    if "MULTISTEP_GATEWAY_URL" in settings:
        seen.gateways = await read("gateways", _gateways(client, place, settings["MULTISTEP_GATEWAY_URL"]))
    account = f"system:serviceaccount:{place}:{spec.get('serviceAccountName') or 'default'}"
    seen.operator_rights = await read("operator_rights", granted(client, OPERATOR_PERMISSIONS, seen.namespace, account))
    ready = [each["metadata"]["name"] for each in seen.pods or () if is_ready(each)]
    if ready:
        seen.free_bytes = await read("free_bytes", free_bytes(client, place, ready))


class _Reader:
    """Each call awaits one read and returns its result. If the read fails, the call records the error in the observation and
    returns None."""

    def __init__(self, seen: Observation) -> None:
        self._seen = seen

    async def __call__(self, name: str, read: Awaitable[T]) -> T | None:
        try:
            return await read
        except ClusterError as error:
            self._seen.errors[name] = (
                "it does not exist" if isinstance(error, NotFound) and error.reason == "NotFound" else str(error)
            )
            return None


async def _listed(
    client: ClusterClient, resource: Resource, namespace: str | None, selector: str = "", most: int | None = None
) -> list[Object]:
    found: list[Object] = []
    async with aclosing(client.iterate(resource, namespace, label_selector=selector)) as objects:
        async for each in objects:
            found.append(each)
            if most is not None and len(found) >= most:
                break
    return found


async def _operators(client: ClusterClient, namespace: str | None) -> list[Object]:
    return [each for each in await _listed(client, _DEPLOYMENTS, namespace) if _MARK in settings_of(each)]


async def _claims(client: ClusterClient, namespace: str, names: Iterable[str]) -> dict[str, Object | None]:
    found: dict[str, Object | None] = {}
    for name in names:
        try:
            found[name] = await client.get(_CLAIMS, namespace, name)
        except NotFound:
            found[name] = None
    return found


async def _gateways(client: ClusterClient, namespace: str, url: str) -> list[Object]:
    """Return the gateway's StatefulSet; [] if it does not exist. The host in the URL is a Service with the StatefulSet's name."""
    host = re.sub(r"^\w+://", "", url).partition(":")[0].partition(".")[0]
    return [each for each in await _listed(client, _STATEFUL_SETS, namespace) if each["metadata"]["name"] == host]


async def _user(client: ClusterClient) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    return str((await client.create(review))["status"]["userInfo"]["username"])


async def free_bytes(client: ClusterClient, namespace: str, pods: Sequence[str]) -> float | None:
    """Return the free bytes of the results volume, from the metrics of the operator's pods, through the API server's proxy; None if
    none of them has measured it yet. Only the leader measures the volume."""
    for pod in pods:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}:8081/proxy/metrics"
        if (match := _FREE.search(await _read(client.raw_stream(path)))) is not None:
            return float(match.group(1))
    return None


async def _read(source: AsyncIterator[bytes]) -> bytes:
    data = b""
    async for chunk in source:
        data += chunk
        if len(data) > _MAX_METRICS_BYTES:
            break
    return data


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in (pod.get("status") or {}).get("conditions") or ())
