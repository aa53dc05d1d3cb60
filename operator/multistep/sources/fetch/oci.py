"""Fetches a task from a registry. It is an artifact that `multistep package --to` pushed, or an ordinary image that contains the
task."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from multistep.api.trial.values import NOT_FOUND, TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import FetchOrder, FetchResult
from multistep.sources.fetch.http_client import HttpClient, body_chunks, check_allowed_host, make_pool, matches_host
from multistep.sources.fetch.image_layers import CheckedStream, ImageLayers
from multistep.sources.fetch.output_file import OutputFile, write_tar
from multistep.sources.fetch.registry_client import ImageReference, RegistryClient, registry_login
from multistep.sources.task.bundle import BundleLimits

ARTIFACT_TYPE: Final = "application/vnd.multistep.task.v1"
BUNDLE_TYPE: Final = "application/vnd.multistep.task.v1.tar+gzip"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_LAYERS = 128
_LAYER_BYTES = 4 << 30  # maximum size of a compressed layer. Only the task's files are kept
DOCKER_CONFIG = ".dockerconfigjson"


def fetch(order: FetchOrder, incoming: Path) -> FetchResult:
    """Fetch the task in an image or artifact. Raises SourceError."""
    request, rules = order.request, order.rules
    reference = ImageReference.parse(request.location)
    check_allowed_host(reference.host, rules.allowed_hosts)
    credentials = registry_login(request.credentials[DOCKER_CONFIG], reference) if DOCKER_CONFIG in request.credentials else None
    insecure = matches_host(reference.host, rules.insecure_hosts)
    registry = RegistryClient(HttpClient(make_pool()), reference, credentials, plain_http=insecure)
    revision, manifest = _manifest(registry, reference, request.revision or reference.manifest)
    what = str(replace(reference, tag="", digest=revision))
    kept = order.cached(revision)
    if kept is not None:
        return kept
    with OutputFile(incoming) as output:
        if _is_artifact(manifest) and request.many:
            raise SourceError(f"{what} has one packed task, not a directory of tasks")
        if _is_artifact(manifest):
            _fetch_artifact(registry, manifest, request.path, output, rules.limits, what)
        else:
            _fetch_image(registry, manifest, request.path.strip("/"), output, rules.limits, what)
    return FetchResult(revision, output.digest, output.path.name)


def _manifest(registry: RegistryClient, reference: ImageReference, wanted: str) -> tuple[str, Mapping[str, Any]]:
    """Return digest and content of an image's manifest. In an index, this is the manifest for this architecture or, without one,
    the first."""
    digest, content = registry.manifest(wanted)
    if isinstance(content.get("manifests"), list):
        digest, content = registry.manifest(_chosen(content["manifests"], reference))
    if not isinstance(content.get("layers"), list):
        raise SourceError(f"{reference} is not an image or artifact in the current format of OCI or Docker", reason=NOT_FOUND)
    return digest, content


def _chosen(manifests: Sequence[Any], reference: ImageReference) -> str:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    places = [(manifest, manifest.get("platform") or {}) for manifest in manifests if isinstance(manifest, dict)]
    fitting = [manifest for manifest, place in places if (place.get("os"), place.get("architecture")) == ("linux", machine)]
    for manifest in (*fitting, *(manifest for manifest, _ in places)):
        if str(manifest.get("digest", "")).startswith("sha256:"):
            return str(manifest["digest"])
    raise SourceError(f"{reference} is an index without images", reason=NOT_FOUND)


def _is_artifact(manifest: Mapping[str, Any]) -> bool:
    return any(_layer_type(layer) == BUNDLE_TYPE for layer in manifest["layers"])


def _layer_type(layer: object) -> object:
    return layer.get("mediaType") if isinstance(layer, dict) else None


def _digest(layer: object, what: str) -> str:
    digest = str(layer.get("digest", "")) if isinstance(layer, dict) else ""
    if not digest.startswith("sha256:"):
        raise SourceError(f"{what}: a layer has no sha256 digest")
    return digest


def _fetch_artifact(
    registry: RegistryClient, manifest: Mapping[str, Any], path: str, output: OutputFile, limits: BundleLimits, what: str
) -> None:
    if path.strip("/"):
        raise SourceError(f"spec.task.oci.path = {path!r} is for ordinary images; {what} holds a packed task")
    if len(manifest["layers"]) != 1:
        raise SourceError(f"{what} has {len(manifest['layers'])} layers; an artifact with a task has one")
    digest = _digest(manifest["layers"][0], what)
    stream = CheckedStream(
        body_chunks(registry.blob(digest), f"the task in {what}", limits.compressed), digest, f"the layer of {what}"
    )
    while data := stream.read(1 << 18):
        output.write(data)
    stream.finish()


def _fetch_image(
    registry: RegistryClient, manifest: Mapping[str, Any], root: str, output: OutputFile, limits: BundleLimits, what: str
) -> None:
    if len(manifest["layers"]) > _MAX_LAYERS:
        raise SourceError(f"{what} has {len(manifest['layers'])} layers, more than {_MAX_LAYERS}", reason=TOO_LARGE)
    with tempfile.TemporaryFile(dir=output.path.parent) as spool:
        layers = ImageLayers(root, limits, spool, what)
        for layer in manifest["layers"]:
            digest = _digest(layer, what)
            name = f"layer {digest} of {what}"
            stream = CheckedStream(body_chunks(registry.blob(digest), name, _LAYER_BYTES), digest, name)
            layers.add(stream)
            stream.finish()
        write_tar(output, layers.entries())
