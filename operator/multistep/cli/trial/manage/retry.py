"""`multistep retry`: runs a trial without a score again, as a new trial."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from multistep.cli.options import kubeconfig_options, namespace_option, trial_argument
from multistep.client.options import Target

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@click.command(epilog=_EPILOG)
@trial_argument
@namespace_option
@kubeconfig_options
def retry(trial: str, namespace: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Run TRIAL again if it has no score."""
    asyncio.run(_retry(Target(kubeconfig, context, namespace), trial))


async def _retry(target: Target, trial: str) -> None:
    from multistep.cli import cluster
    from multistep.cli.sweep.owned_trials import retry_one
    from multistep.cli.terminal import print_err, print_line
    from multistep.cli.trial.manage.retry_trial import retry_alone
    from multistep.client.objects import existing_trial
    from multistep.engine.sweep.trial_manifests import owner_of

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        found = await existing_trial(connected, namespace, trial)
        owner = owner_of(found)
        sweep = await _sweep(connected, namespace, owner) if owner else None
        if sweep is not None:
            await retry_one(connected, namespace, sweep, trial)
            name = sweep["metadata"]["name"]
            print_err(f"trial {trial} runs again in sweep {name}; follow: multistep sweep status --follow {name} -n {namespace}")
            print_line(name)
            return
        name = await retry_alone(connected, namespace, found)
    print_err(f"trial {name} runs instead of {trial}; follow: multistep show --follow {name} -n {namespace}")
    print_line(name)


async def _sweep(connected: Cluster, namespace: str, owner: tuple[str, str]) -> Mapping[str, Any] | None:
    """Return the sweep that owns a trial; None if it was deleted. owner: name and UID of the sweep."""
    from multistep.client.objects import find_sweep

    found = await find_sweep(connected, namespace, owner[0])
    return found if found and found["metadata"]["uid"] == owner[1] else None
