"""Build test images from a few files and push them with the operator's own client."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence

from multistep.sources.fetch.http_client import HttpClient, make_pool
from multistep.sources.fetch.registry_client import OCI_MANIFEST, ImageReference, RegistryClient
from tests.support import servers


def image_layer(files: Mapping[str, str]) -> bytes:
    """Return an image layer with these files, as a gzipped tar file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(text.encode()), 0o755 if path.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(out.getvalue(), mtime=0)


async def push_image(server: servers.Registry, repository: str, tag: str, layers: Sequence[bytes]) -> str:
    """Push a container image of these layers; return the digest of its manifest."""
    return await asyncio.to_thread(_push, server, repository, tag, layers)


def _push(server: servers.Registry, repository: str, tag: str, layers: Sequence[bytes]) -> str:
    reference = ImageReference(server.host, repository, tag)
    login = (server.username, server.password) if server.username else None
    registry = RegistryClient(HttpClient(make_pool()), reference, login, plain_http=True)
    config = b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}'
    descriptors = [
        {"digest": registry.push_blob(each), "size": len(each), "mediaType": f"{_TYPE}layer.v1.tar+gzip"} for each in layers
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": f"{_TYPE}config.v1+json", "digest": registry.push_blob(config), "size": len(config)},
        "layers": descriptors,
    }
    data = json.dumps(manifest).encode()
    registry.push_manifest(tag, data)
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


_TYPE = "application/vnd.oci.image."
