"""Fetches a trial's results into a directory, and reports progress and what is missing."""

from __future__ import annotations

from pathlib import Path

from multistep.api.trial.status import TrialStatus
from multistep.cli.terminal import print_warning, working
from multistep.client.connection import Cluster
from multistep.client.results.fetch import download, results_uri
from multistep.client.results.unpack import Unpacked

_SHOWN = 5


async def fetch_results(cluster: Cluster, name: str, status: TrialStatus, directory: Path) -> Unpacked:
    """Fetch and unpack the results. Raises UsageError if the trial has not finished, StoreError or ClusterError if the results
    cannot be read."""
    uri = results_uri(name, status)
    with working(f"fetching results into {directory}"):
        unpacked = await download(cluster, uri, directory)
    warn_left_out(unpacked)
    if not (directory / "result.json").exists():
        print_warning("result.json is missing: an older copy of the results volume was put back; the trial's status is right")
    return unpacked


def warn_left_out(unpacked: Unpacked) -> None:
    """Print the first members of an archive that were not unpacked."""
    for path, why in unpacked.left_out[:_SHOWN]:
        print_warning(f"left out {path!r}: {why}")
    if len(unpacked.left_out) > _SHOWN:
        print_warning(f"left out {len(unpacked.left_out) - _SHOWN} more")
