"""Where paths of a bundle lead when symbolic links are followed, without a filesystem."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InvalidTask
from .bundle import Bundle, Entry

_MAX_HOPS = 40  # as Linux
_MAX_VISITS = 200_000  # links can make a small tree endless to walk


def resolve(bundle: Bundle, path: str) -> str:
    """The path without links; what it names need not exist. InvalidTask: it leads out of the task, or nowhere."""
    real: list[str] = []
    ahead = path.split("/")[::-1]
    hops = 0
    while ahead:
        part = ahead.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not real:
                raise _out_of_task(path)
            real.pop()
            continue
        entry = bundle.entries.get("/".join([*real, part]))
        if entry is None or entry.kind != "link":
            real.append(part)
            continue
        hops += 1
        if hops > _MAX_HOPS:
            raise InvalidTask("is a link that leads to itself", kind="ValueError", field=path)
        if entry.target.startswith("/"):
            raise _out_of_task(path)
        ahead.extend(entry.target.split("/")[::-1])
    return "/".join(real)


def lookup(bundle: Bundle, path: str) -> Entry | None:
    """What is at a path, links followed; None if nothing is."""
    real = resolve(bundle, path)
    return bundle.entries.get(real) if real else Entry("dir")


def is_file(bundle: Bundle, path: str) -> bool:
    """Whether a file is at the path, links followed."""
    entry = lookup(bundle, path)
    return entry is not None and entry.kind == "file"


def is_directory(bundle: Bundle, path: str) -> bool:
    """Whether a directory is at the path, links followed."""
    entry = lookup(bundle, path)
    return entry is not None and entry.kind == "dir"


def check_tree(bundle: Bundle, path: str, excludes: Callable[[str], bool]) -> None:
    """InvalidTask if a link at or below the path leads out of the task or, through directories, in a circle."""
    ahead: list[tuple[str, frozenset[str]]] = [(path, frozenset())]
    visits = 0
    while ahead:
        candidate, ancestors = ahead.pop()
        visits += 1
        if visits > _MAX_VISITS:
            raise InvalidTask("has too many paths through links of directories", kind="ValueError", field=path)
        if excludes(candidate):
            continue
        real = resolve(bundle, candidate)
        if not is_directory(bundle, real):
            continue
        if real in ancestors:
            raise InvalidTask("links of directories form a circle", kind="ValueError", field=candidate)
        ahead.extend((f"{candidate}/{name}", ancestors | {real}) for name in bundle.children(real))


def _out_of_task(path: str) -> InvalidTask:
    return InvalidTask("leads out of the task: a link must stay within it", kind="ValueError", field=path)
