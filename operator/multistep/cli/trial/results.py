"""`multistep results`: fetches a trial's results into a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from multistep.api.common.plural import plural
from multistep.cli.options import connected, trial_argument

if TYPE_CHECKING:
    from multistep.api.trial.status import TrialStatus
    from multistep.client.connection import Cluster
    from multistep.client.results.unpack import Unpacked

_SHOWN: Final = 5  # maximum number of members to name that were not unpacked

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
@connected
async def results(cluster: Cluster, trial: str, directory: Path, force: bool) -> None:
    """Fetch the results of TRIAL into DIRECTORY."""
    from multistep.api.trial.trial import parse_status
    from multistep.cli.terminal import bytes_text, print_err
    from multistep.cli.trial.trial_view import stored_text
    from multistep.client.objects import find_trial
    from multistep.client.results.fetch import check_directory
    from multistep.errors import UsageError

    check_directory(directory, force=force)
    namespace = cluster.namespace
    found = await find_trial(cluster, namespace, trial)
    if found is None:
        raise UsageError(
            f"trial {trial!r} does not exist in namespace {namespace!r}: `multistep list -A` lists all. If it was deleted, "
            f"its results may still be on the operator's volume, in {namespace}/{trial}/, but only its status had their "
            "key: ask whoever runs the operator (docs/how-to/operations.md, Results)"
        )
    status = parse_status(found)
    unpacked = await fetch_results(cluster, trial, status, directory)
    print_err(f"{plural(unpacked.files, 'file')} ({bytes_text(unpacked.bytes)}) in {directory}")
    if status.results_store:
        print_err(stored_text(status.results_store))


async def fetch_results(cluster: Cluster, name: str, status: TrialStatus, directory: Path) -> Unpacked:
    """Fetch and unpack the results. Print what is missing. Raises UsageError if the trial has not finished, StoreError or
    ClusterError if the results cannot be read."""
    from multistep.cli.terminal import print_warning, working
    from multistep.client.results.fetch import download, results_uri

    uri = results_uri(name, status)
    with working(f"fetching results into {directory}"):
        unpacked = await download(cluster, uri, directory)
    warn_left_out(unpacked)
    if not (directory / "result.json").exists():
        print_warning("result.json is missing: an older copy of the results volume was put back; the trial's status is right")
    return unpacked


def warn_left_out(unpacked: Unpacked) -> None:
    """Print the first members of an archive that were not unpacked."""
    from multistep.cli.terminal import print_warning

    for path, why in unpacked.left_out[:_SHOWN]:
        print_warning(f"left out {path!r}: {why}")
    if len(unpacked.left_out) > _SHOWN:
        print_warning(f"left out {len(unpacked.left_out) - _SHOWN} more")
