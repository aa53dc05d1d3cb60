"""`multistep open`: opens the report of a sweep, or the results of a trial, in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from multistep.cli.completion import complete_either
from multistep.cli.options import connected, require_report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from multistep.client.connection import Cluster

_EPILOG = """\b
Examples:
  multistep open nightly                       # the report of a sweep, in the browser
  multistep open my-task-oracle-x7k2p          # the results of a trial
  multistep open --no-browser nightly          # print only where it is

Writes the report of a sweep, or fetches the results of a trial, into its own directory below the cache
($XDG_CACHE_HOME/multistep, or ~/.cache/multistep), prints the path, and opens it with the desktop's browser. If a trial and a sweep
have the same name, write trial/NAME or sweep/NAME. A report needs Multistep's extra: pip install 'multistep[report]'.
"""


@click.command("open", epilog=_EPILOG)
@click.argument("name", metavar="NAME", shell_complete=complete_either)
@click.option("--no-browser", is_flag=True, help="Only print the path.")
@connected
async def open_(cluster: Cluster, name: str, no_browser: bool) -> None:
    """Open the report of a sweep, or the results of a trial, in a browser."""
    from multistep.cli.terminal import print_err, print_line

    path = await _fetched(cluster, name)
    print_line(str(path))
    if no_browser:
        return
    import webbrowser

    if not webbrowser.open(path.as_uri()):
        print_err("no browser could be started here; open the path above")


async def _fetched(cluster: Cluster, text: str) -> Path:
    """Write the report of the sweep, or fetch the results of the trial, and return the path to open."""
    from multistep.api.trial.trial import parse_status
    from multistep.cli.trial.results import fetch_results
    from multistep.client.objects import existing_either
    from multistep.kube.resources import SWEEPS

    kind, found = await existing_either(cluster, cluster.namespace, text)
    name, directory = found["metadata"]["name"], _directory(found["metadata"])
    if kind != SWEEPS:
        await fetch_results(cluster, name, parse_status(found), directory)
        return directory
    require_report()
    from multistep.cli.sweep.sweep_report import write_report

    await write_report(cluster, name, [str(directory / "report.html")])
    return directory / "report.html"


def _directory(metadata: Mapping[str, Any]) -> Path:
    """Return the cache directory of a trial or sweep. The UID in its name distinguishes objects that reuse a name."""
    import os
    from pathlib import Path

    from multistep.errors import UsageError

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multistep" / "open"
    path = cache / f"{metadata['namespace']}-{metadata['name']}-{metadata['uid'][:8]}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: set $XDG_CACHE_HOME to a directory that can be written") from error
    return path
