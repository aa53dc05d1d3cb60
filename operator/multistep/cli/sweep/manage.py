"""`multistep sweep list`, `retry`, `stop` and `delete`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from multistep.api.common.plural import plural
from multistep.api.trial.values import SWEEP_PHASES
from multistep.cli.completion import complete_sweeps
from multistep.cli.list_and_delete import (
    AGE,
    REASON,
    Column,
    Listing,
    ListOptions,
    any_of,
    confirm,
    delete_all,
    field_of,
    list_options,
    phase_option,
    yes_option,
)
from multistep.cli.options import output_option, target_options
from multistep.client.options import Target

_LIST_EPILOG = """\b
Examples:
  multistep sweep list
  multistep sweep list -A --phase Running --watch
  multistep sweep list -o name | xargs -n 1 multistep sweep status

The columns are those of `kubectl get tsw`. PHASE is Pending, Running, Suspended, Halting, Complete or Failed; case is ignored.
"""

_RETRY_EPILOG = """\b
Examples:
  multistep sweep retry nightly --excluded
  multistep sweep retry nightly --excluded --follow
  multistep retry nightly-greet-mine-3-1f2e3d4c           # one trial of a sweep

Excluded trials are those without a score: the infrastructure, the task or a user ended them. Exactly these run again, each as a new
trial with the same task, agent and attempt; the sweep's spec.retries has their numbers, and each number counts once. A trial
that has a score is never replaced. A finished or stopped sweep continues. Prints the names of the trials that run again.

\b
Exit codes:
  0  the trials will run again, or none is excluded; with --follow, see `multistep sweep run`
  2  the sweep does not exist, or bad usage
  4  the cluster could not be reached
"""

_STOP_EPILOG = """\b
Examples:
  multistep sweep stop nightly
  multistep sweep stop --no-wait nightly

The active trials are stopped and have no score, and no more are created; the sweep is Failed then. Trials and results are kept. To
continue later, suspend it instead: kubectl patch tsw nightly --type merge -p '{"spec": {"suspend": true}}'
"""

_DELETE_EPILOG = """\b
Examples:
  multistep sweep delete nightly
  multistep sweep delete --yes nightly weekly -n evals

The trials of a sweep are deleted with it, active ones too. Results stay for as long as the operator keeps them
(docs/how-to/operations.md, Results), but only the trials have their addresses: fetch them first.
"""

COLUMNS: Final = (
    Column("PHASE", "status.phase"),
    Column("TOTAL", "status.trials.total"),
    Column("FINISHED", "status.trials.finished"),
    Column("ACTIVE", "status.trials.active"),
    Column("FAILED", "status.trials.failed"),
    Column("SCORE", "status.score"),
    Column("AGE", AGE),
    Column("CREATED", "status.trials.created", wide=True),
    Column("COUNTED", "status.trials.counted", wide=True),
    Column("RETRIED", "status.trials.retried", wide=True),
    Column("POD-HOURS", "status.podHours", wide=True),
    Column("REASON", REASON, wide=True),
)


@click.command("list", epilog=_LIST_EPILOG)
@phase_option(SWEEP_PHASES, "Only sweeps in this phase; repeatable.")
@list_options
def list_(phases: tuple[str, ...], options: ListOptions, target: Target) -> None:
    """List sweeps."""
    asyncio.run(_list(target, phases, options))


async def _list(target: Target, phases: tuple[str, ...], options: ListOptions) -> None:
    from multistep.cli import cluster
    from multistep.kube.resources import SWEEPS

    in_phase = any_of(phases)
    async with cluster.connect(target) as connected:
        keep: Any = lambda each: in_phase(field_of(each, "status.phase") or "Pending")  # noqa: E731
        await Listing(SWEEPS, "sweeps", COLUMNS, options, keep).print_all(connected)


@click.command(epilog=_RETRY_EPILOG)
@click.argument("name", metavar="SWEEP", shell_complete=complete_sweeps)
@click.option("--excluded", is_flag=True, help="Run all trials without a score again. Required.")
@click.option("-f", "--follow", is_flag=True, help="Follow the sweep until it finishes.")
@target_options
@output_option
def retry(name: str, excluded: bool, follow: bool, target: Target, output: str) -> int:
    """Run the trials of SWEEP again that have no score."""
    from multistep.errors import UsageError

    if not excluded:
        raise UsageError("give --excluded, to run the trials without a score again; for one trial: multistep retry TRIAL")
    return asyncio.run(_retry(target, name, follow=follow, as_json=output == "json"))


async def _retry(target: Target, name: str, *, follow: bool, as_json: bool) -> int:
    from multistep.cli import cluster
    from multistep.cli.terminal import print_err, print_json, print_line, print_warning
    from multistep.client.objects import existing_sweep
    from multistep.client.retry import retry_excluded

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        retried = await retry_excluded(connected, namespace, await existing_sweep(connected, namespace, name), print_warning)
    if as_json and not follow:
        print_json({"namespace": namespace, "sweep": name, "retried": retried})
    elif not follow:
        for each in retried:
            print_line(each)
    what = f"{plural(len(retried), 'trial runs', 'trials run')} again" if retried else "no trial is excluded"
    print_err(f"sweep {name}: {what}")
    if not follow:
        return 0
    from multistep.cli.sweep.run_sweep import show

    return await show(target, name, until_finished=True, as_json=as_json)


@click.command(epilog=_STOP_EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="SWEEP...", shell_complete=complete_sweeps)
@click.option("--no-wait", is_flag=True, help="Do not wait until the sweeps are finished.")
@target_options
def stop(names: tuple[str, ...], no_wait: bool, target: Target) -> None:
    """Stop each SWEEP and its active trials."""
    asyncio.run(_stop(target, tuple(dict.fromkeys(names)), wait=not no_wait))


async def _stop(target: Target, names: tuple[str, ...], *, wait: bool) -> None:
    from multistep.cli import cluster
    from multistep.cli.stop import all_finished, stop_all
    from multistep.kube.resources import SWEEPS

    async with cluster.connect(target) as connected:
        found = await stop_all(connected, SWEEPS, names)
        if wait:
            await all_finished(connected, SWEEPS, found)


@click.command(epilog=_DELETE_EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="SWEEP...", shell_complete=complete_sweeps)
@yes_option
@target_options
def delete(names: tuple[str, ...], yes: bool, target: Target) -> None:
    """Delete each SWEEP and its trials."""
    asyncio.run(_delete(target, tuple(dict.fromkeys(names)), yes=yes))


async def _delete(target: Target, names: tuple[str, ...], *, yes: bool) -> None:
    from multistep.api.sweep.sweep import parse_sweep_status
    from multistep.cli import cluster
    from multistep.client.objects import existing_sweep
    from multistep.kube.resources import SWEEPS

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        # Raises UsageError if a sweep does not exist, before any sweep is deleted.
        found = [await existing_sweep(connected, namespace, name) for name in names]
        trials = sum(parse_sweep_status(each).trials.created for each in found)
        what = f"sweep {names[0]} and its" if len(names) == 1 else f"{len(names)} sweeps and their"
        confirm(f"Delete {what} {plural(trials, 'trial')} in namespace {namespace}?", yes=yes)
        await delete_all(connected, SWEEPS, namespace, found)
