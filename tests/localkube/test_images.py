"""Test the names of images, image archives, and arguments of builds."""

import hashlib
import json
import tarfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from localkube import images
from localkube.archive import ImageConfig, write_binary_layer, write_image
from localkube.images import _trust_of_machine, names_in_cluster


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("app", ["docker.io/library/app:latest", "localhost/app:latest"]),
        ("app:dev", ["docker.io/library/app:dev", "localhost/app:dev"]),
        ("team/app:dev", ["docker.io/team/app:dev", "localhost/team/app:dev"]),
        ("localhost/app:dev", ["localhost/app:dev"]),
        ("localhost/app", ["localhost/app:latest"]),
        ("docker.io/library/x:y", ["docker.io/library/x:y"]),
        ("registry.example:5000/x", ["registry.example:5000/x:latest"]),
        ("host:5000/x:y", ["host:5000/x:y"]),
    ],
)
def test_pods_find_an_image_by_the_name_they_would_use(name: str, names: list[str]) -> None:
    assert names_in_cluster(name) == names


def test_two_loads_of_an_image_at_once_import_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[Sequence[str]] = []
    both_loading = threading.Barrier(2)
    paths = SimpleNamespace(images_lock=tmp_path / "lock")
    config = SimpleNamespace(nodes=["node"], paths=paths)

    class Daemon:
        def answers(self) -> bool:
            both_loading.wait(timeout=60)
            return True

        def has(self, _name: str, _image_id: str) -> bool:
            return bool(imported)

    def slow_import(_daemon: object, _name: str, names: Sequence[str]) -> None:
        time.sleep(0.05)  # without the lock, the other thread would find no image during this time, and import it, too
        imported.append(names)

    monkeypatch.setattr(images, "Containerd", SimpleNamespace(of=lambda _config, _node: Daemon()))
    monkeypatch.setattr(images, "_image_id", lambda _name: "sha256:1")
    monkeypatch.setattr(images, "_import", slow_import)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: images.load(config, "app"), range(2)))  # type: ignore[arg-type]
    assert len(imported) == 1


def test_an_archive_describes_its_layer(tmp_path: Path) -> None:
    program, layer, image = tmp_path / "program", tmp_path / "layer.tar", tmp_path / "image.tar"
    program.write_bytes(b"binary")
    write_binary_layer(layer, program, "/bin/program")
    write_image(image, "localhost/x:1", layer, ImageConfig(entrypoint=("/bin/program",)), "amd64")
    with tarfile.open(image) as archive:
        [manifest] = json.loads(_read(archive, "manifest.json"))
        document = json.loads(_read(archive, manifest["Config"]))
        content = _read(archive, manifest["Layers"][0])
    assert manifest["RepoTags"] == ["localhost/x:1"]
    assert document["config"]["Entrypoint"] == ["/bin/program"]
    assert document["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    assert len(document["history"]) == len(document["rootfs"]["diff_ids"])


def test_a_program_in_a_layer_can_be_run_by_anyone_and_the_layer_is_always_the_same(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"binary")
    program.chmod(0o600)
    write_binary_layer(tmp_path / "a.tar", program, "/program")
    program.touch()
    write_binary_layer(tmp_path / "b.tar", program, "/program")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as layer:
        assert layer.getmember("program").mode == 0o755


def test_builds_trust_what_the_machine_trusts_by_mounts_only(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.touch()
    options = _trust_of_machine(tmp_path / "build", {"SSL_CERT_FILE": str(bundle)})
    assert options[::2] == ["--volume"] * 3
    assert options[1] == f"{bundle}:/run/build-ca.crt:ro"
    assert "/run/build-ca.crt" in (tmp_path / "build/pip.conf").read_text()
    assert (tmp_path / "build/npmrc").read_text() == "cafile=/run/build-ca.crt\n"
    assert _trust_of_machine(tmp_path / "build", {}, bundle) == options


def test_builds_on_a_machine_without_a_bundle_get_no_setting(tmp_path: Path) -> None:
    assert _trust_of_machine(tmp_path / "build", {}, tmp_path / "none.crt") == []


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()
