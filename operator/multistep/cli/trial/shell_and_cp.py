"""`multistep shell` and `multistep cp`: run a command in a trial's container, or copy files out of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from multistep.cli.completion import complete_trials
from multistep.cli.options import connected, trial_argument
from multistep.errors import UsageError

if TYPE_CHECKING:
    from multistep.client.connection import Cluster

_SHELL_EPILOG = """\b
Examples:
  multistep shell my-task-oracle-x7k2p
  multistep shell my-task-oracle-x7k2p -- ls -l /logs/verifier
  multistep run my-task --agent nop --keep --name try && multistep shell try
  echo 'cat notes.txt' | multistep shell my-task-oracle-x7k2p

Starts bash, or sh, or COMMAND in the container of a trial that runs, or of a finished one whose pod is kept (`multistep run
--keep`). It has the rights of the image's user. Changes in a running trial may change its results. Needs the right to
create pods/exec. The exit code is that of the command.
"""

_CP_EPILOG = """\b
Examples:
  multistep cp my-task-oracle-x7k2p:/app/notes.txt .
  multistep cp my-task-oracle-x7k2p:/logs out/logs -n evals

Copies a file or a directory out of the container of a trial that runs, or of a finished one whose pod is kept (`multistep run
--keep`), into the directory DIR, which is created. PATH is absolute. Needs the right to create pods/exec, and tar in the image.
Stored results need no pod: `multistep results`. Only files, directories and links are copied: a device has no content.
"""

_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")


@click.command(epilog=_SHELL_EPILOG)
@trial_argument
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@connected
async def shell(cluster: Cluster, trial: str, command: tuple[str, ...]) -> int:
    """Start a shell, or COMMAND, in the container of TRIAL."""
    from multistep.cli.terminal import print_err
    from multistep.cli.trial.container import CONTAINER, Session, find_pod

    pod = await find_pod(cluster, cluster.namespace, trial)
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    if pod.active and tty:
        print_err(f"trial {trial} is active: what you change may change its results")
    session = Session(tty=tty)
    # attempts=1: a second handshake could start the command twice
    stream = await cluster.open_exec(
        pod.namespace, pod.name, CONTAINER, command or _SHELL, tty=tty, on_stderr=session.write_error, attempts=1
    )
    return await session.run(stream)


@click.command(epilog=_CP_EPILOG)
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
@connected
async def cp(cluster: Cluster, source: str, directory: Path, max_mb: int) -> None:
    """Copy PATH out of the container of TRIAL into the directory DIR."""
    from multistep.cli.trial.container import copy, parse_source

    _check_directory(directory)
    trial, path = parse_source(source)
    await copy(cluster, cluster.namespace, trial, path, directory, max_mb)


def _check_directory(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: files keep their names and are copied into one")
