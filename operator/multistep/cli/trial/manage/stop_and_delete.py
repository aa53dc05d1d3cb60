"""`multistep stop` and `multistep delete`."""

from __future__ import annotations

import asyncio

import click

from multistep.cli.completion import complete_trials
from multistep.cli.list_and_delete import confirm, delete_all, yes_option
from multistep.cli.options import output_option, target_options
from multistep.client.options import Target

_STOP_EPILOG = """\b
Examples:
  multistep stop my-task-oracle-x7k2p
  multistep stop my-task-oracle-x7k2p my-task-nop-k9w3t -n evals
  multistep stop --no-wait my-task-oracle-x7k2p
  multistep stop -o json my-task-oracle-x7k2p | jq '.[].why'

A stopped trial fails with reason Stopped and has no reward. The operator deletes its pod and keeps the status and results
of its steps. It cannot be resumed; suspend it instead to continue later (docs/reference/trial-reference.md).
Finished trials do not change.

\b
Exit codes:
  0  all trials finished (with --no-wait: spec.stop is set on all)
  2  a trial does not exist, or bad usage
  3  a trial was deleted while waiting
  4  the cluster could not be reached
"""


@click.command(epilog=_STOP_EPILOG)
@click.argument("trials", nargs=-1, required=True, metavar="TRIAL...", shell_complete=complete_trials)
@click.option("--no-wait", is_flag=True, help="Do not wait until the trials finish.")
@target_options
@output_option
def stop(trials: tuple[str, ...], no_wait: bool, target: Target, output: str) -> None:
    """Stop each TRIAL permanently."""
    asyncio.run(_stop(target, tuple(dict.fromkeys(trials)), output, wait=not no_wait))


async def _stop(target: Target, trials: tuple[str, ...], output: str, *, wait: bool) -> None:
    from multistep.api.trial.trial import parse_status
    from multistep.cli import cluster
    from multistep.cli.exits import Interrupted
    from multistep.cli.stop import all_finished, stop_all
    from multistep.cli.terminal import print_json, status_document
    from multistep.kube.resources import TRIALS

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        found = await stop_all(connected, TRIALS, trials)
        if wait:
            try:
                found = await all_finished(connected, TRIALS, found)
            except asyncio.CancelledError:  # Ctrl-C
                raise Interrupted("stop was requested: the operator stops the trials") from None
    if output == "json":
        print_json([status_document(namespace, name, parse_status(each)) for name, each in zip(trials, found, strict=True)])


_DELETE_EPILOG = """\b
Examples:
  multistep delete my-task-oracle-x7k2p
  multistep delete --yes my-task-oracle-x7k2p my-task-nop-k9w3t -n evals
  multistep list --outcome Excluded -o name | xargs multistep delete --yes

The trial's pod, and the objects that `multistep run` created for it, are deleted with it. Its results stay for as long as the
operator keeps them (docs/how-to/operations.md, Results), but only the trial has their address: fetch them first. A deleted
trial of a sweep is not created again. To end a trial and keep its status, stop it.
"""


@click.command(epilog=_DELETE_EPILOG)
@click.argument("trials", nargs=-1, required=True, metavar="TRIAL...", shell_complete=complete_trials)
@yes_option
@target_options
def delete(trials: tuple[str, ...], yes: bool, target: Target) -> None:
    """Delete each TRIAL, active or finished."""
    asyncio.run(_delete(target, tuple(dict.fromkeys(trials)), yes=yes))


async def _delete(target: Target, trials: tuple[str, ...], *, yes: bool) -> None:
    from multistep.cli import cluster
    from multistep.client.objects import existing_trial
    from multistep.kube.resources import TRIALS

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        # Raises UsageError if a trial does not exist, before any trial is deleted.
        found = [await existing_trial(connected, namespace, name) for name in trials]
        what = f"trial {trials[0]}" if len(trials) == 1 else f"{len(trials)} trials"
        confirm(f"Delete {what} in namespace {namespace}?", yes=yes)
        await delete_all(connected, TRIALS, namespace, found)
