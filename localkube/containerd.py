"""Manage the images of the cluster's containerd."""

import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from localkube import archive
from localkube.commands import capture, pipe, succeeds
from localkube.config import Config, Node
from localkube.settings_files import PAUSE_IMAGE

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Containerd:
    """A client of one node's containerd socket. It works from the host, outside the node's namespaces."""

    socket: Path
    program: Path
    """Path of ctr, containerd's command line client."""

    @classmethod
    def of(cls, config: Config, node: Node) -> Self:
        return cls(config.paths.containerd_socket(node), config.paths.bin / "ctr")

    def answers(self) -> bool:
        return self.socket.exists() and succeeds([*self._ctr(), "version"])

    def digest(self, image: str) -> str | None:
        """Return the digest of the image's manifest, or None if the image does not exist."""
        lines = self._run("images", "list", f'name=="{image}"').splitlines()
        return lines[1].split()[2] if len(lines) > 1 else None

    def has(self, image: str, image_id: str) -> bool:
        """Return whether the name refers to the image with this id. The CRI plugin of containerd also stores each image under its
        id."""
        digest = self.digest(image)
        return digest is not None and digest == self.digest(f"sha256:{image_id}")

    def load(self, archive_file: Path) -> None:
        """Import the images of an archive."""
        self._run("images", "import", str(archive_file))

    def load_from(self, source: Sequence[str]) -> None:
        """Import the images of the archive that a program writes to its stdout."""
        pipe(source, [*self._ctr(), "images", "import", "-"])

    def names(self) -> list[str]:
        """Return the names of all images, without the digests (`sha256:...`, `NAME@...`) that the CRI plugin adds as names."""
        listed = self._run("images", "list", "--quiet").split()
        return [name for name in listed if not name.startswith("sha256:") and "@" not in name]

    def save(self, names: Sequence[str], archive_file: Path) -> None:
        """Export the images to one archive, which contains shared layers only once."""
        self._run("images", "export", str(archive_file), *names)

    def tag(self, image: str, other: str) -> None:
        self._run("images", "tag", "--force", image, other)

    def _ctr(self) -> list[str]:
        return [str(self.program), "--address", str(self.socket), "--namespace", "k8s.io"]

    def _run(self, *arguments: str) -> str:
        return capture([*self._ctr(), *arguments])


def architecture() -> str:
    """Return this machine's architecture as named in image manifests."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def ensure_pause_image(config: Config, daemon: Containerd) -> None:
    """Import the pause image, which each pod needs, unless it exists. The image contains only a program that waits for a signal."""
    if daemon.digest(PAUSE_IMAGE):
        return
    binary = Path(os.path.realpath(config.paths.bin / "pause"))
    with tempfile.TemporaryDirectory(dir=config.paths.run_dir) as directory:
        layer, image = Path(directory) / "layer.tar", Path(directory) / "image.tar"
        archive.write_binary_layer(layer, binary, "/pause")
        archive.write_image(image, PAUSE_IMAGE, layer, archive.ImageConfig(entrypoint=("/pause",)), architecture())
        daemon.load(image)
