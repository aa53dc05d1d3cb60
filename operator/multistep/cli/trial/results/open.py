"""`multistep open`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from multistep.cli.completion import complete_either
from multistep.cli.options import target_options
from multistep.client.options import Target

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
@target_options
def open_(name: str, no_browser: bool, target: Target) -> None:
    """Open the report of a sweep, or the results of a trial, in a browser."""
    from multistep.cli.terminal import print_err, print_line

    path = asyncio.run(_fetched(target, name))
    print_line(str(path))
    if no_browser:
        return
    import webbrowser

    if not webbrowser.open(path.as_uri()):
        print_err("no browser could be started here; open the path above")


async def _fetched(target: Target, text: str) -> Path:
    from multistep.cli import cluster
    from multistep.client.objects import existing_either
    from multistep.kube.resources import SWEEPS

    async with cluster.connect(target) as connected:
        namespace = connected.namespace
        kind, found = await existing_either(connected, namespace, text)
        directory = _directory(found["metadata"])
        if kind == SWEEPS:
            return await _report(target, found["metadata"]["name"], directory)
        return await _results(connected, found, directory)


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


async def _report(target: Target, sweep: str, directory: Path) -> Path:
    from multistep.cli.extras import require_report

    require_report()
    from multistep.cli.sweep.sweep_report import write_report

    path = directory / "report.html"
    await write_report(target, sweep, [str(path)])
    return path


async def _results(connected: Cluster, found: Mapping[str, Any], directory: Path) -> Path:
    from multistep.api.trial.trial import parse_status
    from multistep.cli.trial.results.fetch import fetch_results

    await fetch_results(connected, found["metadata"]["name"], parse_status(found), directory)
    return directory
