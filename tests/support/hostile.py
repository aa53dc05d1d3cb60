"""Generators of invalid input: arbitrary values, and valid values with mutations."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

ODD_TEXTS = ["", "\0", "\ud800", "../../etc", "a" * 5000, "\x1b[31m", "größe", "-1", "NaN", "🎉", " ", "\n", "9" * 30]
ODD_NUMBERS = [0, -1, 2**31, 2**53 + 1, 2**63, 10**30, 1e308, -1e308, 0.1, 253402300800]

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
    | st.sampled_from(ODD_TEXTS) | st.sampled_from(ODD_NUMBERS)
)  # fmt: skip
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)


def places(value: Any, here: Path = ()) -> Iterator[Path]:
    """Yield the path of each value in a JSON value, starting with the empty path of the whole value."""
    yield here
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*here, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*here, number))


@st.composite
def spoilt(draw: st.DrawFn, good: Any) -> Any:
    """Return a copy of a valid JSON value in which one to three nested values are replaced or deleted."""
    value = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        found = [each for each in places(value) if each]
        if not found:
            break
        *way, last = draw(st.sampled_from(found))
        parent = value
        for part in way:
            parent = parent[part]
        if draw(st.integers(0, 3)) == 0:
            del parent[last]
        else:
            parent[last] = draw(json_values)
    return value


@st.composite
def spoilt_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Return a copy of the bytes with one to four changes: replaced, deleted, inserted or truncated bytes."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=3))
            case 1:
                del data[at : at + draw(st.integers(1, 600))]
            case 2:
                data[at:at] = draw(st.binary(max_size=20))
            case _:
                del data[at:]
    return bytes(data)
