"""`multistep dataset`: lists the datasets of a registry.json, Harbor's list of datasets, and their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from multistep.cli.groups import SuggestingGroup
from multistep.cli.options import dataset_options, output_option
from multistep.client.datasets import DatasetOptions, Registry, Selected, required
from multistep.sources.task.harbor_registry import Dataset, distinct_names

if TYPE_CHECKING:
    from rich.table import Table

_COMMIT_CHARACTERS = 12

_EPILOG = """\b
Examples:
  multistep dataset list --registry https://example.com/registry.json
  multistep dataset show bench@2.0 --registry registry.json --task 'web-*'
  multistep sweep run -d bench@2.0 --registry https://example.com/registry.json --agent oracle
"""

_LIST_EPILOG = """\b
Examples:
  multistep dataset list --registry https://example.com/registry.json
  multistep dataset list --registry registry.json -o json | jq -r '.[] | "\\(.name)@\\(.version)"'
"""

_SHOW_EPILOG = """\b
Examples:
  multistep dataset show bench --registry https://example.com/registry.json
  multistep dataset show bench@2.0 --registry registry.json --task 'web-*' --exclude '*-hard' --limit 10
  multistep dataset show bench -o json --registry registry.json | jq -r '.tasks[].name'

Shows the tasks that `multistep sweep run` with the same options runs, in this order. Without a version: head, else the highest.
"""


@click.group(cls=SuggestingGroup, epilog=_EPILOG)
def dataset() -> None:
    """List the datasets of a registry.json, and their tasks."""


@dataset.command("list", epilog=_LIST_EPILOG)
@click.option("--registry", metavar="URL|FILE", help="Harbor's registry.json.")
@output_option
def list_datasets(registry: str | None, output: str) -> None:
    """List the datasets of a registry.json."""
    from multistep.cli.terminal import print_json, print_out

    found = Registry.read(required(registry)).datasets
    if output == "json":
        print_json(_datasets_document(found))
    else:
        print_out(_datasets_table(found))


@dataset.command("show", epilog=_SHOW_EPILOG)
@click.argument("name", metavar="NAME[@VERSION]")
@dataset_options
@output_option
def show(name: str, chosen: DatasetOptions, output: str) -> None:
    """Show the tasks of a dataset."""
    from dataclasses import replace

    from multistep.cli.terminal import print_json, print_out

    found = replace(chosen, dataset=name).selected()
    if output == "json":
        print_json(_tasks_document(found))
    else:
        print_out(_tasks_table(found))


def _datasets_document(datasets: Sequence[Dataset]) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "version": each.version, "description": each.description, "tasks": len(each.tasks)} for each in datasets
    ]


def _datasets_table(datasets: Sequence[Dataset]) -> Table:
    from multistep.cli.terminal import table

    found = table("NAME", "VERSION", "TASKS", "DESCRIPTION", numbers=("TASKS",))
    for each in datasets:
        found.add_row(each.name, each.version, str(len(each.tasks)), " ".join(each.description.split()))
    return found


def _tasks_document(selected: Selected) -> dict[str, Any]:
    names = distinct_names(selected.tasks)
    tasks = [
        {"name": name, "gitURL": each.url, "ref": each.ref or None, "path": each.path}
        for name, each in zip(names, selected.tasks, strict=True)
    ]
    return {"name": selected.dataset.name, "version": selected.dataset.version, "tasks": tasks}


def _tasks_table(selected: Selected) -> Table:
    from multistep.cli.terminal import table

    found = table("TASK", "REPOSITORY", "REF", "PATH")
    for name, each in zip(distinct_names(selected.tasks), selected.tasks, strict=True):
        found.add_row(name, each.url or "(local)", each.ref[:_COMMIT_CHARACTERS] or "-", each.path)
    return found
