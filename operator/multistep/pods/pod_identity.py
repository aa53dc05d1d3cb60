"""Computes the names and labels of a trial's pods, and reads their owners. All functions are pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from multistep.api.common import labels
from multistep.api.common.base_model import API_VERSION, GROUP
from multistep.api.task.layout import MAIN
from multistep.api.trial.trial import KIND, MultiStepTrial

CONTAINER = MAIN
LABEL_TRIAL = labels.TRIAL
LABEL_TASK = labels.TASK
LABEL_AGENT = labels.AGENT
LABEL_ATTEMPT = labels.ATTEMPT
LABEL_ROLE = f"{GROUP}/role"  # "agent", "verifier", or "records" for a regrade's own pod, in which neither of them runs
LABEL_POD = f"{GROUP}/pod"  # the pod's name, by which its NetworkPolicy selects it
LABEL_NETWORK = f"{GROUP}/network"  # "Limited" if the pod's own NetworkPolicy limits egress, so that the chart's skips the pod
ROOT = "-root"


def verifier_pod_name(trial_name: str, attempt: int, step: int, *, as_root: bool) -> str:
    """Return the name of the pod of a step's separate verifier. ``step`` is the index of the step."""
    suffix = f"-{attempt}-v{step}{ROOT if as_root else ''}"
    return shorten_name(trial_name, 63 - len(suffix)).rstrip("-.") + suffix


def verifier_pod_names(trial: MultiStepTrial, step: int) -> Sequence[str]:
    """Return both possible names of the verifier's pod in the current attempt.

    The first is for a pod that runs as the image's user, the second for one that runs as root.
    """
    return [verifier_pod_name(trial.metadata.name, trial.status.attempt or 1, step, as_root=as_root) for as_root in (False, True)]


def pod_name(trial_name: str, attempt: int, *, as_root: bool) -> str:
    """Return the name of an attempt's pod. It has at most 63 characters, so it is also a valid label value."""
    suffix = f"-{attempt}{ROOT if as_root else ''}"
    return shorten_name(trial_name, 63 - len(suffix)).rstrip("-.") + suffix


def shorten_name(text: str, length: int) -> str:
    """Return the text, cut to at most ``length`` characters. A hash of the whole text replaces the part that is cut off."""
    if len(text) <= length:
        return text
    return f"{text[: length - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def label_value(text: str) -> str:
    """Return the text as a label value. Hyphens replace invalid characters, and a hash keeps different texts distinct."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    if clean != text:
        clean = f"{clean[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}".lstrip("-")
    return shorten_name(clean, 63).strip("-._")


def owned_by(trial: MultiStepTrial, obj: Mapping[str, Any]) -> bool:
    """Return whether the object's controller is this trial, identified by its UID."""
    return owner_uid(obj["metadata"]) == trial.metadata.uid


def owner_reference(trial: MultiStepTrial) -> dict[str, Any]:
    """Return the owner reference that makes Kubernetes delete an object after its trial was deleted."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": trial.metadata.name,
        "uid": trial.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def created_by_operator(pod: Mapping[str, Any]) -> bool:
    """Return whether the operator created the pod, according to its labels, which it has even without an owner."""
    metadata = pod["metadata"]
    pod_labels = metadata.get("labels") or {}
    return pod_labels.get(LABEL_POD) == metadata["name"] and LABEL_TRIAL in pod_labels and LABEL_ROLE in pod_labels


def trial_of(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return namespace and name of the trial that owns a pod, None without such an owner."""
    for reference in pod["metadata"].get("ownerReferences") or []:
        if reference.get("kind") == KIND and str(reference.get("apiVersion", "")).startswith(f"{GROUP}/"):
            return pod["metadata"]["namespace"], reference["name"]
    return None


def owner_uid(metadata: Mapping[str, Any]) -> str:
    """Return the UID of an object's controller, "" without one."""
    return next((owner["uid"] for owner in metadata.get("ownerReferences") or [] if owner.get("controller")), "")


def container_image(image: str, policy: str | None) -> dict[str, str]:
    """Return a container's fields with its image and pull policy. "" or None means Kubernetes' default policy."""
    return {"image": image, **({"imagePullPolicy": policy} if policy else {})}
