"""`multistep stop` and `delete`, and `multistep sweep stop` and `delete`: stop or delete trials and sweeps by name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from multistep.api.common.plural import plural
from multistep.cli.completion import complete_sweeps, complete_trials
from multistep.cli.options import add_options, connected, output_option
from multistep.errors import UsageError

if TYPE_CHECKING:
    from multistep.client.connection import Cluster
    from multistep.kube.cluster_protocols import Object
    from multistep.kube.resources import Resource

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

_STOP_SWEEP_EPILOG = """\b
Examples:
  multistep sweep stop nightly
  multistep sweep stop --no-wait nightly

The active trials are stopped and have no score, and no more are created; the sweep is Failed then. Trials and results are kept. To
continue later, suspend it instead: kubectl patch tsw nightly --type merge -p '{"spec": {"suspend": true}}'
"""

_DELETE_EPILOG = """\b
Examples:
  multistep delete my-task-oracle-x7k2p
  multistep delete --yes my-task-oracle-x7k2p my-task-nop-k9w3t -n evals
  multistep list --outcome Excluded -o name | xargs multistep delete --yes

The trial's pod, and the objects that `multistep run` created for it, are deleted with it. Its results stay for as long as the
operator keeps them (docs/how-to/operations.md, Results), but only the trial has their address: fetch them first. A deleted
trial of a sweep is not created again. To end a trial and keep its status, stop it.
"""

_DELETE_SWEEP_EPILOG = """\b
Examples:
  multistep sweep delete nightly
  multistep sweep delete --yes nightly weekly -n evals

The trials of a sweep are deleted with it, active ones too. Results stay for as long as the operator keeps them
(docs/how-to/operations.md, Results), but only the trials have their addresses: fetch them first.
"""

_trials = click.argument("names", nargs=-1, required=True, metavar="TRIAL...", shell_complete=complete_trials)
_sweeps = click.argument("names", nargs=-1, required=True, metavar="SWEEP...", shell_complete=complete_sweeps)
_delete_options = add_options(
    click.option("-y", "--yes", is_flag=True, help="Do not ask; required without a terminal."),
    connected,
)


@click.command(epilog=_STOP_EPILOG)
@_trials
@click.option("--no-wait", is_flag=True, help="Do not wait until the trials finish.")
@connected
@output_option
async def stop(cluster: Cluster, names: Sequence[str], no_wait: bool, output: str) -> None:
    """Stop each TRIAL permanently."""
    from multistep.api.trial.trial import parse_status
    from multistep.cli.exit_codes import Interrupted
    from multistep.cli.terminal import print_json
    from multistep.cli.trial.trial_view import status_document
    from multistep.kube.resources import TRIALS

    found = await _stop_all(cluster, TRIALS, names)
    if not no_wait:
        try:
            found = await _all_finished(cluster, TRIALS, found)
        except asyncio.CancelledError:  # Ctrl-C
            raise Interrupted("stop was requested: the operator stops the trials") from None
    if output == "json":
        print_json([status_document(cluster.namespace, each["metadata"]["name"], parse_status(each)) for each in found])


@click.command("stop", epilog=_STOP_SWEEP_EPILOG)
@_sweeps
@click.option("--no-wait", is_flag=True, help="Do not wait until the sweeps are finished.")
@connected
async def stop_sweeps(cluster: Cluster, names: Sequence[str], no_wait: bool) -> None:
    """Stop each SWEEP and its active trials."""
    from multistep.kube.resources import SWEEPS

    found = await _stop_all(cluster, SWEEPS, names)
    if not no_wait:
        await _all_finished(cluster, SWEEPS, found)


@click.command(epilog=_DELETE_EPILOG)
@_trials
@_delete_options
async def delete(cluster: Cluster, names: Sequence[str], yes: bool) -> None:
    """Delete each TRIAL, active or finished."""
    from multistep.kube.resources import TRIALS

    found = await _existing(cluster, TRIALS, names)
    what = f"trial {names[0]}" if len(found) == 1 else f"{len(found)} trials"
    await _delete_all(cluster, TRIALS, found, what, yes=yes)


@click.command("delete", epilog=_DELETE_SWEEP_EPILOG)
@_sweeps
@_delete_options
async def delete_sweeps(cluster: Cluster, names: Sequence[str], yes: bool) -> None:
    """Delete each SWEEP and its trials."""
    from multistep.api.sweep.sweep import parse_sweep_status
    from multistep.kube.resources import SWEEPS

    found = await _existing(cluster, SWEEPS, names)
    trials = plural(sum(parse_sweep_status(each).trials.created for each in found), "trial")
    what = f"sweep {names[0]} and its {trials}" if len(found) == 1 else f"{len(found)} sweeps and their {trials}"
    await _delete_all(cluster, SWEEPS, found, what, yes=yes)


async def _existing(cluster: Cluster, resource: Resource, names: Sequence[str]) -> list[Object]:
    """Return the objects with these names, each once. Raises UsageError if one does not exist."""
    from multistep.client.objects import existing_object

    return [await existing_object(cluster, resource, cluster.namespace, name) for name in dict.fromkeys(names)]


async def _stop_all(cluster: Cluster, resource: Resource, names: Sequence[str]) -> list[Object]:
    """Stop the objects that have not finished, and return all. Raises UsageError if one does not exist, before any is stopped."""
    from multistep.api.trial.status import is_finished
    from multistep.cli.terminal import print_err
    from multistep.client import objects
    from multistep.client.outcome import outcome_of
    from multistep.client.watch import status_of

    found = await _existing(cluster, resource, names)
    for each in found:
        name = each["metadata"]["name"]
        if is_finished(status_of(resource, each)):
            print_err(f"{name}: is {outcome_of(resource, each).phase} already")
        else:
            await objects.stop(cluster, resource, cluster.namespace, name, uid=each["metadata"]["uid"])
            print_err(f"{name}: stopping")
    return found


async def _all_finished(cluster: Cluster, resource: Resource, found: Sequence[Object]) -> list[Object]:
    """Wait until all objects have finished, and return them."""
    from multistep.api.trial.status import is_finished
    from multistep.cli.terminal import print_err
    from multistep.client.outcome import outcome_of
    from multistep.client.watch import status_of, until_finished

    async def finished(each: Object) -> Object:
        if is_finished(status_of(resource, each)):
            return each
        name = each["metadata"]["name"]
        ended = await until_finished(cluster, resource, cluster.namespace, name, print_err)
        end = outcome_of(resource, ended)
        print_err(f"{name}: {end.phase}: {end.why}")
        return ended

    return await asyncio.gather(*map(finished, found))


async def _delete_all(cluster: Cluster, resource: Resource, found: Sequence[Object], what: str, *, yes: bool) -> None:
    """Delete the objects, each only if its UID is unchanged. Without ``yes``, ask first whether to delete ``what``.

    Raises UsageError if the user declines, or cannot be asked.
    """
    from multistep.cli.terminal import print_err

    if not yes:
        _confirm(f"Delete {what} in namespace {cluster.namespace}?")
    for each in found:
        name = each["metadata"]["name"]
        deleted = await cluster.delete(resource, cluster.namespace, name, uid=each["metadata"]["uid"])
        print_err(f"{name}: deleted" if deleted else f"{name}: was deleted already")


def _confirm(question: str) -> None:
    """Ask on the terminal. Raises UsageError if the user declines, or if stdin is not a terminal."""
    if not _is_terminal():
        raise UsageError("stdin is not a terminal, so the deletion cannot be confirmed: give --yes")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was deleted")


def _is_terminal() -> bool:
    return sys.stdin.isatty()
