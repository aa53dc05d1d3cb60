"""Checks a cluster: Kubernetes version, clock, CRDs, the user's rights, nodes, quotas, images. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel

from multistep.api.common.base_model import quantity
from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepSpec, SweepStatus
from multistep.api.trial.spec import TrialSpec
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import FIELD, in_journal
from multistep.cli.doctor.observe import Finding, Object, Observation, settings_of
from multistep.cli.doctor.operator_checks import check_operator

MAX_SKEW_SECONDS: Final = 5.0
_OLDEST: Final = (1, 27)  # oldest supported Kubernetes, as in the chart's kubeVersion
_CRDS: Final[Mapping[str, tuple[type[BaseModel], type[BaseModel]]]] = {
    "multisteptrials.multistep.dev": (TrialSpec, TrialStatus),
    "trialsweeps.multistep.dev": (SweepSpec, SweepStatus),
}
_SOME: Final = 3
_UNSEEN_SECONDS: Final = 60.0
_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)


def run_checks(seen: Observation) -> list[Finding]:
    """Return the results of all checks, in the order in which faults should be fixed."""
    checks: tuple[Callable[[Observation], Iterator[Finding]], ...] = (
        _kubernetes,
        _clock,
        _crds,
        _namespace,
        _rights,
        check_operator,
        _nodes,
        _storage_class,
        _quota,
        _pod_security,
        _images,
        _unschedulable,
        _unseen_trials,
    )
    return [finding for check in checks for finding in check(seen)]


def unread(seen: Observation, name: str, check: str) -> Finding:
    """Return the finding for a check whose input could not be read."""
    return Finding(
        check, "unknown", f"cannot be checked: {seen.errors.get(name, 'it was not read')}", "ask an administrator to run this"
    )


def _kubernetes(seen: Observation) -> Iterator[Finding]:
    match = re.match(r"v(\d+)\.(\d+)", seen.version or "")
    if match is None:
        yield Finding("kubernetes", "unknown", f"the API server reports version {seen.version!r}")
    elif tuple(map(int, match.groups())) < _OLDEST:
        need = ".".join(map(str, _OLDEST))
        yield Finding("kubernetes", "fault", f"version {seen.version} is too old", f"upgrade the cluster to {need} or newer")
    else:
        yield Finding("kubernetes", "ok", f"version {seen.version}{f', as user {seen.user}' if seen.user else ''}")


def _clock(seen: Observation) -> Iterator[Finding]:
    if seen.server_time is None:
        yield Finding("clock", "unknown", "the API server sends no time")
        return
    skew = (seen.now - seen.server_time).total_seconds()
    if abs(skew) > MAX_SKEW_SECONDS:
        which = "ahead of" if skew > 0 else "behind"
        text = f"this machine's clock is {abs(skew):.0f} s {which} the API server's"
        fix = "synchronize both clocks, for example with chrony: ages, deadlines and signed requests depend on them"
        yield Finding("clock", "fault", text, fix)
    else:
        yield Finding("clock", "ok", "this machine and the API server agree")


def _crds(seen: Observation) -> Iterator[Finding]:
    if seen.crds is None:
        yield unread(seen, "crds", "crds")
        return
    for name, (spec, status) in _CRDS.items():
        crd = seen.crds.get(name)
        if crd is None:
            yield Finding(
                "crds", "fault", f"CRD {name} does not exist", "install the chart, or: kubectl apply --server-side -f crds/"
            )
            continue
        lacks = [
            f"{part}.{field}"
            for part, model in (("spec", spec), ("status", status))
            for field in sorted(_fields_of(model) - _fields(crd, part))
        ]
        if lacks:
            more = " and more" if len(lacks) > _SOME else ""
            text = f"CRD {name} is of another version than this program: it lacks {', '.join(lacks[:_SOME])}{more}"
            yield Finding(
                "crds", "fault", text, "kubectl apply --server-side --force-conflicts -f crds/ (Helm updates no CRDs of crds/)"
            )
        else:
            yield Finding("crds", "ok", f"CRD {name} has all fields of this version")


def _fields_of(model: type[BaseModel]) -> set[str]:
    """Return the names of the CRD's fields in which the model is stored."""
    return {FIELD if in_journal(model, name) else each.alias or name for name, each in model.model_fields.items()}


