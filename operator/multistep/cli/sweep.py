"""`multistep sweep`: the options of its commands. What they do is in the modules that they import."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from .options import (
    Target,
    agent_env_option,
    complete_sweeps,
    image_options,
    kubeconfig_options,
    namespace_option,
    output_option,
    queue_option,
    verbose_option,
)

_EPILOG = """\b
Examples:
  multistep sweep run tasks/ --agent oracle --agent 'mine=./agent.sh --fast' --attempts 5
  multistep sweep status nightly --follow
  multistep sweep report nightly -o nightly.html -o nightly.parquet
  multistep sweep compare nightly yesterday
"""

_RUN_EPILOG = """\b
Examples:
  multistep sweep run examples/hello-multi-step-advanced --agent oracle --agent nop --attempts 3
  multistep sweep run tasks/ --agent 'mine=sh -c "my-agent < $MULTISTEP_INSTRUCTION_FILE"' --parallelism 50 --name nightly
  multistep sweep run sweep.yaml --detach

A DIRECTORY is a task, or holds tasks side by side: all of them. Each task is checked, its Dockerfile built (unless it names an
image), and goes to the cluster with the sweep, which owns it. COMMAND is split as a shell does, but no shell runs it: for
pipes, redirections and variables write 'mine=sh -c "SCRIPT"'. --var gives values to templates in task.toml only; agents
receive --agent-env. A FILE is a manifest with a TrialSweep, and goes there as it is.
Ctrl-C ends the following only; `kubectl delete tsw NAME` ends a sweep and its trials.

\b
Exit codes:
  0    the sweep is Complete, and all of its trials count (or it was submitted, with --detach)
  1    it is Complete, and some trials are excluded (infrastructure, task or user failures)
  2    bad input or usage
  3    it is Failed: it was stopped by one of its limits, or could not be run
  4    the cluster could not be reached
  130  Ctrl-C: the sweep goes on
"""

_STATUS_EPILOG = """\b
Examples:
  multistep sweep status nightly
  multistep sweep status nightly --follow
  multistep sweep status nightly -o json | jq .status.trials

With --follow the exit code tells how the sweep ended, as that of `multistep sweep run`.
"""

_REPORT_EPILOG = """\b
Examples:
  multistep sweep report nightly
  multistep sweep report nightly -o nightly.html
  multistep sweep report nightly -o nightly.html -o nightly.csv -o nightly.parquet
  multistep sweep report nightly -o json | jq '.agents[] | {agent, mean}'

OUTPUT is a file that ends in .html, .csv, .json or .parquet, or one of table (default), html, csv, json, parquet for stdout.
html is one page that needs nothing else; csv and parquet have a row for each trial; json has all of the report, and
`multistep sweep compare` reads it. A sweep that goes on has a report, too.

What counts, and how all numbers are made: docs/statistics.md. This needs Multistep's extra: pip install 'multistep[report]'.
"""

_COMPARE_EPILOG = """\b
Examples:
  multistep sweep compare nightly                       # its agents, each with each
  multistep sweep compare nightly yesterday             # agents of the same name
  multistep sweep compare nightly/mine nightly/oracle
  multistep sweep compare nightly monday.json           # a report of a sweep that is gone

A SIDE is SWEEP, SWEEP/AGENT, or a file that `multistep sweep report -o FILE.json` wrote (FILE.json/AGENT). Two are compared by
the tasks in which both have trials that count; docs/statistics.md says how. This needs Multistep's extra:
pip install 'multistep[report]'.

Exit codes: 0 whatever the verdict, 2 bad input or usage, 4 the cluster could not be reached.
"""


@click.group(epilog=_EPILOG)
def sweep() -> None:
    """Run many tasks with many agents, and say what came out."""


@sweep.command(epilog=_RUN_EPILOG)
@click.argument("sources", nargs=-1, required=True, metavar="FILE|DIRECTORY...", type=click.Path(path_type=Path))
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="AGENT",
    help="oracle, nop, or NAME=COMMAND for a command of your own; as often as there are agents. Default: oracle.",
)
@click.option("--attempts", type=click.IntRange(1, 1000), metavar="N", help="How often each agent works on each task; default: 1.")
@click.option("--parallelism", type=click.IntRange(1, 10_000), metavar="N", help="How many trials at once; default: 10.")
@click.option("--name", metavar="NAME", help="Name of the sweep; default: DIRECTORY-RANDOM.")
@click.option("--timeout-multiplier", type=click.FloatRange(min=0), metavar="X", help="Multiplies every time limit.")
@click.option(
    "--var", "variables", multiple=True, metavar="NAME[=VALUE]", help="A value for ${NAME} in task.toml; stored in a Secret."
)
@agent_env_option
@queue_option
@click.option("--detach", is_flag=True, help="Do not follow the sweep: print its name and leave.")
@image_options
@namespace_option
@kubeconfig_options
@verbose_option
@output_option
def run(
    sources: tuple[Path, ...],
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    **options: Any,
) -> None:
    """Run the tasks in each DIRECTORY, or the sweep in FILE, and follow it to its end."""
    from .sweep_session import SweepSession

    session = SweepSession(sources, Target(kubeconfig, context, namespace), as_json=output == "json", **options)
    if code := session.run():
        raise click.exceptions.Exit(code)


@sweep.command(epilog=_STATUS_EPILOG)
@click.argument("name", metavar="SWEEP", shell_complete=complete_sweeps)
@click.option("-f", "--follow", is_flag=True, help="Follow the sweep until it is over, with progress on stderr.")
@namespace_option
@kubeconfig_options
@output_option
def status(name: str, follow: bool, namespace: str | None, kubeconfig: str | None, context: str | None, output: str) -> None:
    """Show how far SWEEP is, what it came to so far, and when it will end."""
    from .sweep_session import show

    if code := asyncio.run(show(Target(kubeconfig, context, namespace), name, until_over=follow, as_json=output == "json")):
        raise click.exceptions.Exit(code)


@sweep.command(epilog=_REPORT_EPILOG)
@click.argument("name", metavar="SWEEP", shell_complete=complete_sweeps)
@click.option("-o", "--output", "outputs", multiple=True, metavar="OUTPUT", default=["table"], help="See below; several at once.")
@namespace_option
@kubeconfig_options
def report(name: str, outputs: tuple[str, ...], namespace: str | None, kubeconfig: str | None, context: str | None) -> None:
    """Say what the trials of SWEEP came to: a table, a page, or files for machines."""
    from .extras import require_report

    require_report()
    from .sweep_report import write_report

    asyncio.run(write_report(Target(kubeconfig, context, namespace), name, outputs))


@sweep.command(epilog=_COMPARE_EPILOG)
@click.argument("sides", nargs=-1, required=True, metavar="SIDE [SIDE]", shell_complete=complete_sweeps)
@namespace_option
@kubeconfig_options
@output_option
def compare(sides: tuple[str, ...], namespace: str | None, kubeconfig: str | None, context: str | None, output: str) -> None:
    """Say whether there is a real difference between two sweeps, or between agents."""
    from .extras import require_report

    require_report()
    from .sweep_compare import write_comparison

    asyncio.run(write_comparison(Target(kubeconfig, context, namespace), sides, as_json=output == "json"))
