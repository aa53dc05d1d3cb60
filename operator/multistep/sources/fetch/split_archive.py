"""Splits an archive of many tasks: each directory with a task.toml, directly below a path or the archive's top, is a task."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import Fetched, FetchedTask, Order
from multistep.sources.fetch.output_file import Output, write_tar
from multistep.sources.task.bundle import Entry, read_members
from multistep.sources.task.condition_reasons import NOT_FOUND

_NAME_CHARACTERS = 253


def below(file: Path, path: str, order: Order) -> dict[str, Entry]:
    """Return the entries below a path in the archive, keyed by the path relative to it."""
    prefix = f"{path}/" if path else ""
    with file.open("rb") as stream:
        members = read_members(stream, order.rules.limits)
        return {name.removeprefix(prefix): entry for name, entry in members if name.startswith(prefix)}


def split(file: Path, path: str, order: Order, revision: str) -> Fetched:
    """Write each task in the archive to a separate bundle in the same directory. Raises SourceError if the archive has no tasks."""
    found: dict[str, dict[str, Entry]] = defaultdict(dict)
    for name, entry in below(file, path, order).items():
        top, _, rest = name.partition("/")
        if rest:
            found[top][rest] = entry
    tasks = sorted(name for name, entries in found.items() if entries.get("task.toml", Entry("dir")).kind == "file")
    if not tasks:
        where = f"below {order.request.path!r}" if order.request.path.strip("/") else "below its top"
        text = f"{order.request.location.partition('?')[0]} has no tasks: no directory directly {where} has a task.toml"
        raise SourceError(text, reason=NOT_FOUND)
    for name in tasks:
        if not name.isprintable() or len(name) > _NAME_CHARACTERS:
            raise SourceError(f"the directory {name!r} cannot name a task: at most {_NAME_CHARACTERS} printable characters can")
    return Fetched(revision, "", tasks=tuple(_written(file.parent, name, found[name]) for name in tasks))


def _written(directory: Path, name: str, entries: dict[str, Entry]) -> FetchedTask:
    with Output(directory) as output:
        write_tar(output, sorted(entries.items()))
    return FetchedTask(name, output.digest, output.path.name)
