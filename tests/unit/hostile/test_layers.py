"""Invalid and hostile image layers result in a task or in an error; no task exceeds the limits of its size."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.errors import SourceError
from multistep.sources.fetch.image_layers import CheckedStream, ImageLayers
from multistep.sources.task.bundle import Bundle, BundleEntry, BundleLimits, digest_of, tar_chunks

LIMITS = BundleLimits(compressed=1 << 20, uncompressed=10_000, entries=50)
PARTS = st.sampled_from(["a", "b", "task", ".wh.a", ".wh.task", ".wh..wh..opq", "..", ".", "", "é"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
TYPES = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
MEMBERS = st.lists(st.tuples(NAMES, TYPES, st.integers(0, 3000), NAMES), max_size=8)


def layer(members: Sequence[tuple[str, bytes, int, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, size, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, size if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return out.getvalue()


def file(name: str, size: int = 1) -> tuple[str, bytes, int, str]:
    return name, tarfile.REGTYPE, size, ""


def entries(*layers: bytes, root: str = "") -> Mapping[str, BundleEntry]:
    made = ImageLayers(root, LIMITS, io.BytesIO(), "image")
    for each in layers:
        stream = CheckedStream([each[start : start + 700] for start in range(0, len(each), 700)], digest_of(each), "layer")
        made.add(stream)
        stream.finish()
    return dict(made.entries())


@given(st.lists(MEMBERS, max_size=3), st.sampled_from(["", "task", "a/b"]))
def test_any_layers_are_a_bundle_or_an_error(layers: list[list[tuple[str, bytes, int, str]]], root: str) -> None:
    try:
        found = entries(*(layer(members) for members in layers), root=root)
    except SourceError:
        return
    assert sum(len(each.data) for each in found.values()) <= LIMITS.uncompressed
    data = gzip.compress(b"".join(tar_chunks(sorted(found.items()))))
    assert Bundle.from_archive(data, digest_of(data)).entries.keys() == found.keys()


@given(st.binary(max_size=3000))
def test_any_bytes_are_a_layer_or_an_error(data: bytes) -> None:
    for each in (data, gzip.compress(data), gzip.compress(data)[:-5], layer([file("task.toml")])[:600] + data):
        try:
            entries(each)
        except SourceError:
            continue


@pytest.mark.parametrize(
    ("layers", "left"),
    [
        ([[file("a/x"), file("a/y")], [file("a/.wh.x")]], {"a", "a/y"}),
        ([[file("a/x")], [file("a/y"), file("a/.wh..wh..opq")]], {"a", "a/y"}),
        ([[file("a/x")], [file(".wh.a")]], set()),
        ([[file("a/x")], [file("a")]], {"a"}),
        ([[file("a")], [file("a/x")]], {"a", "a/x"}),
        ([[("a", tarfile.SYMTYPE, 0, "/etc")], [file("a/x")]], {"a", "a/x"}),
        ([[file("x")], [file("y"), ("z", tarfile.LNKTYPE, 0, "x")]], {"x", "y", "z"}),
        ([[file("x")], [file(".wh.x"), file("x")]], {"x"}),
    ],
)
def test_layers_are_laid_one_above_the_other(layers: list[list[tuple[str, bytes, int, str]]], left: set[str]) -> None:
    assert entries(*map(layer, layers)).keys() == left


@pytest.mark.parametrize(
    ("members", "output"),
    [
        ([file("../x")], "refused"),
        ([file("a/../../x")], "refused"),
        ([("x", tarfile.LNKTYPE, 0, "../../etc/passwd")], "refused"),
        ([("x", tarfile.LNKTYPE, 0, "etc/passwd")], "not in the task"),
        ([("x", tarfile.CHRTYPE, 0, "")], "neither a file"),
        ([file(f"x{number}", 3000) for number in range(4)], "10000 bytes"),
        ([file(f"x{number}") for number in range(60)], "50 files"),
    ],
)
def test_what_a_task_cannot_have_is_refused(members: list[tuple[str, bytes, int, str]], output: str) -> None:
    with pytest.raises(SourceError, match=output):
        entries(layer(members))


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(SourceError, match="10000 bytes"):
        entries(gzip.compress(layer([file("x", 50 << 20)])))


def test_hard_links_count_as_what_they_link_to() -> None:
    with pytest.raises(SourceError, match="10000 bytes"):
        entries(layer([file("x", 4000), *((f"y{number}", tarfile.LNKTYPE, 0, "x") for number in range(3))]))
