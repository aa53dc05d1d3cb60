"""The reader of a runner's tar stream: same results as the standard library, with bounded memory."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.errors import StoreError
from multistep.store.files.read_tar import TarMember, tar_members

from .helpers import directory, link, member, tar

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=300)


def read(data: bytes) -> list[TarMember]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return list(tar_members(file.fileno()))


def test_reads_files_directories_and_links_with_mode_and_time() -> None:
    found = read(tar(member("0/a", b"text", mode=0o4755), directory("0/d"), link("0/l", "/etc/passwd")))
    assert [(each.name, each.kind, each.mode, each.size, each.target) for each in found] == [
        ("0/a", "file", 0o755, 4, ""),
        ("0/d/", "directory", 0o755, 0, ""),
        ("0/l", "link", 0o644, 0, "/etc/passwd"),
    ]


@given(st.lists(st.tuples(NAMES, st.binary(max_size=2000)), max_size=6), st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_reads_what_the_standard_library_writes(files: list[tuple[str, bytes]], form: int) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    raw = data.getvalue()
    assert [(each.name, raw[each.offset : each.offset + each.size]) for each in read(raw)] == files


def test_keeps_names_that_are_not_utf_8() -> None:
    assert read(tar(member("0/" + os.fsdecode(b"caf\xe9"), b"x")))[0].name == "0/" + os.fsdecode(b"caf\xe9")


def _huge_header() -> bytes:
    header = bytearray(member("x", b"", kind=b"x"))
    header[124:136] = b"77777777777\0"
    return _signed(header)


def _signed(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


def _with_size(field: bytes) -> bytes:
    header = bytearray(member("0/a"))
    header[124:136] = field
    return _signed(header)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (member("0/a", b"1234")[:514], "cut short"),
        (member("0/a")[:100] + b"x" * 412, "number|checksum"),
        (b"x" + member("0/a")[1:], "checksum"),
        (_huge_header(), "cut short"),
        (_huge_header() + bytes(70_000), "cut short"),
        (tar(member("x", bytes(70_000), kind=b"x")), "at most 65536"),
        (tar(member("x", b"9 path=ab", kind=b"x")), "extended header"),
        (tar(member("x", b"99 path=a\n", kind=b"x")), "extended header"),
        (tar(member("x", b"0 path=a\n", kind=b"x")), "extended header"),
        (tar(member("x", b"12 size=-10\n", kind=b"x"), member("0/a")), "number"),
        (_with_size(b"\xff" * 12), "number"),
        (_with_size(b"-0000000001\0"), "number"),
    ],
)
def test_refuses_what_makes_no_sense(data: bytes, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        read(data)


def _dated(record: bytes, field: bytes = b"00000000012\0") -> bytes:
    header = bytearray(member("0/a"))
    header[136:148] = field
    extended = b"%d mtime=%s\n" % (len(record) + 10, record)
    return tar(member("x", extended, kind=b"x") if record else b"", _signed(header))


@pytest.mark.parametrize(
    ("data", "mtime"),
    [
        (_dated(b""), 10.0),
        (_dated(b"12.5"), 12.5),
        (_dated(b"-1.25"), -1.25),
        (_dated(b"nan"), 0.0),
        (_dated(b"soon"), 0.0),
        (_dated(b"1e300"), 0.0),
        (_dated(b"", b"\x80" + b"\x0f" * 11), 0.0),
        (_dated(b"", b"\xff" * 12), 0.0),
    ],
)
def test_no_time_is_a_reason_to_refuse_a_file(data: bytes, mtime: float) -> None:
    assert [each.mtime for each in read(data)] == [mtime]


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(tar(member("0/a", b"text"), member("0/" + "b" * 200, b"x"), link("0/l", "y" * 150), directory("1/")))
    for _ in range(draw(st.integers(1, 8))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@given(st.one_of(st.binary(max_size=3000), _damaged()))
def test_damage_is_a_store_error_or_some_members_but_nothing_else(data: bytes) -> None:
    for each in _until_refused(data):
        assert 0 <= each.size <= len(data)
        assert each.offset + each.size <= len(data)
        assert each.mode == each.mode & 0o777


def _until_refused(data: bytes) -> Iterator[TarMember]:
    try:
        yield from read(data)
    except StoreError:
        return
