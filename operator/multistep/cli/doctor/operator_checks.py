"""Checks an installation: the operator's readiness, version, leader, rights, results volume, gateway. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from multistep.api.common.plural import plural
from multistep.cli.doctor.observe import Finding, Object, Observation, settings_of
from multistep.version import __version__

_MIN_FREE_BYTES: Final = 1 << 30
_VERSION_LABEL: Final = "app.kubernetes.io/version"
_INSTALL: Final = "helm install multistep charts/multistep -n multistep-system --create-namespace"
_SETTLED: Final = ("PodInitializing", "ContainerCreating")


def _installed(seen: Observation) -> Iterator[Finding]:
    if seen.operators is None:
        yield Finding(
            "operator", "unknown", f"cannot be checked: {seen.errors.get('operators')}", "name its namespace: --operator-namespace"
        )
    elif seen.operator is None:
        yield Finding("operator", "fault", "no operator is installed", _INSTALL)
    elif len(seen.operators) > 1:
        names = ", ".join(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in seen.operators)
        text = f"the cluster has {len(seen.operators)} operators ({names}); the first one is checked"
        fix = "choose with --operator-namespace; several need disjoint namespaces or shards"
        yield Finding("operator", "warning", text, fix)


def _ready(seen: Observation, operator: Object) -> Iterator[Finding]:
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    available = (operator.get("status") or {}).get("availableReplicas") or 0
    if available:
        yield Finding("operator", "ok", f"{namespace}/{name} has {plural(available, 'ready replica')}")
        return
    wanted = (operator.get("spec") or {}).get("replicas", 1)
    if wanted == 0:
        fix = f"kubectl scale deployment {name} --replicas=1 -n {namespace}"
        yield Finding("operator", "fault", f"{namespace}/{name} is scaled to 0 replicas", fix)
        return
    why, fix = _why_not_ready(seen, name, namespace)
    yield Finding("operator", "fault", f"{namespace}/{name} has no ready replica: {why}", fix)


def _why_not_ready(seen: Observation, name: str, namespace: str) -> tuple[str, str]:
    """Return why no pod of the operator is ready, and the fix."""
    for pod in seen.pods or ():
        status = pod.get("status") or {}
        for each in status.get("containerStatuses") or ():
            reason, image = ((each.get("state") or {}).get("waiting") or {}).get("reason"), each.get("image", "")
            if reason and ("Image" in reason or reason == "RegistryUnavailable"):
                fix = "correct image.repository and image.tag, push the image, or set imagePullSecrets; then helm upgrade"
                return f"its image {image} cannot be pulled ({reason})", fix
            if reason and reason not in _SETTLED:
                return f"its container does not start ({reason})", f"kubectl logs deployment/{name} -n {namespace} --previous"
        for each in status.get("conditions") or ():
            if each["type"] == "PodScheduled" and each["status"] == "False":
                return (
                    f"its pod is not scheduled ({each.get('message', '')})",
                    f"kubectl describe pod -n {namespace} -l app.kubernetes.io/name",
                )
    conditions = (seen.operator or {}).get("status", {}).get("conditions") or ()
    rejected = next(
        (each.get("message", "") for each in conditions if each["type"] == "ReplicaFailure" and each["status"] == "True"), ""
    )
    if rejected:
        return f"its pods are rejected ({rejected})", "allow the pod by quota and admission policies of its namespace"
    return "its pods are not ready yet", f"kubectl describe pod -n {namespace}; kubectl logs deployment/{name} -n {namespace}"


def _version(operator: Object) -> Iterator[Finding]:
    version = (operator["metadata"].get("labels") or {}).get(_VERSION_LABEL)
    if version is None:
        yield Finding("version", "unknown", f"the operator's Deployment has no label {_VERSION_LABEL}")
    elif version != __version__:
        text = f"the operator is of version {version}, and this program of {__version__}"
        yield Finding("version", "fault", text, f"pip install 'multistep=={version}', or helm upgrade to {__version__}")
    else:
        yield Finding("version", "ok", f"operator and this program are of version {version}")


def _leader(seen: Observation, operator: Object) -> Iterator[Finding]:
    namespace, name = operator["metadata"]["namespace"], operator["metadata"]["name"]
    logs = f"kubectl logs deployment/{name} -n {namespace}: it shows which replica leads, or why none can acquire the Lease"
    if seen.lease is None:
        if seen.errors.get("lease") == "it does not exist":
            yield Finding("leader", "fault", "no operator has ever led: its Lease does not exist", logs)
        else:
            yield Finding("leader", "unknown", f"cannot be checked: {seen.errors.get('lease')}", "ask an administrator to run this")
        return
    spec = seen.lease.get("spec") or {}
    holder, renewed, seconds = spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseDurationSeconds") or 15
    if not holder or not renewed:
        yield Finding("leader", "fault", "no replica holds the operator's Lease", logs)
        return
    now = seen.server_time or seen.now
    age = (now - datetime.fromisoformat(renewed)).total_seconds()
    if age > 2 * seconds:
        yield Finding("leader", "fault", f"{holder} renewed the operator's Lease last {age:.0f} s ago: no operator leads", logs)
    else:
        yield Finding("leader", "ok", f"{holder} leads")


def _allowed(seen: Observation, operator: Object) -> Iterator[Finding]:
    if seen.operator_rights is None:
        yield Finding(
            "operator's rights", "unknown", f"cannot be checked: {seen.errors.get('operator_rights')}", "run this as administrator"
        )
        return
    missing = [str(right) for right, granted in seen.operator_rights.items() if not granted]
    if missing:
        account = operator["spec"]["template"]["spec"].get("serviceAccountName") or "default"
        some = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        text = f"its ServiceAccount {account} may not: {some} (in namespace {seen.namespace})"
        yield Finding(
            "operator's rights", "fault", text, "helm upgrade with rbac.create=true, which creates its roles and their bindings"
        )
    else:
        yield Finding("operator's rights", "ok", f"the operator may do all that trials of {seen.namespace} need")


def _volume(seen: Observation, operator: Object) -> Iterator[Finding]:
    namespace = operator["metadata"]["namespace"]
    if seen.claims is None:
        yield Finding("results volume", "unknown", f"cannot be checked: {seen.errors.get('claims')}", "run this as administrator")
        return
    if not seen.claims:
        text = "results are in the operator's pod, and lost with it"
        yield Finding("results volume", "warning", text, "helm upgrade with results.persistence.enabled=true")
    for name, claim in seen.claims.items():
        yield _claim(name, claim, namespace)
    if seen.free_bytes is not None and seen.free_bytes < _MIN_FREE_BYTES:
        text = f"the results volume has {seen.free_bytes / 1e6:.0f} MB left"
        yield Finding(
            "results volume",
            "fault",
            text,
            "set results.retentionSeconds, delete old results, or enlarge the PersistentVolumeClaim",
        )
    elif seen.free_bytes is not None:
        yield Finding("results volume", "ok", f"{seen.free_bytes / 1e9:.1f} GB are free")


def _claim(name: str, claim: Object | None, namespace: str) -> Finding:
    if claim is None:
        text = f"PersistentVolumeClaim {namespace}/{name} does not exist"
        return Finding("results volume", "fault", text, "helm upgrade with results.persistence.enabled=true, or create the claim")
    phase, wanted = (claim.get("status") or {}).get("phase"), claim["spec"].get("storageClassName")
    if phase == "Bound":
        return Finding("results volume", "ok", f"PersistentVolumeClaim {namespace}/{name} is bound")
    text = f"PersistentVolumeClaim {namespace}/{name} is {phase}, of storage class {wanted or '(the default one)'}"
    fix = f"kubectl describe pvc {name} -n {namespace} shows why; results.persistence.storageClass must be an existing class"
    return Finding("results volume", "fault", text, fix)


def _gateway(seen: Observation, operator: Object) -> Iterator[Finding]:
    settings = settings_of(operator)
    if "MULTISTEP_GATEWAY_URL" not in settings:
        text = "no model gateway: agents with access Gateway cannot run"
        yield Finding("gateway", "warning", text, "helm upgrade with gateway.enabled=true, unless no agent uses a model")
    elif seen.gateways is None:
        yield Finding("gateway", "unknown", f"cannot be checked: {seen.errors.get('gateways')}", "run this as administrator")
    elif not any((each.get("status") or {}).get("readyReplicas") for each in seen.gateways):
        namespace = operator["metadata"]["namespace"]
        text = f"no model gateway is ready at {settings['MULTISTEP_GATEWAY_URL']}"
        yield Finding(
            "gateway", "fault", text, f"kubectl describe statefulset,pod -n {namespace}; kubectl logs of the gateway's pod"
        )
    else:
        yield Finding("gateway", "ok", "the model gateway is ready")


def _network_policies(operator: Object) -> Iterator[Finding]:
    match settings_of(operator).get("MULTISTEP_EGRESS", "Disabled"):
        case "NetworkPolicy":
            text = "trials get NetworkPolicies; check that the cluster's network plugin enforces them (docs/reference/security.md)"
            yield Finding("networks", "ok", text)
        case "Sidecar":
            yield Finding("networks", "ok", "trials get a sidecar that limits their network: docs/how-to/egress.md")
        case _:
            text = "nothing limits the networks of trials: tasks with a network_mode other than public are rejected"
            yield Finding("networks", "warning", text, "helm upgrade with trials.egress=Sidecar (docs/how-to/egress.md)")


def check_operator(seen: Observation) -> Iterator[Finding]:
    """Yield the results of all checks of the installation."""
    yield from _installed(seen)
    operator = seen.operator
    if operator is None:
        return
    yield from _ready(seen, operator)
    yield from _version(operator)
    yield from _leader(seen, operator)
    yield from _allowed(seen, operator)
    yield from _volume(seen, operator)
    yield from _gateway(seen, operator)
    yield from _network_policies(operator)
