"""`multistep results`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from multistep.api.common.plural import plural
from multistep.cli.options import target_options, trial_argument
from multistep.client.options import Target

_EPILOG = """\b
Examples:
  multistep results my-task-oracle-x7k2p out/
  multistep results my-task-oracle-x7k2p out/ -n evals && cat out/result.json

DIRECTORY becomes the trial's directory in Harbor's layout: result.json, steps/NAME/{agent,verifier,artifacts}/ and so on.
Nothing but a kubeconfig is needed: the results are read through the API server.
"""


@click.command(epilog=_EPILOG)
@trial_argument
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Write into DIRECTORY although it is not empty.")
@target_options
def results(trial: str, directory: Path, force: bool, target: Target) -> None:
    """Fetch the results of TRIAL into DIRECTORY."""
    from multistep.client.results.fetch import check_directory

    check_directory(directory, force=force)
    asyncio.run(_results(target, trial, directory))


async def _results(target: Target, trial: str, directory: Path) -> None:
    from multistep.api.trial.trial import parse_status
    from multistep.cli import cluster
    from multistep.cli.terminal import bytes_text, print_err, stored_text
    from multistep.cli.trial.results.fetch import fetch_results
    from multistep.client.objects import find_trial
    from multistep.errors import UsageError

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        found = await find_trial(connected, namespace, trial)
        if found is None:
            raise UsageError(
                f"trial {trial!r} does not exist in namespace {namespace!r}: `multistep list -A` lists all. If it was deleted, "
                f"its results may still be on the operator's volume, in {namespace}/{trial}/, but only its status had their "
                "key: ask whoever runs the operator (docs/how-to/operations.md, Results)"
            )
        status = parse_status(found)
        unpacked = await fetch_results(connected, trial, status, directory)
    print_err(f"{plural(unpacked.files, 'file')} ({bytes_text(unpacked.bytes)}) in {directory}")
    if status.results_store:
        print_err(stored_text(status.results_store))
