"""`multistep dataset`: the options of its commands."""

from __future__ import annotations

import click

from multistep.cli.dataset.registry import DatasetOptions, Registry, required
from multistep.cli.groups import SuggestingGroup
from multistep.cli.options import dataset_options, output_option

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
    from multistep.cli.dataset.tables import datasets_document, datasets_table
    from multistep.cli.terminal import print_json, print_out

    found = Registry.read(required(registry)).datasets
    if output == "json":
        print_json(datasets_document(found))
    else:
        print_out(datasets_table(found))


@dataset.command("show", epilog=_SHOW_EPILOG)
@click.argument("name", metavar="NAME[@VERSION]")
@dataset_options
@output_option
def show(name: str, chosen: DatasetOptions, output: str) -> None:
    """Show the tasks of a dataset."""
    from dataclasses import replace

    from multistep.cli.dataset.tables import tasks_document, tasks_table
    from multistep.cli.terminal import print_json, print_out

    found = replace(chosen, dataset=name).selected()
    if output == "json":
        print_json(tasks_document(found))
    else:
        print_out(tasks_table(found))
