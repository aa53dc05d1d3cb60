"""Resolves symbolic links within a bundle, without a filesystem."""

from __future__ import annotations

from collections.abc import Callable

from multistep.errors import InvalidTask
from multistep.sources.task.bundle import Bundle, BundleEntry

_MAX_HOPS = 40  # maximum number of links in a path, as in Linux
_MAX_CHARACTERS = 4096  # maximum length of a path, as PATH_MAX in Linux
_MAX_VISITS = 200_000  # maximum number of paths in a tree, because links can give a small tree exponentially many paths


def resolve_links(bundle: Bundle, path: str) -> str:
    """Return the path with links resolved. The path need not exist.

    Raises InvalidTask if a link leads out of the task or is cyclic, or if the path is too long.
    """
    real = ""
    ahead = path.split("/")[::-1]
    hops = 0
    while ahead:
        if len(real) > _MAX_CHARACTERS:
            raise InvalidTask(f"leads to a path of more than {_MAX_CHARACTERS} characters", kind="ValueError", field=path[:100])
        part = ahead.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not real:
                raise _out_of_task(path)
            real = real.rpartition("/")[0]
            continue
        below = f"{real}/{part}" if real else part
        entry = bundle.entries.get(below)
        if entry is None or entry.kind != "link":
            real = below
            continue
        hops += 1
        if hops > _MAX_HOPS:
            raise InvalidTask("is a link that leads to itself", kind="ValueError", field=path)
        if entry.target.startswith("/"):
            raise _out_of_task(path)
        ahead.extend(entry.target.split("/")[::-1])
    return real


def entry_at(bundle: Bundle, path: str) -> BundleEntry | None:
    """Return the file or directory at a path after following links, or None if it does not exist."""
    real = resolve_links(bundle, path)
    return bundle.entries.get(real) if real else BundleEntry("dir")


def is_file(bundle: Bundle, path: str) -> bool:
    """Return whether the path is a file or a link to one."""
    entry = entry_at(bundle, path)
    return entry is not None and entry.kind == "file"


def is_directory(bundle: Bundle, path: str) -> bool:
    """Return whether the path is a directory or a link to one."""
    entry = entry_at(bundle, path)
    return entry is not None and entry.kind == "dir"


def check_tree(bundle: Bundle, path: str, excludes: Callable[[str], bool]) -> None:
    """Raise InvalidTask if a link at or below the path leads out of the task, or if directories form a cycle."""
    ahead: list[tuple[str, frozenset[str]]] = [(path, frozenset())]
    visits = 0
    while ahead:
        candidate, ancestors = ahead.pop()
        visits += 1
        if visits > _MAX_VISITS:
            raise InvalidTask("has too many paths through links of directories", kind="ValueError", field=path)
        if excludes(candidate):
            continue
        real = resolve_links(bundle, candidate)
        if not is_directory(bundle, real):
            continue
        if real in ancestors:
            raise InvalidTask("links of directories form a circle", kind="ValueError", field=candidate)
        ahead.extend((f"{candidate}/{name}", ancestors | {real}) for name in bundle.children(real))


def _out_of_task(path: str) -> InvalidTask:
    return InvalidTask("leads out of the task: a link must stay within it", kind="ValueError", field=path)
