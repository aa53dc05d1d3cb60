"""`multistep stop` and `multistep delete`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from multistep.cli.options import complete_trials, output_option, target_options
from multistep.client.options import Target

if TYPE_CHECKING:
    from multistep.api.trial.status import TrialStatus
    from multistep.client.connection import Cluster
from multistep.cli.list_and_delete import confirm, delete_all, yes_option

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
    from multistep.cli import cluster
    from multistep.cli.terminal import print_json, status_document
    from multistep.client.objects import existing_trial

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        # Raises UsageError if a trial does not exist, before any trial is stopped.
        found = [await existing_trial(connected, namespace, name) for name in trials]
        statuses = [await _request_stop(connected, namespace, each) for each in found]
        if wait:
            statuses = await _wait(connected, namespace, trials, statuses)
    if output == "json":
        print_json([status_document(namespace, name, status) for name, status in zip(trials, statuses, strict=True)])


async def _request_stop(connected: Cluster, namespace: str, found: dict[str, object]) -> TrialStatus:
    """Set spec.stop on a trial unless it has finished."""
    from multistep.api.common.base_model import Metadata
    from multistep.api.trial.status import is_finished
    from multistep.api.trial.trial import parse_status
    from multistep.cli.terminal import print_err
    from multistep.client import objects
    from multistep.client.outcome import outcome
    from multistep.kube.resources import TRIALS

    metadata, status = Metadata.model_validate(found["metadata"]), parse_status(found)
    if is_finished(status):
        print_err(f"{metadata.name}: is {outcome(status).phase} already")
    else:
        await objects.stop(connected, TRIALS, namespace, metadata.name, uid=metadata.uid)
        print_err(f"{metadata.name}: stopping")
    return status


async def _wait(connected: Cluster, namespace: str, trials: tuple[str, ...], statuses: list[TrialStatus]) -> list[TrialStatus]:
    from multistep.api.trial.status import is_finished
    from multistep.api.trial.trial import parse_status
    from multistep.cli.exits import Interrupted
    from multistep.cli.terminal import print_err
    from multistep.client.outcome import outcome
    from multistep.client.watch import until_finished
    from multistep.kube.resources import TRIALS

    async def one(name: str, status: TrialStatus) -> TrialStatus:
        if not is_finished(status):
            status = parse_status(await until_finished(connected, TRIALS, namespace, name, print_err))
            end = outcome(status)
            print_err(f"{name}: {end.phase}: {end.why}")
        return status

    try:
        return await asyncio.gather(*(one(name, status) for name, status in zip(trials, statuses, strict=True)))
    except asyncio.CancelledError:  # Ctrl-C
        raise Interrupted("stop was requested: the operator stops the trials") from None


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
