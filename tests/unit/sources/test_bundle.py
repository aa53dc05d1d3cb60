"""Task bundles: packing the same directory gives the same bytes, and unpacking hostile bytes raises an error."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.values import TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.task.bundle import (
    Bundle,
    BundleEntry,
    BundleLimits,
    copy_plain,
    digest_of,
    pack_directory,
    safe_path,
    tar_chunks,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=120).filter(
    lambda name: name not in (".", "..")
)
ENTRIES = st.one_of(
    st.builds(BundleEntry, st.just("file"), st.integers(0, 0o7777), st.binary(max_size=2000)),
    st.builds(BundleEntry, st.just("dir"), st.integers(0, 0o7777)),
    st.builds(BundleEntry, st.just("link"), st.just(0o777), st.just(b""), NAMES),
)


def opened(data: bytes, limits: BundleLimits | None = None) -> Bundle:
    return Bundle.from_archive(data, digest_of(data), limits or BundleLimits())


def hostile(*members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return out.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size
    return member


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "steps/a/empty").mkdir(parents=True)
    (tmp_path / "steps/a/run.sh").write_bytes(b"\0\xff\r\n")
    (tmp_path / "steps/a/run.sh").chmod(0o750)
    (tmp_path / "steps/a/link").symlink_to("../missing")
    (tmp_path / ("é" * 120)).write_text("a long name")
    return tmp_path


def test_a_directory_survives(directory: Path) -> None:
    bundle = opened(pack_directory(directory))
    assert bundle.entries["steps/a/run.sh"] == BundleEntry("file", 0o750, b"\0\xff\r\n")
    assert bundle.entries["steps/a/link"] == BundleEntry("link", 0o777, target="../missing")
    assert bundle.entries["steps/a/empty"].kind == "dir"
    assert bundle.entries["é" * 120].data == b"a long name"
    assert bundle == Bundle.from_directory(directory)
    assert bundle.children("steps/a") == ("empty", "link", "run.sh")


def test_times_do_not_change_the_digest(directory: Path) -> None:
    before = pack_directory(directory)
    os.utime(directory / "steps/a/run.sh", (1, 1))
    assert pack_directory(directory) == before
    (directory / "steps/a/run.sh").chmod(0o755)
    assert pack_directory(directory) != before


@given(st.dictionaries(NAMES, ENTRIES, max_size=8))
def test_tar_streams_carry_everything(entries: dict[str, BundleEntry]) -> None:
    data = gzip.compress(b"".join(tar_chunks(sorted(entries.items()))))
    assert opened(data).entries == entries


def test_big_files_go_in_pieces() -> None:
    chunks = list(tar_chunks([("big", BundleEntry("file", data=bytes(5 << 19)))]))
    assert max(map(len, chunks)) == 1 << 20


def test_a_socket_is_no_part_of_a_task(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SourceError, match="neither a file nor a directory nor a link"):
        pack_directory(tmp_path)


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        pack_directory(tmp_path / "missing")


def test_a_leading_dot_and_missing_parents_are_fine() -> None:
    bundle = opened(hostile(info(".", tarfile.DIRTYPE), info("./a/b")))
    assert {path: entry.kind for path, entry in bundle.entries.items()} == {"a": "dir", "a/b": "file"}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([info("/etc/passwd")], "is refused"),
        ([info("../a")], "is refused"),
        ([info("a/../../b")], "is refused"),
        ([info("a//b")], "is refused"),
        ([info("a/./b")], "is refused"),
        ([info("..", tarfile.DIRTYPE)], "is refused"),
        ([info("a"), info("a")], "is twice"),
        ([info("a"), info("./a")], "is twice"),
        ([info("a"), info("a/b")], "'a' is not a directory"),
        ([info("a/b"), info("a", tarfile.SYMTYPE, target="/etc")], "'a' is not a directory"),
        ([info("a", tarfile.CHRTYPE)], "neither a file nor"),
        ([info("a", tarfile.FIFOTYPE)], "neither a file nor"),
        ([info("a"), info("b", tarfile.LNKTYPE, target="a")], "neither a file nor"),
        ([info(str(number)) for number in range(4)], "more than 3 entries"),
        ([info("a", size=200_000)], "when uncompressed"),
    ],
)
def test_hostile_members_are_refused(members: list[tarfile.TarInfo], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        opened(hostile(*members), BundleLimits(uncompressed=100_000, entries=3))


def test_broken_bytes_are_refused(directory: Path) -> None:
    whole = pack_directory(directory)
    with pytest.raises(SourceError, match="package the task again"):
        Bundle.from_archive(whole, "sha256:" + "0" * 64)
    with pytest.raises(SourceError, match="not a gzip file"):
        opened(whole[:-20])
    with pytest.raises(SourceError, match="not a gzip file"):
        opened(b"PK")
    with pytest.raises(SourceError, match="not a tar file"):
        opened(gzip.compress(b"x" * 2000))
    with pytest.raises(SourceError, match="more than the limit"):
        opened(whole, BundleLimits(compressed=10))


@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_a_plain_copy_is_bounded(compress: Callable[[bytes], bytes]) -> None:
    whole, copy = b"".join(tar_chunks([("a", BundleEntry("file", data=bytes(5000)))])), io.BytesIO()
    copy_plain(io.BytesIO(compress(whole)), copy, BundleLimits(uncompressed=len(whole)))
    assert copy.getvalue() == whole
    with pytest.raises(SourceError, match="when uncompressed, which is the limit") as caught:
        copy_plain(io.BytesIO(compress(whole)), io.BytesIO(), BundleLimits(uncompressed=len(whole) - 1))
    assert caught.value.reason == TOO_LARGE
    with pytest.raises(SourceError, match="more than the limit") as caught:
        copy_plain(io.BytesIO(gzip.compress(whole)), io.BytesIO(), BundleLimits(compressed=10))
    assert caught.value.reason == TOO_LARGE


def test_a_tar_that_ends_early_is_refused() -> None:
    whole = b"".join(tar_chunks([("a", BundleEntry("file", data=bytes(5000)))]))
    with pytest.raises(SourceError, match=r"not a tar file|ends within"):
        opened(gzip.compress(whole[:2000]))


@given(st.binary(max_size=600))
def test_any_bytes_are_a_bundle_or_an_error(noise: bytes) -> None:
    for data in (noise, gzip.compress(noise)):
        try:
            opened(data)
        except SourceError:
            continue


@given(st.text(st.sampled_from("a./\0\\"), max_size=8))
def test_safe_paths_are_safe(name: str) -> None:
    try:
        path = safe_path(name)
    except SourceError:
        return
    assert path
    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(path.split("/"))
    assert os.path.normpath(path) == path


def test_the_config_counts_for_the_digest_of_an_inline_task() -> None:
    assert Bundle.from_entries({}, {"a": 1}).digest != Bundle.from_entries({}, {"a": 2}).digest
    assert Bundle.from_entries({}, {"a": 1, "b": 2}) == Bundle.from_entries({}, {"b": 2, "a": 1})
