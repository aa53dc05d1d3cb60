"""`multistep dashboard`: starts the server and opens the browser."""

from __future__ import annotations

import asyncio

import click

from multistep.cli.options import target_options
from multistep.client.options import Target

_EPILOG = """\b
Examples:
  multistep dashboard                  # sweeps and trials of the current namespace
  multistep dashboard -n team-a --no-browser
  multistep dashboard -A --port 8899   # of all namespaces

The page runs on this machine and reads the cluster with your own credentials, so it shows what you may read, and changes
nothing. The printed URL contains a token; without it, other users of this machine cannot open the page. Logs of a running
trial need the right to exec into its pod, as `multistep logs` does. Ctrl-C ends it.
"""


@click.command(epilog=_EPILOG)
@click.option("-A", "--all-namespaces", is_flag=True, help="Sweeps and trials of all namespaces.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port on 127.0.0.1; default: a free one.")
@click.option("--browser/--no-browser", default=True, help="Open the page in the browser; default: yes.")
@target_options
def dashboard(all_namespaces: bool, port: int, browser: bool, target: Target) -> None:
    """Show sweeps and trials live in the browser: progress, steps, logs and rewards."""
    asyncio.run(_dashboard(target, port, everywhere=all_namespaces, browser=browser))


async def _dashboard(target: Target, port: int, *, everywhere: bool, browser: bool) -> None:
    from multistep.cli import cluster
    from multistep.cli.dashboard.board import Board
    from multistep.cli.dashboard.server import serve
    from multistep.cli.terminal import print_err
    from multistep.client.kubeconfig import current_cluster
    from multistep.errors import UsageError

    if everywhere and target.namespace:
        raise UsageError("--all-namespaces and --namespace exclude each other")
    async with cluster.connect(target) as connected:
        namespace = None if everywhere else connected.namespace
        board = Board()
        shown = f"namespace {namespace}" if namespace else "all namespaces"
        context = current_cluster(target.kubeconfig, target.context)
        where = f"{shown} of {context.context} ({context.server})" if context else shown
        async with serve(connected, board, namespace, port, where) as url:
            print_err(f"dashboard of {shown}: {url}")
            if browser:
                click.launch(url)
            await board.follow(connected, namespace)
