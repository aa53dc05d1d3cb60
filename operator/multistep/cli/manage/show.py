"""`multistep show`: prints the status of a trial or a sweep, or follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from multistep.cli.completion import complete_either
from multistep.cli.options import connected, output_option

if TYPE_CHECKING:
    from multistep.client.connection import Cluster

_EPILOG = """\b
Examples:
  multistep show my-task-oracle-x7k2p
  multistep show --follow my-task-oracle-x7k2p
  multistep show my-task-oracle-x7k2p -o json | jq .status.rewards
  multistep show nightly                             # a sweep, as `multistep sweep status` shows it

If a trial and a sweep have the same name, write trial/NAME or sweep/NAME. With --follow the exit codes are those of
`multistep run`, of a sweep those of `multistep sweep run`.
"""


@click.command(epilog=_EPILOG)
@click.argument("name", metavar="NAME", shell_complete=complete_either)
@click.option("-f", "--follow", is_flag=True, help="Follow it until it finishes, with progress on stderr.")
@connected
@output_option
async def show(cluster: Cluster, name: str, follow: bool, output: str) -> int:
    """Show the steps, rewards and outcome of a trial, or its progress; or a sweep."""
    from multistep.client.objects import existing_either
    from multistep.kube.resources import SWEEPS

    kind, found = await existing_either(cluster, cluster.namespace, name)
    if kind == SWEEPS:
        from multistep.cli.sweep.run_sweep import show_sweep

        return await show_sweep(cluster, found["metadata"]["name"], until_finished=follow, as_json=output == "json")
    from multistep.cli.trial.follow_trial import show_trial

    return await show_trial(cluster, found, until_finished=follow, as_json=output == "json")
