"""`multistep shell`."""

from __future__ import annotations

import asyncio

import click

from multistep.cli.options import target_options, trial_argument
from multistep.client.options import Target

_EPILOG = """\b
Examples:
  multistep shell my-task-oracle-x7k2p
  multistep shell my-task-oracle-x7k2p -- ls -l /logs/verifier
  multistep run my-task --agent nop --keep --name try && multistep shell try
  echo 'cat notes.txt' | multistep shell my-task-oracle-x7k2p

Starts bash, or sh, or COMMAND in the container of a trial that runs, or of a finished one whose pod is kept (`multistep run
--keep`). It has the rights of the image's user. Changes in a running trial may change its results. Needs the right to
create pods/exec. The exit code is that of the command.
"""
_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")


@click.command(epilog=_EPILOG)
@trial_argument
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@target_options
def shell(trial: str, command: tuple[str, ...], target: Target) -> int:
    """Start a shell, or COMMAND, in the container of TRIAL."""
    return asyncio.run(_shell(target, trial, command or _SHELL))


async def _shell(target: Target, trial: str, command: tuple[str, ...]) -> int:
    import sys

    from multistep.cli import cluster
    from multistep.cli.terminal import print_err
    from multistep.cli.trial.inside.container import CONTAINER, Session, find_pod

    async with cluster.connect(target) as connected:
        pod = await find_pod(connected, connected.namespace, trial)
        tty = sys.stdin.isatty() and sys.stdout.isatty()
        if pod.active and tty:
            print_err(f"trial {trial} is active: what you change may change its results")
        session = Session(tty=tty)
        # no retry: a second handshake could start the command twice
        stream = await connected.open_exec(
            pod.namespace, pod.name, CONTAINER, command, tty=tty, on_stderr=session.write_error, attempts=1
        )
        return await session.run(stream)
