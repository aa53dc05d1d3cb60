"""`multistep delete`."""

from __future__ import annotations

import asyncio

import click

from multistep.cli.deleting import confirm, delete_all, yes_option
from multistep.cli.options import Target, complete_trials, kubeconfig_options, namespace_option

_EPILOG = """\b
Examples:
  multistep delete my-task-oracle-x7k2p
  multistep delete --yes my-task-oracle-x7k2p my-task-nop-k9w3t -n evals
  multistep list --outcome Excluded -o name | xargs multistep delete --yes

The trial's pod, and the objects that `multistep run` created for it, are deleted with it. Its results stay for as long as the
operator keeps them (docs/how-to/operations.md, Results), but only the trial has their address: fetch them first. A deleted
trial of a sweep is not created again. To end a trial and keep its status, stop it.
"""


@click.command(epilog=_EPILOG)
@click.argument("trials", nargs=-1, required=True, metavar="TRIAL...", shell_complete=complete_trials)
@yes_option
@namespace_option
@kubeconfig_options
def delete(trials: tuple[str, ...], yes: bool, namespace: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Delete each TRIAL, active or finished."""
    asyncio.run(_delete(Target(kubeconfig, context, namespace), tuple(dict.fromkeys(trials)), yes=yes))


async def _delete(target: Target, trials: tuple[str, ...], *, yes: bool) -> None:
    from multistep.cli import cluster
    from multistep.kube.resources import TRIALS

    async with cluster.connect(target) as connected:
        namespace = target.namespace or connected.namespace
        # Raises UsageError if a trial does not exist, before any trial is deleted.
        found = [await cluster.existing_trial(connected, namespace, name) for name in trials]
        what = f"trial {trials[0]}" if len(trials) == 1 else f"{len(trials)} trials"
        confirm(f"Delete {what} in namespace {namespace}?", yes=yes)
        await delete_all(connected, TRIALS, namespace, found)
