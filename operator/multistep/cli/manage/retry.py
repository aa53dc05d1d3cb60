"""`multistep retry` and `multistep sweep retry`: request that trials without a score run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from multistep.api.common.plural import plural
from multistep.cli.completion import complete_sweeps
from multistep.cli.options import connected, output_option, trial_argument

if TYPE_CHECKING:
    from multistep.client.connection import Cluster

_EPILOG = """\b
Examples:
  multistep retry my-task-oracle-x7k2p
  multistep show --follow $(multistep retry my-task-oracle-x7k2p)
  multistep sweep retry nightly --excluded                # all trials of a sweep that have no score

Only a finished trial without a score runs again: one that the infrastructure, the task or a user ended. The first trial stays as it
is; the new one is named after it (-r1, -r2, ...), has the annotation multistep.dev/retry-of, and its name is printed. A trial
of a sweep runs again in its sweep, where its number counts once; the sweep's name is printed then.
"""

_SWEEP_EPILOG = """\b
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


@click.command(epilog=_EPILOG)
@trial_argument
@connected
async def retry(cluster: Cluster, trial: str) -> None:
    """Run TRIAL again if it has no score."""
    from multistep.cli.terminal import print_err, print_line, print_warning
    from multistep.client.retry import retry_trial
    from multistep.kube.resources import SWEEPS

    kind, name = await retry_trial(cluster, cluster.namespace, trial, print_warning)
    there = f"{name} -n {cluster.namespace}"
    if kind == SWEEPS:
        print_err(f"trial {trial} runs again in sweep {name}; follow: multistep sweep status --follow {there}")
    else:
        print_err(f"trial {name} runs instead of {trial}; follow: multistep show --follow {there}")
    print_line(name)


@click.command("retry", epilog=_SWEEP_EPILOG)
@click.argument("name", metavar="SWEEP", shell_complete=complete_sweeps)
@click.option("--excluded", is_flag=True, help="Run all trials without a score again. Required.")
@click.option("-f", "--follow", is_flag=True, help="Follow the sweep until it finishes.")
@connected
@output_option
async def retry_sweep(cluster: Cluster, name: str, excluded: bool, follow: bool, output: str) -> int:
    """Run the trials of SWEEP again that have no score."""
    from multistep.cli.sweep.run_sweep import show_sweep
    from multistep.cli.terminal import print_err, print_json, print_line, print_warning
    from multistep.client.objects import existing_sweep
    from multistep.client.retry import retry_excluded
    from multistep.errors import UsageError

    if not excluded:
        raise UsageError("give --excluded, to run the trials without a score again; for one trial: multistep retry TRIAL")
    sweep = await existing_sweep(cluster, cluster.namespace, name)
    retried = await retry_excluded(cluster, cluster.namespace, sweep, print_warning)
    if output == "json" and not follow:
        print_json({"namespace": cluster.namespace, "sweep": name, "retried": retried})
    elif not follow:
        for each in retried:
            print_line(each)
    what = f"{plural(len(retried), 'trial runs', 'trials run')} again" if retried else "no trial is excluded"
    print_err(f"sweep {name}: {what}")
    return await show_sweep(cluster, name, until_finished=True, as_json=output == "json") if follow else 0