def _fields(crd: Object, part: str) -> set[str]:
    served: Object = next((each for each in crd["spec"]["versions"] if each.get("served")), {})
    schema = ((served.get("schema") or {}).get("openAPIV3Schema") or {}).get("properties") or {}
    return set((schema.get(part) or {}).get("properties") or ())


def _namespace(seen: Observation) -> Iterator[Finding]:
    name = seen.namespace
    if seen.namespace_object is None:
        if seen.errors.get("namespace_object") == "it does not exist":
            yield Finding(
                "namespace", "fault", f"namespace {name} does not exist", f"kubectl create namespace {name}, or use --namespace"
            )
        else:
            yield unread(seen, "namespace_object", "namespace")
    elif seen.namespace_object["metadata"].get("deletionTimestamp"):
        yield Finding("namespace", "fault", f"namespace {name} is being deleted", "use another one with --namespace")
    else:
        yield Finding("namespace", "ok", f"namespace {name} exists")
    watched = settings_of(seen.operator).get("MULTISTEP_NAMESPACES", "[]") if seen.operator else "[]"
    if watched not in ("[]", "") and f'"{name}"' not in watched:
        text = f"the operator runs trials of the namespaces {watched} only, not of {name}"
        yield Finding(
            "namespace", "fault", text, f"add {name} to `namespaces` of the chart's values, and upgrade; or use another namespace"
        )


def _rights(seen: Observation) -> Iterator[Finding]:
    if seen.rights is None:
        yield unread(seen, "rights", "your rights")
        return
    missing = [right for right, granted in seen.rights.items() if not granted]
    if not missing:
        yield Finding("your rights", "ok", f"run, show, list, follow and stop trials and sweeps in {seen.namespace}")
        return
    user = seen.user or "USER"
    who = f"--serviceaccount={':'.join(user.split(':')[2:])}" if user.startswith("system:serviceaccount:") else f"--user={user}"
    fix = f"kubectl create rolebinding multistep-user --clusterrole=edit {who} -n {seen.namespace}"
    text = f"{user} may not {missing[0].what} in {seen.namespace}: {', '.join(map(str, missing))}"
    yield Finding("your rights", "fault", text, fix)


def _nodes(seen: Observation) -> Iterator[Finding]:
    if seen.nodes is None:
        yield unread(seen, "nodes", "nodes")
        return
    able = [each for each in seen.nodes if _holds(each, "Ready") and not (each.get("spec") or {}).get("unschedulable")]
    pressed = [
        f"{each['metadata']['name']}: {kind}"
        for each in able
        for kind in ("DiskPressure", "MemoryPressure", "PIDPressure")
        if _holds(each, kind)
    ]
    if not able:
        text = f"none of {len(seen.nodes)} nodes is ready and takes pods"
        yield Finding("nodes", "fault", text, "kubectl describe nodes shows why; kubectl uncordon NODE if one is cordoned")
    elif pressed:
        yield Finding(
            "nodes",
            "warning",
            f"nodes are short of disk, memory or process IDs ({', '.join(pressed)})",
            "free it: such nodes evict pods",
        )
    else:
        yield Finding("nodes", "ok", f"{len(able)} of {len(seen.nodes)} nodes take pods")


def _holds(found: Object, type_: str) -> bool:
    return any(each["type"] == type_ and each["status"] == "True" for each in (found.get("status") or {}).get("conditions") or ())


def _storage_class(seen: Observation) -> Iterator[Finding]:
    if seen.storage_classes is None:
        yield unread(seen, "storage_classes", "storage class")
        return
    key = "storageclass.kubernetes.io/is-default-class"
    if any((each["metadata"].get("annotations") or {}).get(key) == "true" for each in seen.storage_classes):
        yield Finding("storage class", "ok", "a default StorageClass exists")
    else:
        text = "no StorageClass is the default one: volumes that name none stay Pending"
        yield Finding(
            "storage class",
            "warning",
            text,
            f"kubectl annotate storageclass NAME {key}=true, or set results.persistence.storageClass",
        )


