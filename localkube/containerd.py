"""The cluster's containerd, as seen by the images it holds."""

import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube import archive
from localkube.commands import capture, succeeds
from localkube.config import Config
from localkube.settings_files import PAUSE_IMAGE

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Containerd:
    """Talks to the daemon by its socket; works from the host, outside of the node's namespaces."""

    socket: Path

    def answers(self) -> bool:
        return self.socket.exists() and succeeds([*self._ctr(), "version"])

    def digest(self, image: str) -> str | None:
        """The digest of the manifest that the name stands for; None if there is no such image."""
        lines = self._run("images", "list", f'name=="{image}"').splitlines()
        return lines[1].split()[2] if len(lines) > 1 else None

    def has(self, image: str, image_id: str) -> bool:
        """Whether the name stands for the image with this id. The CRI plugin keeps a second name, the id, for each."""
        digest = self.digest(image)
        return digest is not None and digest == self.digest(f"sha256:{image_id}")

    def load(self, archive_file: Path) -> None:
        """Take in the images of an archive."""
        self._run("images", "import", str(archive_file))

    def names(self) -> list[str]:
        """Of all its images; the CRI plugin's second names, by digest, are left out."""
        listed = self._run("images", "list", "--quiet").split()
        return [name for name in listed if not name.startswith("sha256:") and "@" not in name]

    def save(self, names: Sequence[str], archive_file: Path) -> None:
        """Write images to an archive; what they share is in it once."""
        self._run("images", "export", str(archive_file), *names)

    def tag(self, image: str, other: str) -> None:
        self._run("images", "tag", "--force", image, other)

    def _ctr(self) -> list[str]:
        return ["ctr", "--address", str(self.socket), "--namespace", "k8s.io"]

    def _run(self, *arguments: str) -> str:
        return capture([*self._ctr(), *arguments])


def architecture() -> str:
    """This machine's architecture in the words of images."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def ensure_pause_image(config: Config, daemon: Containerd) -> None:
    """Each pod has a container of it; it holds nothing but a program that waits to be told to end."""
    if daemon.digest(PAUSE_IMAGE):
        return
    binary = Path(os.path.realpath(config.paths.bin / "pause"))
    with tempfile.TemporaryDirectory(dir=config.paths.run_dir) as directory:
        layer, image = Path(directory) / "layer.tar", Path(directory) / "image.tar"
        archive.write_binary_layer(layer, binary, "/pause")
        archive.write_image(image, PAUSE_IMAGE, layer, archive.ImageConfig(entrypoint=("/pause",)), architecture())
        daemon.load(image)
