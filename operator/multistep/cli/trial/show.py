"""`multistep show`."""

from __future__ import annotations

import asyncio

import click

from multistep.cli.options import Target, kubeconfig_options, namespace_option, output_option, trial_argument

_EPILOG = """\b
Examples:
  multistep show my-task-oracle-x7k2p
  multistep show --follow my-task-oracle-x7k2p
  multistep show my-task-oracle-x7k2p -o json | jq .status.rewards

With --follow the exit codes are those of `multistep run`.
"""


@click.command(epilog=_EPILOG)
@trial_argument
@click.option("-f", "--follow", is_flag=True, help="Follow the trial until it finishes, with progress on stderr.")
@namespace_option
@kubeconfig_options
@output_option
def show(trial: str, follow: bool, namespace: str | None, kubeconfig: str | None, context: str | None, output: str) -> None:
    """Show the steps, rewards and outcome of TRIAL, or its progress."""
    if code := asyncio.run(_show(Target(kubeconfig, context, namespace), trial, output, until_finished=follow)):
        raise click.exceptions.Exit(code)


async def _show(target: Target, trial: str, output: str, *, until_finished: bool) -> int:
    from multistep.api.trial import parse_status
    from multistep.cli import cluster
    from multistep.cli.terminal import Progress, print_json, print_out, status_document, trial_view
    from multistep.cli.trial.follow import follow
    from multistep.cli.trial.outcome import outcome

    async with cluster.connect(target) as connected:
        namespace = target.namespace or connected.namespace
        status = parse_status(await cluster.existing_trial(connected, namespace, trial))
        if until_finished:
            with Progress(trial) as progress:
                status = await follow(connected, namespace, trial, progress)
    if output == "json":
        print_json(status_document(namespace, trial, status))
    else:
        print_out(trial_view(trial, status, namespace=namespace))
    return outcome(status).exit if until_finished else 0
