"""`multistep list` and `multistep show`."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from multistep.api.trial.values import OUTCOMES, TRIAL_PHASES
from multistep.cli.completion import complete_either, complete_sweeps
from multistep.cli.list_and_delete import (
    AGE,
    AGENT,
    FAILURE,
    REASON,
    REWARD,
    STEP,
    Column,
    Listing,
    ListOptions,
    any_of,
    field_of,
    list_options,
    phase_option,
)
from multistep.cli.options import (
    output_option,
    target_options,
)
from multistep.client.options import Target

_LIST_EPILOG = """\b
Examples:
  multistep list
  multistep list --sweep nightly --outcome Excluded
  multistep list -A --phase Running --watch
  multistep list -l team=evals -o name | xargs multistep stop
  multistep list -o json | jq '.items[].status.rewards'

The columns are those of `kubectl get mst`. PHASE is Pending, Running, Suspended, Complete or Failed; OUTCOME is Passed, NotPassed,
GateNotMet, AgentError, VerifierError, TaskError, Unverified or Excluded (docs/reference/trial-reference.md). Case is ignored.
"""

COLUMNS: Final = (
    Column("TASK", "status.task"),
    Column("AGENT", AGENT),
    Column("PHASE", "status.phase"),
    Column("STEP", STEP),
    Column("OUTCOME", "status.outcome"),
    Column("SCORE", "status.score"),
    Column("REWARD", REWARD),
    Column("FAILURE", FAILURE),
    Column("AGE", AGE),
    Column("POD", "status.podName", wide=True),
    Column("NODE", "status.nodeName", wide=True),
    Column("REASON", REASON, wide=True),
)


@click.command("list", epilog=_LIST_EPILOG)
@click.option("--sweep", metavar="SWEEP", shell_complete=complete_sweeps, help="Only trials of this sweep.")
@phase_option(TRIAL_PHASES, "Only trials in this phase; repeatable.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    metavar="OUTCOME",
    type=click.Choice(OUTCOMES, case_sensitive=False),
    help="Only trials with this outcome; repeatable.",
)
@list_options
def list_(
    sweep: str | None,
    phases: tuple[str, ...],
    outcomes: tuple[str, ...],
    options: ListOptions,
    target: Target,
) -> None:
    """List trials."""
    asyncio.run(_list(target, sweep, phases, outcomes, options))


async def _list(
    target: Target, sweep: str | None, phases: tuple[str, ...], outcomes: tuple[str, ...], options: ListOptions
) -> None:
    from dataclasses import replace

    from multistep.api.common.labels import SWEEP
    from multistep.cli import cluster
    from multistep.kube.resources import TRIALS

    in_phase, ended = any_of(phases), any_of(outcomes)
    if sweep is not None:
        options = replace(options, selector=",".join(filter(None, (f"{SWEEP}={sweep}", options.selector))))
    async with cluster.connect(target) as connected:
        listing = Listing(
            TRIALS,
            "trials",
            COLUMNS,
            options,
            lambda each: in_phase(field_of(each, "status.phase") or "Pending") and ended(field_of(each, "status.outcome")),
        )
        await listing.print_all(connected)


_SHOW_EPILOG = """\b
Examples:
  multistep show my-task-oracle-x7k2p
  multistep show --follow my-task-oracle-x7k2p
  multistep show my-task-oracle-x7k2p -o json | jq .status.rewards
  multistep show nightly                             # a sweep, as `multistep sweep status` shows it

If a trial and a sweep have the same name, write trial/NAME or sweep/NAME. With --follow the exit codes are those of
`multistep run`, of a sweep those of `multistep sweep run`.
"""


@click.command(epilog=_SHOW_EPILOG)
@click.argument("name", metavar="NAME", shell_complete=complete_either)
@click.option("-f", "--follow", is_flag=True, help="Follow it until it finishes, with progress on stderr.")
@target_options
@output_option
def show(name: str, follow: bool, target: Target, output: str) -> int:
    """Show the steps, rewards and outcome of a trial, or its progress; or a sweep."""
    return asyncio.run(_show(target, name, output, until_finished=follow))


async def _show(target: Target, text: str, output: str, *, until_finished: bool) -> int:
    from multistep.api.trial.trial import parse_status
    from multistep.cli import cluster
    from multistep.cli.exits import exit_of_outcome
    from multistep.cli.terminal import Progress, print_json, print_out, status_document, trial_view
    from multistep.cli.trial.run.follow import follow
    from multistep.client.objects import existing_either
    from multistep.client.outcome import outcome
    from multistep.kube.resources import SWEEPS

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        kind, found = await existing_either(connected, namespace, text)
        trial = found["metadata"]["name"]
        if kind == SWEEPS:
            from multistep.cli.sweep.run_sweep import show_sweep

            return await show_sweep(connected, trial, until_finished=until_finished, as_json=output == "json")
        status = parse_status(found)
        if until_finished:
            with Progress(trial) as progress:
                status = await follow(connected, namespace, trial, progress)
    if output == "json":
        print_json(status_document(namespace, trial, status))
    else:
        print_out(trial_view(trial, status, namespace=namespace))
    return exit_of_outcome(outcome(status)) if until_finished else 0
