"""Write container images as docker-archive files, without a container engine."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class ImageConfig:
    """The entrypoint, command and environment variables of an image's containers."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def write_image(output: Path, name: str, layer: Path, config: ImageConfig, architecture: str) -> None:
    """Write an image with one layer to `output`, atomically. `layer` is an uncompressed tar archive of the root filesystem."""
    image = json.dumps(_image_document(_sha256(layer), config, architecture)).encode()
    image_file = hashlib.sha256(image).hexdigest() + ".json"
    manifest = json.dumps([{"Config": image_file, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    unfinished = output.with_name(output.name + ".new")
    with tarfile.open(unfinished, "w") as archive:
        _add(archive, image_file, image)
        archive.add(layer, "layer.tar")
        _add(archive, "manifest.json", manifest)
    unfinished.rename(output)


def write_binary_layer(output: Path, binary: Path, path_in_image: str) -> None:
    """Write a layer that contains one static program."""
    with tarfile.open(output, "w") as layer:
        entry = layer.gettarinfo(str(binary), path_in_image.lstrip("/"))
        entry.mode, entry.uid, entry.gid, entry.mtime = 0o755, 0, 0, 0
        entry.uname = entry.gname = "root"
        with binary.open("rb") as content:
            layer.addfile(entry, content)


def _image_document(layer_sha256: str, config: ImageConfig, architecture: str) -> dict[str, object]:
    return {
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": list(config.entrypoint) or None,
            "Cmd": list(config.command) or None,
            "Env": [f"{name}={value}" for name, value in config.environment.items()],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_sha256}"]},
        "history": [{"created_by": "localkube"}],  # image builders reject a base image with fewer history entries than layers
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
