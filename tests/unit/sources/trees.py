"""Create task bundles from texts by path: a path that ends in '/' is a directory, a text that starts with '-> ' is a link."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable

from multistep.sources.task.bundle import Bundle, BundleEntry

TOML = '[[steps]]\nname = "a"\n'


def entry(path: str, text: str) -> BundleEntry:
    if text.startswith("-> "):
        return BundleEntry("link", 0o777, target=text[3:])
    return BundleEntry("dir") if path.endswith("/") else BundleEntry("file", 0o644, data=text.encode())


def tree(files: dict[str, str]) -> Bundle:
    return Bundle.from_entries({path.rstrip("/"): entry(path, text) for path, text in files.items()})


def task(files: dict[str, str] | None = None) -> Bundle:
    """Return a task with one step "a" that has tests. files: texts of files to add or replace by path; "(absent)" removes one."""
    base = {"task.toml": TOML, "steps/a/instruction.md": "do", "steps/a/tests/test.sh": "#!/bin/sh\n"}
    return tree({path: text for path, text in {**base, **(files or {})}.items() if text != "(absent)"})


def members(chunks: Iterable[bytes]) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks)), mode="r:") as tar:
        return {member.name: member for member in tar}
