"""Pushes a bundle to a registry or bucket, for `multistep package --to`. It is idempotent: existing content is not sent again."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from multistep.client.submit.manifests import Manifest, dns_label
from multistep.client.task.task_directory import TaskDirectory
from multistep.errors import SourceError, Unavailable, UsageError
from multistep.sources.fetch.http_client import HttpClient, make_pool
from multistep.sources.fetch.oci import ARTIFACT_TYPE, BUNDLE_TYPE
from multistep.sources.fetch.registry_client import OCI_MANIFEST, ImageReference, RegistryClient, registry_login
from multistep.sources.task.bundle import digest_of

_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True)
class Published:
    """A pushed bundle."""

    source: Manifest
    """The fields of spec.task that refer to the bundle."""
    place: str
    """URL of the bundle."""
    sent: bool
    """Whether the bundle was sent. False: it already existed there."""


def publish(task: TaskDirectory, to: str, *, plain_http: bool, secret: str | None) -> Published:
    """Push the bundle. secret: name of the Secret that spec.task references. Raises UsageError if ``to`` is invalid, SourceError if
    the registry rejects the push, Unavailable if the registry or bucket cannot be reached."""
    kind, _, place = to.partition("://")
    try:
        if kind == "oci":
            return _to_registry(task, place, plain_http=plain_http, secret=secret)
        if kind == "s3":
            return _to_bucket(task, to, secret=secret)
    except SourceError as error:
        if error.transient:
            raise Unavailable(str(error)) from error
        raise
    raise UsageError(f"--to {to}: must be oci://HOST/REPOSITORY:TAG or s3://BUCKET/PREFIX")


def artifact(layer: str, size: int, name: str) -> bytes:
    """Return the OCI manifest of an artifact whose only layer is the bundle. Equal inputs give equal bytes."""
    config = {"mediaType": _EMPTY_TYPE, "digest": digest_of(_EMPTY), "size": len(_EMPTY)}
    title = {"org.opencontainers.image.title": f"{name}.tar.gz"}
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": ARTIFACT_TYPE,
        "config": config,
        "layers": [{"mediaType": BUNDLE_TYPE, "digest": layer, "size": size, "annotations": title}],
    }
    return json.dumps(manifest, separators=(",", ":")).encode()


def _to_registry(task: TaskDirectory, place: str, *, plain_http: bool, secret: str | None) -> Published:
    reference = ImageReference.parse(place)
    if reference.digest:
        raise UsageError(f"--to oci://{place}: must have a tag, not a digest: packing determines the digest")
    registry = RegistryClient(HttpClient(make_pool()), reference, docker_login(reference), plain_http=plain_http)
    registry.push_blob(_EMPTY)
    layer = registry.push_blob(task.packed)
    tag = reference.tag or task.digest.removeprefix("sha256:")[:12]
    digest, sent = registry.push_manifest(tag, artifact(layer, len(task.packed), dns_label(task.name)))
    image = f"{reference.name}@{digest}"
    return Published({"oci": {"image": image, **_reference_to(secret)}}, image, sent)


def docker_login(reference: ImageReference) -> tuple[str, str] | None:
    """Return user name and password for a registry from the configuration of `docker login`; None if it has no entry.

    Raises UsageError if the configuration cannot be read.
    """
    file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        text = file.read_text()
        config = json.loads(text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    helper = (config.get("credHelpers") or {}).get(reference.registry) or config.get("credsStore")
    return _ask_helper(helper, reference) if helper else registry_login(text, reference)


def _ask_helper(name: str, reference: ImageReference) -> tuple[str, str] | None:
    server = "https://index.docker.io/v1/" if reference.registry == "docker.io" else reference.registry
    command = [f"docker-credential-{name}", "get"]
    try:
        done = subprocess.run(command, input=server, capture_output=True, text=True, timeout=60, check=False)
        found: Any = json.loads(done.stdout) if done.returncode == 0 else {}
        return (found["Username"], found["Secret"]) if found.get("Username") else None
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]}, which the docker configuration names, does not answer: {type(error).__name__}") from error


def _to_bucket(task: TaskDirectory, to: str, *, secret: str | None) -> Published:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    parts = urlsplit(to)
    name = f"{dns_label(task.name)}-{task.digest.removeprefix('sha256:')[:12]}.tar.gz"
    key = "/".join(each for each in (parts.path.strip("/"), name) if each)
    place = f"s3://{parts.netloc}/{key}"
    try:
        store = S3Store(parts.netloc)  # reads credentials from the environment variables AWS_...
        sent = not _is_there(store, key, len(task.packed))
        if sent:
            obstore.put(store, key, task.packed)
    except (BaseError, ValueError, OSError) as error:
        text = f"{place} cannot be written: {str(error).splitlines()[0]}"
        raise Unavailable(f"{text}; AWS_ACCESS_KEY_ID and so on are taken from the environment") from error
    return Published({"url": {"url": place, "digest": task.digest, **_reference_to(secret)}}, place, sent)


def _is_there(store: Any, key: str, size: int) -> bool:
    """Report whether the object exists with this size. The content needs no comparison, because the name contains its digest."""
    import obstore

    try:
        return int(obstore.head(store, key)["size"]) == size
    except FileNotFoundError:
        return False


def _reference_to(secret: str | None) -> Manifest:
    return {"secretRef": {"name": secret}} if secret else {}
