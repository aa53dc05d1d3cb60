"""`multistep show`."""

from __future__ import annotations

import asyncio

import click

from .options import Target, kubeconfig_options, namespace_option, output_option

_EPILOG = """\b
Examples:
  multistep show my-task-oracle-x7k2p
  multistep show my-task-oracle-x7k2p -o json | jq .status.rewards
"""


@click.command(epilog=_EPILOG)
@click.argument("trial")
@namespace_option
@kubeconfig_options
@output_option
def show(trial: str, namespace: str | None, kubeconfig: str | None, context: str | None, output: str) -> None:
    """Show the steps of TRIAL, its rewards and how it ended, or where it is."""
    asyncio.run(_show(Target(kubeconfig, context, namespace), trial, output))


async def _show(target: Target, trial: str, output: str) -> None:
    from ..api.trial import parse_status
    from . import cluster
    from .output import print_json, print_out, status_document, trial_view

    async with cluster.connect(target) as connected:
        namespace = target.namespace or connected.namespace
        status = parse_status(await cluster.existing_trial(connected, namespace, trial))
    if output == "json":
        print_json(status_document(namespace, trial, status))
    else:
        print_out(trial_view(trial, status))
