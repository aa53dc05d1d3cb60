"""`multistep view`: Harbor's viewer on fetched results."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from multistep.cli.completion import complete_sweeps
from multistep.cli.options import target_options
from multistep.client.options import Target
from multistep.errors import UsageError

_EPILOG = """\b
Examples:
  multistep view nightly            # fetch sweep nightly into jobs/, then open the viewer on jobs/
  multistep view jobs/ --port 9000
  multistep view                    # the same as: multistep view jobs/

The viewer is Harbor's, `harbor view`: the program on the PATH or beside this one. It needs Python 3.12 or newer:
pip install 'multistep[view]', or uv tool install harbor. It serves on this machine only, until Ctrl-C. The averages of its tables
are Harbor's: this command prints what they leave out, which depends on Harbor's version.
"""

_FIRST_WITH_VALID_REWARDS: Final = (0, 26)
_NUMBERS: Final = {
    True: "its averages leave out trials whose reward is not valid after an exception (docs/reference/failures.md), and its errors "
    "count the exceptions of steps, too",
    False: "its averages count a trial without a reward as 0, and its errors count the exceptions of trials, not those of steps",
}


@click.command(epilog=_EPILOG)
@click.argument("source", metavar="[SWEEP|DIRECTORY]", default="jobs", shell_complete=complete_sweeps)
@click.option("--port", metavar="PORT[-PORT]", default="8080-8089", help="Port, or a range of ports.", show_default=True)
@click.option(
    "--jobs",
    type=click.Path(path_type=Path),
    default=Path("jobs"),
    metavar="DIRECTORY",
    help="Directory into which a SWEEP is fetched.",
    show_default=True,
)
@target_options
def view(source: str, port: str, jobs: Path, target: Target) -> int:
    """Open Harbor's viewer on a sweep, or on a DIRECTORY of fetched sweeps."""
    harbor = find_harbor()
    if Path(source).is_dir():
        jobs = jobs_directory(Path(source))
    elif source == "jobs":
        raise UsageError("jobs is not a directory here: `multistep sweep results SWEEP` fetches a sweep into it, or name a sweep")
    else:
        code = asyncio.run(_fetch(target, source, jobs))
        if code:
            return code
    from multistep.cli.terminal import print_err

    print_err(
        f"opening {meaning(harbor_version(harbor))}; the score of an agent (metric score) is that of `multistep sweep report`"
    )
    return _run([harbor, "view", str(jobs), "--jobs", "--port", port])


async def _fetch(target: Target, sweep: str, jobs: Path) -> int:
    from multistep.cli import cluster
    from multistep.cli.sweep.sweep_results import write_results

    async with cluster.connect(target) as connected:
        return await write_results(connected, sweep, jobs, as_json=False)


def find_harbor() -> str:
    """Return the path of Harbor's program: beside this Python, or on the PATH. Raises UsageError if the program does not exist."""
    found = shutil.which("harbor", path=str(Path(sys.executable).parent)) or shutil.which("harbor")
    if found is None:
        raise UsageError(
            "view needs Harbor's program `harbor`, which is not on the PATH: pip install 'multistep[view]' (Python 3.12 or newer), "
            "or uv tool install harbor"
        )
    return found


def harbor_version(program: str) -> str:
    """Return what ``harbor --version`` prints, "" if it prints no version."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\d+\.\d+\S*", done.stdout)
    return found[0] if found and done.returncode == 0 else ""


def meaning(version: str) -> str:
    """Return the name of this version of Harbor, and what its viewer's numbers mean. version: "" if it is unknown."""
    if (numbers := re.match(r"(\d+)\.(\d+)", version)) is None:
        return "Harbor's viewer, of an unknown version; from Harbor 0.26 on " + _NUMBERS[True]
    return f"the viewer of Harbor {version}: {_NUMBERS[(int(numbers[1]), int(numbers[2])) >= _FIRST_WITH_VALID_REWARDS]}"


def jobs_directory(directory: Path) -> Path:
    """Return the directory if it is a jobs directory, or its parent if it is a job. Raises UsageError if it is neither."""
    if any(directory.glob("*/lock.json")) and not (directory / "lock.json").exists():
        return directory  # a jobs directory: the jobs below it have a lock.json
    if any(directory.glob("*/lock.json")) and (directory / "config.json").exists():
        return directory.absolute().parent  # a job: the trials below it have a lock.json
    raise UsageError(
        f"{directory} has no jobs: name a directory that `multistep sweep results SWEEP DIRECTORY` wrote to, not that of a trial"
    )


def _run(command: Sequence[str]) -> int:
    """Run the viewer until it exits. Ctrl-C also reaches the viewer. Return the exit code, 0 after Ctrl-C."""
    with subprocess.Popen(command) as viewer:
        try:
            return viewer.wait()
        except KeyboardInterrupt:
            return viewer.wait() and 0
