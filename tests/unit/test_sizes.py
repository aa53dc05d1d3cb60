"""The limits on the size of modules, classes and functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.sizes import CLASS_METHODS, FUNCTION_LINES, MODULE_LINES, too_large


def method(name: str, lines: int) -> str:
    return f"    def {name}(self):\n" + "        pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\n" * MODULE_LINES, ""),
        ("x = 1\n" * (MODULE_LINES + 1), "1: the module has 401 lines"),
        ("class C:\n" + method("f", FUNCTION_LINES), ""),
        ("class C:\n" + method("f", FUNCTION_LINES + 1), "2: f has 41 lines"),
        ("class C:\n" + "".join(method(f"f{n}", 2) for n in range(CLASS_METHODS)), ""),
        ("class C:\n" + "".join(method(f"f{n}", 2) for n in range(CLASS_METHODS + 1)), "1: class C has 21 methods"),
    ],
)
def test_what_is_over_a_limit_is_reported_with_its_place(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "module.py").write_text(text)
    reported = too_large([tmp_path])
    assert [line.rpartition(",")[0] for line in reported] == ([f"{tmp_path}/module.py:{found}"] if found else [])
