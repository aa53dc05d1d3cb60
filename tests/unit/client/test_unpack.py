"""Test that unpacking a trial's results never writes outside the target directory, even if an agent crafted the tar."""

from __future__ import annotations

import io
import stat
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.client.results.unpack import Unpacked, unpack
from multistep.errors import StoreError
from tests.unit.cli.fakes import tar_of

Member = tuple[str, bytes, str, int]  # a tar member's name, type, file contents or link target, mode


def _tar(members: Sequence[Member]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, text, mode in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode
            data = text.encode() if kind == tarfile.REGTYPE else b""
            info.size, info.linkname = len(data), "" if data else text
            tar.addfile(info, io.BytesIO(data))
    out.seek(0)
    return out


def _unpacked(members: Sequence[Member], directory: Path) -> Unpacked:
    return unpack(_tar(members), directory)


_PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "/", "x" * 300, "é", "a b"])
_NAMES = st.lists(_PARTS, min_size=1, max_size=4).map("/".join)
_TYPES = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
_TARGETS = st.sampled_from(["a", "b/c", "../../outside", "/", "..", "../outside/kept"])


@given(st.lists(st.tuples(_NAMES, _TYPES, _TARGETS, st.integers(0, 0o7777)), max_size=12))
def test_nothing_is_ever_written_outside(members: list[Member]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "outside").mkdir()
        (root / "outside/kept").write_text("kept")
        found = _unpacked(members, root / "in")
        assert sorted(each.relative_to(root).as_posix() for each in root.rglob("*") if root / "in" not in each.parents) == [
            "in",
            "outside",
            "outside/kept",
        ]
        assert (root / "outside/kept").read_text() == "kept"
        for each in (root / "in").rglob("*"):
            mode = each.lstat().st_mode
            assert stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)
            assert stat.S_ISLNK(mode) or not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)
        assert found.files + len(found.left_out) <= len(members)


@given(st.binary(max_size=2000))
def test_any_bytes_end_well_or_in_a_store_error(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        try:
            unpack(io.BytesIO(data), Path(name) / "in")
        except StoreError as error:
            assert "not a whole tar" in str(error)


def test_a_cut_tar_is_an_error(tmp_path: Path) -> None:
    whole = tar_of({"a": b"x" * 5000})
    with pytest.raises(StoreError, match="not a whole tar"):
        unpack(io.BytesIO(whole[:3000]), tmp_path)


def test_what_is_good_is_kept_as_it_is(tmp_path: Path) -> None:
    found = _unpacked(
        [
            ("./", tarfile.DIRTYPE, "", 0o700),
            ("./d", tarfile.DIRTYPE, "", 0o500),
            ("./d/run.sh", tarfile.REGTYPE, "#!", 0o4755),
            ("d/read-only", tarfile.REGTYPE, "x", 0o000),
            ("hard", tarfile.LNKTYPE, "./d/run.sh", 0o755),
            ("link", tarfile.SYMTYPE, "/etc/passwd", 0o777),
        ],
        tmp_path / "new" / "out",
    )
    out = tmp_path / "new" / "out"
    assert (found.files, found.bytes, found.left_out) == (3, 5, [])
    assert stat.S_IMODE((out / "d/run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "d/read-only").stat().st_mode) == 0o600
    assert stat.S_IMODE((out / "d").stat().st_mode) == 0o700
    assert (out / "hard").read_text() == "#!"
    assert (out / "link").readlink() == Path("/etc/passwd")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("/etc/x", tarfile.REGTYPE, "x", 0o644)], "its name leads out of the directory"),
        ([("a/../../x", tarfile.REGTYPE, "x", 0o644)], "its name leads out of the directory"),
        ([("f", tarfile.FIFOTYPE, "", 0o644)], "it is neither a file nor a directory nor a link"),
        ([("h", tarfile.LNKTYPE, "nothing", 0o644)], "it is a hard link to nothing"),
        ([("x" * 300, tarfile.REGTYPE, "x", 0o644)], "File name too long"),
        ([("a", tarfile.REGTYPE, "x", 0o644), ("a/b", tarfile.REGTYPE, "x", 0o644)], "'a' on its way is not a directory"),
        ([("a/b", tarfile.REGTYPE, "x", 0o644), ("a", tarfile.REGTYPE, "x", 0o644)], "a directory of this name exists"),
    ],
)
def test_what_is_left_out_is_named_and_costs_nothing_else(members: list[Member], reason: str, tmp_path: Path) -> None:
    found = _unpacked([*members, ("good", tarfile.REGTYPE, "good", 0o644)], tmp_path)
    assert [why for _, why in found.left_out] == [reason]
    assert (tmp_path / "good").read_text() == "good"


def test_links_that_are_there_already_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/d").symlink_to(outside)
    (tmp_path / "in/f").symlink_to(outside / "f")
    found = _unpacked([("d/x", tarfile.REGTYPE, "x", 0o644), ("f", tarfile.REGTYPE, "new", 0o644)], tmp_path / "in")
    assert [name for name, _ in found.left_out] == ["d/x"]
    assert list(outside.iterdir()) == []
    assert (tmp_path / "in/f").read_text() == "new" and not (tmp_path / "in/f").is_symlink()
