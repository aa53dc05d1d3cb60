"""The output of `multistep dataset list` and `show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from multistep.cli.dataset.registry import Selected
from multistep.cli.terminal import table
from multistep.sources.task.harbor_registry import Dataset, distinct_names

_COMMIT_CHARACTERS = 12


def datasets_document(datasets: Sequence[Dataset]) -> list[dict[str, Any]]:
    """Return the datasets as a list of JSON objects."""
    return [
        {"name": each.name, "version": each.version, "description": each.description, "tasks": len(each.tasks)} for each in datasets
    ]


def datasets_table(datasets: Sequence[Dataset]) -> Table:
    """Return the datasets as a table."""
    found = table("NAME", "VERSION", "TASKS", "DESCRIPTION", numbers=("TASKS",))
    for each in datasets:
        found.add_row(each.name, each.version, str(len(each.tasks)), " ".join(each.description.split()))
    return found


def tasks_document(selected: Selected) -> dict[str, Any]:
    """Return a dataset with the selected tasks as a JSON object."""
    names = distinct_names(selected.tasks)
    tasks = [
        {"name": name, "gitURL": each.url, "ref": each.ref or None, "path": each.path}
        for name, each in zip(names, selected.tasks, strict=True)
    ]
    return {"name": selected.dataset.name, "version": selected.dataset.version, "tasks": tasks}


def tasks_table(selected: Selected) -> Table:
    """Return the selected tasks as a table."""
    found = table("TASK", "REPOSITORY", "REF", "PATH")
    for name, each in zip(distinct_names(selected.tasks), selected.tasks, strict=True):
        found.add_row(name, each.url or "(local)", each.ref[:_COMMIT_CHARACTERS] or "-", each.path)
    return found
