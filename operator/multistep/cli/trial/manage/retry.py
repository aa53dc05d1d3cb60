"""`multistep retry`: runs a trial without a score again, as a new trial."""

from __future__ import annotations

import asyncio

import click

from multistep.cli.options import target_options, trial_argument
from multistep.client.options import Target

_EPILOG = """\b
Examples:
  multistep retry my-task-oracle-x7k2p
  multistep show --follow $(multistep retry my-task-oracle-x7k2p)
  multistep sweep retry nightly --excluded                # all trials of a sweep that have no score

Only a finished trial without a score runs again: one that the infrastructure, the task or a user ended. The first trial stays as it
is; the new one is named after it (-r1, -r2, ...), has the annotation multistep.dev/retry-of, and its name is printed. A trial
of a sweep runs again in its sweep, where its number counts once; the sweep's name is printed then.
"""


@click.command(epilog=_EPILOG)
@trial_argument
@target_options
def retry(trial: str, target: Target) -> None:
    """Run TRIAL again if it has no score."""
    asyncio.run(_retry(target, trial))


async def _retry(target: Target, trial: str) -> None:
    from multistep.cli import cluster
    from multistep.cli.terminal import print_err, print_line, print_warning
    from multistep.client.retry import retry_trial
    from multistep.kube.resources import SWEEPS

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        kind, name = await retry_trial(connected, namespace, trial, print_warning)
    if kind == SWEEPS:
        print_err(f"trial {trial} runs again in sweep {name}; follow: multistep sweep status --follow {name} -n {namespace}")
    else:
        print_err(f"trial {name} runs instead of {trial}; follow: multistep show --follow {name} -n {namespace}")
    print_line(name)
