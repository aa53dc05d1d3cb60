"""Test that comments and docstrings of the operator refer only to names and modules that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from hack.paths import ROOT

MULTISTEP = ROOT / "operator" / "multistep"
OF_OTHERS = frozenset({"NxM", "NxMxK", "context_window_fallback_dict", "context_window_fallbacks", "fallbacks", "rN", "reserved_"})
"""Parts of texts and fields of other systems that look like names of the operator."""

_TEXT = re.compile(r'^ *""".*?"""$|(?:^| )# .*?$', re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"``([A-Za-z_][\w.]*)(?:\(\))?``")
_PACKAGES = "|".join(sorted(each.name for each in MULTISTEP.iterdir() if (each / "__init__.py").exists()))
_MODULE = re.compile(rf"(?<![\w./$-])(?:multistep\.)?((?:{_PACKAGES})(?:\.[a-z_]\w*)+)(?!\w*/)")


def split(source: str) -> tuple[list[str], set[str]]:
    """Return the comments and docstrings of a module, and the words of its code."""
    return _TEXT.findall(source), set(re.findall(r"\w+", _TEXT.sub("", source)))


def exists(reference: str) -> bool:
    """Return whether a dotted path leads to a module of the operator, and then to a word of this module or package."""
    path = MULTISTEP
    for part in reference.split("."):
        if (path / part).is_dir():
            path /= part
        elif (path / f"{part}.py").exists():
            path /= f"{part}.py"
        else:
            files = path.glob("*.py") if path.is_dir() else [path]
            return any(re.search(rf"\b{part}\b", file.read_text()) for file in files)
    return True


def stale(texts: list[str], words: Set[str]) -> Iterator[str]:
    for text in texts:
        yield from (name for name in _NAME.findall(text) if not words >= {*name.split(".")})
        yield from (name for name in _MODULE.findall(text) if not exists(name) and not name.endswith((".py", ".json", ".toml")))


def test_comments_and_docstrings_refer_to_names_and_modules_that_exist() -> None:
    found = {path: split(path.read_text()) for path in sorted(MULTISTEP.rglob("*.py"))}
    words = OF_OTHERS.union(
        *(words for _, words in found.values()), *(path.relative_to(MULTISTEP).with_suffix("").parts for path in found)
    )
    wrong = {str(path.relative_to(ROOT)): names for path, (texts, _) in found.items() if (names := [*stale(texts, words)])}
    assert wrong == {}


def test_stale_names_are_found() -> None:
    texts, words = split(
        '''def f(x):
    """``x``, ``gone`` of engine.plan.gone.y and engine.plan.make_plan."""
    return x + "y"  # ``f()``, ``f.old``
'''
    )
    assert (len(texts), words) == (2, {"def", "f", "return", "x", "y"})
    assert [*stale(texts, words)] == ["gone", "engine.plan.gone.y", "f.old"]