def _quota(seen: Observation) -> Iterator[Finding]:
    if seen.quotas is None:
        yield unread(seen, "quotas", "quota")
        return
    full, unreadable = [], []
    for each in seen.quotas:
        quota, status = each["metadata"]["name"], each.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for name in (name for name in hard if name in used):
            amount, limit = quantity(used[name]), quantity(hard[name])
            if amount is None or limit is None:
                part, value = ("used", used[name]) if amount is None else ("hard", hard[name])
                unreadable.append(f"quota {quota}: status.{part} of {name}, {value!r}, is not a quantity")
            elif amount >= limit:
                full.append(f"{quota}: {used[name]} of {hard[name]} {name}")
    if unreadable:
        yield Finding("quota", "unknown", f"cannot be checked: {'; '.join(unreadable)}")
    if full:
        text = f"quotas of namespace {seen.namespace} are used up ({'; '.join(full)}): pods of new trials are rejected"
        yield Finding(
            "quota",
            "fault",
            text,
            f"kubectl edit resourcequota -n {seen.namespace}, delete what is not needed, or lower parallelism",
        )
    elif not unreadable:
        yield Finding("quota", "ok", f"no quota of namespace {seen.namespace} is used up")


def _pod_security(seen: Observation) -> Iterator[Finding]:
    if seen.namespace_object is None:
        return
    level = (seen.namespace_object["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", "privileged")
    if level == "restricted":
        text = f"namespace {seen.namespace} enforces the Pod Security Standard restricted: it rejects pods that run as root"
        fix = f"kubectl label namespace {seen.namespace} pod-security.kubernetes.io/enforce=baseline --overwrite"
        yield Finding("pod security", "fault", text, fix)
    else:
        yield Finding("pod security", "ok", f"namespace {seen.namespace} admits pods up to the level {level}")


def waiting_reasons(pod: Object) -> Iterator[tuple[str, str, str]]:
    """Yield image, reason and message of each waiting container of the pod. Skip containers that wait only because the pod
    starts."""
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            yield each.get("image", ""), waiting["reason"], waiting.get("message", "")


def _images(seen: Observation) -> Iterator[Finding]:
    if seen.trial_pods is None:
        yield unread(seen, "trial_pods", "image pull")
        return
    failing = {image: reason for pod in seen.trial_pods for image, reason, _ in waiting_reasons(pod) if reason in _IMAGE_REASONS}
    if failing:
        some = "; ".join(f"{image} ({reason})" for image, reason in sorted(failing.items())[:_SOME])
        fix = "correct its name, push it, or set imagePullSecrets in spec.environment.podTemplate"
        fix += "; `multistep build TASK` loads a local image"
        yield Finding("image pull", "fault", f"images of trials in {seen.namespace} cannot be pulled: {some}", fix)
    else:
        yield Finding("image pull", "ok", f"no trial in {seen.namespace} waits for an image that cannot be pulled")


def _unschedulable(seen: Observation) -> Iterator[Finding]:
    if seen.trial_pods is None:
        yield unread(seen, "trial_pods", "scheduling")
        return
    waiting = [(pod["metadata"]["name"], each.get("message", "")) for pod in seen.trial_pods for each in _unscheduled(pod)]
    if waiting:
        pod, why = waiting[0]
        text = f"{plural(len(waiting), 'pod fits', 'pods fit')} no node of the cluster, such as {pod}: {why}"
        fix = "add a node, or lower what the trial needs (--override-cpus, --override-memory-mb, nodeSelector of its podTemplate)"
        yield Finding("scheduling", "fault", text, f"{fix}; it waits without limit, unless spec.activeDeadlineSeconds is set")
    else:
        yield Finding("scheduling", "ok", f"no trial in {seen.namespace} waits for a node that it fits")


def _unscheduled(pod: Object) -> Iterator[Object]:
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False" and each.get("reason") == "Unschedulable":
            yield each


def _unseen_trials(seen: Observation) -> Iterator[Finding]:
    if seen.trials is None:
        yield unread(seen, "trials", "trials")
        return
    unseen = [
        each["metadata"]["name"] for each in seen.trials if _is_unseen(each) and _age(each["metadata"], seen.now) > _UNSEEN_SECONDS
    ]
    if unseen:
        text = f"no operator has seen {plural(len(unseen), 'trial')} of {seen.namespace}, such as {unseen[0]}"
        fix = "check that an operator is ready, watches this namespace, and runs the trials' shard (label multistep.dev/shard)"
        yield Finding("trials", "fault", text, fix)
    else:
        yield Finding("trials", "ok", f"an operator has seen all trials of {seen.namespace}")


def _is_unseen(trial: Object) -> bool:
    return ((trial.get("status") or {}).get("observedGeneration") or -1) < 0


def _age(metadata: Mapping[str, Any], now: datetime) -> float:
    created = metadata.get("creationTimestamp")
    return (now - datetime.fromisoformat(created)).total_seconds() if created else 0.0
