"""Builds the manifests of a trial and the objects that it needs. No IO."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from multistep.api.common.base_model import API_VERSION, GROUP
from multistep.api.trial.trial import KIND
from multistep.errors import UsageError
from multistep.pods.kueue import QUEUE
from multistep.sources.task.stored_bundles import split_bundle

BUNDLE_LABEL: Final = f"{GROUP}/bundle"
Manifest = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_LENGTH = 63
_AGENT_LENGTH = 30  # maximum length of the agent's name in a trial's name; a class name may be longer
_RANDOM = "bcdfghjklmnpqrstvwxz2456789"  # no vowels, so that names contain no words (as in names that Kubernetes generates)
_RANDOM_LENGTH = 5
_CONFIG_MAP_STEM_LENGTH = 50


@dataclass(frozen=True)
class TrialImage:
    """The image of a trial."""

    reference: str
    runner: bool = False
    """Whether the image contains the runner."""

    @property
    def local(self) -> bool:
        """Report whether the image exists only on the nodes: its name starts with "localhost/" instead of a registry."""
        return self.reference.startswith("localhost/")


@dataclass(frozen=True)
class Submission:
    """A trial or a sweep, and the objects that it needs."""

    main: Manifest
    """The MultiStepTrial or TrialSweep."""
    owned: Sequence[Manifest] = ()
    """Objects to create after ``main``, which owns them: ConfigMaps and Secrets."""
    others: Sequence[Manifest] = ()
    """Objects to create before ``main``, which does not own them."""

    def placed(self, namespace: str) -> Submission:
        """Return the same objects in a namespace, apart from those that have one."""
        owned, others = ([placed(each, namespace) for each in objects] for objects in (self.owned, self.others))
        return Submission(placed(self.main, namespace), owned, others)


def new_name(stem: str, agent: str = "") -> str:
    """Return ``STEM-AGENT-RANDOM``, a DNS label that is unlikely to be in use."""
    tail = f"{agent and f'-{dns_label(agent, _AGENT_LENGTH)}'}-{''.join(secrets.choice(_RANDOM) for _ in range(_RANDOM_LENGTH))}"
    return dns_label(stem, _LABEL_LENGTH - len(tail)) + tail


def checked_name(name: str, argument: str = "--name") -> str:
    """Return the name, which the user gave as ``argument``. Raises UsageError if the name is not a DNS label."""
    if len(name) > _LABEL_LENGTH or not _LABEL.fullmatch(name):
        hint = dns_label(name, _LABEL_LENGTH)
        raise UsageError(f"{argument} {name!r} must be at most 63 of a-z, 0-9 and '-', such as {hint!r}")
    return name


def dns_label(text: str, length: int = _LABEL_LENGTH) -> str:
    """Return the text as a DNS label of at most ``length`` characters; "task" if no character is valid."""
    clean = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return clean[:length].rstrip("-") or "task"


def bundle_config_maps(packed: bytes, name: str, digest: str) -> list[Manifest]:
    """Return the immutable ConfigMaps of a bundle, in order, labelled with the bundle's digest."""
    return [_labelled(part, digest) for part in split_bundle(packed, dns_label(name, _CONFIG_MAP_STEM_LENGTH))]


def bundle_source(config_maps: Sequence[Manifest], digest: str) -> Manifest:
    """Return the fields of spec.task that refer to a bundle in ConfigMaps."""
    return {"bundle": {"configMaps": [each["metadata"]["name"] for each in config_maps], "digest": digest}}


def secret_of(name: str, values: Mapping[str, str]) -> Manifest:
    """Return a Secret with these values."""
    data = {name: base64.b64encode(value.encode(errors="surrogateescape")).decode() for name, value in values.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "data": data}


def variable_from_secret(name: str, secret: str, key: str) -> Manifest:
    """Return an entry of spec.variables or of an ``env`` list that sets the variable ``name`` from a key of a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def trial_manifest(name: str, spec: Manifest, digest: str, *, queue: str | None = None) -> Manifest:
    """Return the MultiStepTrial. digest: the digest of the task's bundle, for a label. queue: the name of a Kueue LocalQueue."""
    metadata = {"name": name, **optional(labels=queue_labels(queue))}
    return _labelled({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}, digest)


def owned_by(manifest: Manifest, owner: Mapping[str, Any]) -> Manifest:
    """Return the manifest with an ownerReference, so that the object is deleted with its owner."""
    metadata = owner["metadata"]
    reference = {"apiVersion": API_VERSION, "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def to_yaml(manifests: Iterable[Manifest]) -> str:
    """Return the manifests as one YAML stream for kubectl; each document starts with ---. All characters are printable."""
    documents = list(manifests)
    text = _yaml(documents, plain=False)
    return text if text.replace("\n", "").isprintable() else _yaml(documents, plain=True)


def _yaml(manifests: Sequence[Manifest], *, plain: bool) -> str:
    """Return the manifests as YAML. plain: with escapes for all characters that are not ASCII."""
    text: str = yaml.safe_dump_all(
        manifests, sort_keys=False, explicit_start=True, allow_unicode=not plain, width=2**31, default_flow_style=False
    )
    return text


def environment(image: TrialImage | None, resources: Manifest | None = None) -> Manifest | None:
    """Return spec.environment for an image and resources; None without both."""
    # A local image has the pull policy Never: no registry has the image, and a pull from "localhost" fails only after minutes.
    fields = optional(
        image=image and image.reference,
        imagePullPolicy="Never" if image and image.local else None,
        runnerInImage=(image and image.runner) or None,
        resources=resources or None,
    )
    return fields or None


def queue_labels(queue: str | None) -> Mapping[str, str] | None:
    """Return the label that assigns a trial to a Kueue LocalQueue; None without a queue."""
    return {QUEUE: queue} if queue else None


def optional(**fields: object) -> Manifest:
    """Return the fields that are not None."""
    return {key: value for key, value in fields.items() if value is not None}


def _labelled(manifest: Manifest, digest: str) -> Manifest:
    metadata = manifest["metadata"]
    labels = {**metadata.get("labels", {}), BUNDLE_LABEL: digest.removeprefix("sha256:")[:12]}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def placed(manifest: Manifest, namespace: str) -> Manifest:
    """Return the manifest with the namespace, unless it has one."""
    if manifest["metadata"].get("namespace"):
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
