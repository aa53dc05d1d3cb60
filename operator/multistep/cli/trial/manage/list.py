"""`multistep list`."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from multistep.api.trial.status_values import OUTCOMES, TRIAL_PHASES
from multistep.cli.listing import AGE, AGENT, REASON, Column, Listing, ListOptions, any_of, field_of, list_options, phase_option
from multistep.cli.options import Target, complete_sweeps

_EPILOG = """\b
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
    Column("STEPS", "status.columns.steps"),
    Column("OUTCOME", "status.outcome"),
    Column("SCORE", "status.columns.score"),
    Column("REWARD", "status.reward"),
    Column("FAILURE", "status.columns.failure"),
    Column("AGE", AGE),
    Column("STEP", "status.currentStep", wide=True),
    Column("POD", "status.podName", wide=True),
    Column("NODE", "status.nodeName", wide=True),
    Column("REASON", REASON, wide=True),
)


@click.command("list", epilog=_EPILOG)
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
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """List trials."""
    asyncio.run(_list(Target(kubeconfig, context, options.namespace), sweep, phases, outcomes, options))


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
