"""`multistep show`."""

from __future__ import annotations

import asyncio

import click

from multistep.cli.options import Target, complete_either, kubeconfig_options, namespace_option, output_option

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
@namespace_option
@kubeconfig_options
@output_option
def show(name: str, follow: bool, namespace: str | None, kubeconfig: str | None, context: str | None, output: str) -> None:
    """Show the steps, rewards and outcome of a trial, or its progress; or a sweep."""
    if code := asyncio.run(_show(Target(kubeconfig, context, namespace), name, output, until_finished=follow)):
        raise click.exceptions.Exit(code)


async def _show(target: Target, text: str, output: str, *, until_finished: bool) -> int:
    from multistep.api.trial.trial import parse_status
    from multistep.cli import cluster
    from multistep.cli.terminal import Progress, print_json, print_out, status_document, trial_view
    from multistep.cli.trial.outcome import outcome
    from multistep.cli.trial.run.follow import follow
    from multistep.kube.resources import SWEEPS

    async with cluster.connect(target) as connected:
        namespace = target.namespace or connected.namespace
        kind, found = await cluster.existing_either(connected, namespace, text)
        trial = found["metadata"]["name"]
        if kind == SWEEPS:
            from multistep.cli.sweep.run_sweep import show_sweep

            return await show_sweep(connected, namespace, trial, until_finished=until_finished, as_json=output == "json")
        status = parse_status(found)
        if until_finished:
            with Progress(trial) as progress:
                status = await follow(connected, namespace, trial, progress)
    if output == "json":
        print_json(status_document(namespace, trial, status))
    else:
        print_out(trial_view(trial, status, namespace=namespace))
    return outcome(status).exit if until_finished else 0
