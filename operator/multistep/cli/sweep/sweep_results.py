"""`multistep sweep results`: fetches all trials of a sweep as a job in Harbor's layout."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from rich.text import Text

from multistep.api.common.plural import plural
from multistep.cli.exit_codes import Exit
from multistep.cli.terminal import Following, bytes_text, clean, print_err, print_json, print_warning
from multistep.client.connection import Cluster
from multistep.client.objects import existing_sweep
from multistep.client.results.fetch_sweep import Fetched, SweepFetch
from multistep.client.watch import beside

_LINE_SECONDS: Final = 10.0
_SHOWN: Final = 5


async def write_results(cluster: Cluster, name: str, jobs: Path, *, as_json: bool) -> Exit:
    """Fetch a sweep's trials into a jobs directory, and report progress and what is missing. Raises UsageError if the sweep does
    not exist, and the errors of ``SweepFetch``."""
    fetch = SweepFetch(cluster, await existing_sweep(cluster, cluster.namespace, name), jobs)
    with Following(lambda: Text(_progress(fetch.done))) as following:
        async with beside(_lines(following, fetch.done)):
            await fetch.run(print_warning)
    if as_json:
        print_json(vars(fetch.done))
    _report(fetch.done)
    return Exit.UNREACHABLE if fetch.done.failed else Exit.OK


async def _lines(following: Following, fetched: Fetched) -> None:
    while True:
        await asyncio.sleep(_LINE_SECONDS)
        following.line(_progress(fetched))


def _progress(fetched: Fetched) -> str:
    done = fetched.present + fetched.fetched + len(fetched.failed) + len(fetched.no_results)
    return f"{done} of {fetched.trials - len(fetched.unfinished)} trials, {bytes_text(fetched.bytes)} fetched"


def _report(fetched: Fetched) -> None:
    there = f", {fetched.present} were there already" if fetched.present else ""
    files = f"{plural(fetched.files, 'file')}, {bytes_text(fetched.bytes)}"
    print_err(f"fetched {plural(fetched.fetched, 'trial')} ({files}){there}")
    print_err(f"harbor jobs: {', '.join(fetched.jobs)}; open them: multistep view {fetched.directory}")
    if left_out := fetched.left_out:
        print_warning(f"left out {plural(left_out, 'file')} whose names or kinds are impossible here")
    for text, names in (("not finished: fetch again later", fetched.unfinished), ("without results", fetched.no_results)):
        if names:
            shown = f"{', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
            print_err(f"{plural(len(names), 'trial')} {text}: {shown}")
    for name, why in list(fetched.failed.items())[:_SHOWN]:
        print_err(f"error: {name}: {clean(why)}")
    if failed := len(fetched.failed):
        print_err(f"error: could not fetch {plural(failed, 'trial')}; the same command resumes")
