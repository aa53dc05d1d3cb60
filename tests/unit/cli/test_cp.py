"""Test `multistep cp`: the container decides what it sends, so sizes are bounded and nothing but files is written."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multistep.kube.cluster_protocols import ExitStatus

from .conftest import Invoke
from .fakes import CliCluster, status, step, tar_of


class Tar:
    """The exec session of a tar in a container. chunks: its output; code: its exit code."""

    def __init__(self, chunks: Iterator[bytes], code: int = 0) -> None:
        self._chunks = chunks
        self.status = ExitStatus(code, "")
        self.exit_details = ""
        self.closed = False

    async def receive(self) -> bytes:
        return next(self._chunks, b"")

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def copying(cluster: CliCluster) -> CliCluster:
    """Return a cluster with the running trial "t"."""
    cluster.put("MultiStepTrial", "t", spec={}, status=status("Running", step("a", "Agent"), podName="t-1", podUID="uid-t-1"))
    running = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    cluster.put("Pod", "t-1", status=running)
    return cluster


def test_a_file_is_copied(copying: CliCluster, invoke: Invoke, tmp_path: Path) -> None:
    copying.command = Tar(iter([tar_of({"notes.txt": b"hello"})]))
    done = invoke("cp", "t:/app/notes.txt", tmp_path / "out")
    assert (done.exit_code, (tmp_path / "out/notes.txt").read_bytes()) == (0, b"hello")
    assert copying.ran == [["tar", "-c", "-f", "-", "-C", "/app", "--", "notes.txt"]]


def endless() -> Iterator[bytes]:
    while True:
        yield bytes(1 << 20)


def test_a_file_that_never_ends_is_refused_at_the_limit_and_nothing_is_written(
    copying: CliCluster, invoke: Invoke, tmp_path: Path
) -> None:
    tar = copying.command = Tar(endless())
    done = invoke("cp", "t:/proc/kmsg", tmp_path / "out", "--max-mb", "3")
    assert done.exit_code == 2 and "/proc/kmsg of trial t has more than 3 MB, or never ends" in done.stderr
    assert tar.closed and not (tmp_path / "out").exists()


def special(type_: bytes, **fields: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("odd\x1b[2J")
        info.type = type_
        for name, value in fields.items():
            setattr(info, name, value)
        tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize("type_", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_a_device_is_left_out_and_its_name_is_printable(copying: CliCluster, invoke: Invoke, tmp_path: Path, type_: bytes) -> None:
    copying.command = Tar(iter([special(type_, devmajor=1, devminor=5)]))
    done = invoke("cp", "t:/dev/zero", tmp_path / "out")
    assert (done.exit_code, list((tmp_path / "out").iterdir())) == (0, [])
    assert "neither a file nor a directory nor a link" in done.stderr and "\x1b" not in done.stderr


def test_a_compressed_archive_is_not_inflated(copying: CliCluster, invoke: Invoke, tmp_path: Path) -> None:
    import gzip

    copying.command = Tar(iter([gzip.compress(tar_of({"zeros": bytes(1 << 20)}))]))
    done = invoke("cp", "t:/zeros", tmp_path / "out")
    assert done.exit_code == 4 and "not a whole tar file" in done.stderr
