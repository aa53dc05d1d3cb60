"""`multistep cp`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from multistep.cli.completion import complete_trials
from multistep.cli.options import target_options
from multistep.client.options import Target
from multistep.errors import UsageError

_EPILOG = """\b
Examples:
  multistep cp my-task-oracle-x7k2p:/app/notes.txt .
  multistep cp my-task-oracle-x7k2p:/logs out/logs -n evals

Copies a file or a directory out of the container of a trial that runs, or of a finished one whose pod is kept (`multistep run
--keep`), into the directory DIR, which is created. PATH is absolute. Needs the right to create pods/exec, and tar in the image.
Stored results need no pod: `multistep results`. Only files, directories and links are copied: a device has no content.
"""


@click.command(epilog=_EPILOG)
@click.argument("source", metavar="TRIAL:PATH", shell_complete=complete_trials)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--max-mb",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    metavar="N",
    help="Copy nothing if there are more than N megabytes.",
)
@target_options
def cp(source: str, directory: Path, max_mb: int, target: Target) -> None:
    """Copy PATH out of the container of TRIAL into the directory DIR."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: files keep their names and are copied into one")
    asyncio.run(_cp(target, source, directory, max_mb))


async def _cp(target: Target, source: str, directory: Path, max_mb: int) -> None:
    from multistep.cli import cluster
    from multistep.cli.trial.inside.container import copy, parse_source

    trial, path = parse_source(source)
    async with cluster.connect(target) as connected:
        await copy(connected, connected.namespace, trial, path, directory, max_mb)
