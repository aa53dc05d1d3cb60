"""Whether a path of a task, an archive or a result stays below the directory to which it is relative."""

from __future__ import annotations


def goes_up(path: str) -> bool:
    """Return whether a part of the path is ``..``."""
    return ".." in path.split("/")


def leads_out(path: str) -> bool:
    """Return whether the path may lead out of its directory: it is absolute, a part is ``..``, or it contains a NUL, which no file
    name can. Links in the directory may still lead out: open files with ``open_below``."""
    return path.startswith("/") or goes_up(path) or "\0" in path


def is_canonical(path: str) -> bool:
    """Return whether the path does not lead out and has no empty part and no ``.``, so that no other path names the same file."""
    return not leads_out(path) and not {"", "."} & set(path.split("/"))
