"""`multistep sweep`: its subcommands and their options. Each subcommand imports the module that implements it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multistep.cli.completion import complete_sweep_agents, complete_sweeps
from multistep.cli.groups import SuggestingGroup
from multistep.cli.manage.list import list_sweeps
from multistep.cli.manage.retry import retry_sweep
from multistep.cli.manage.stop_and_delete import delete_sweeps, stop_sweeps
from multistep.cli.options import (
    FiniteRange,
    RunOptions,
    agent_env_option,
    agent_secret_option,
    connected,
    dataset_options,
    hosted_options,
    image_options,
    judge_options,
    output_option,
    queue_option,
    require_report,
    resource_options,
    resume_option,
    run_options,
    target_options,
    var_option,
    verbose_option,
)
from multistep.client.datasets import DatasetOptions
from multistep.client.options import Target

if TYPE_CHECKING:
    from multistep.client.connection import Cluster

_EPILOG = """\b
Examples:
  multistep sweep run tasks/ --agent oracle --agent 'mine=./agent.sh --fast' --attempts 5
  multistep sweep status nightly --follow
  multistep sweep report nightly -o nightly.html -o nightly.parquet
  multistep sweep compare nightly yesterday
  multistep sweep retry nightly --excluded
"""

_RUN_EPILOG = """\b
Examples:
  multistep sweep run examples/hello-multi-step-advanced --agent oracle --agent nop --attempts 3
  multistep sweep run tasks/ --agent 'mine=sh -c "my-agent < $MULTISTEP_INSTRUCTION_FILE"' --parallelism 50 --name nightly
  multistep sweep run tasks/ --agent-file old=agent.sh --agent-file new=agent2.sh --agent-env-from-secret API_KEY=keys:mine
  multistep sweep run -d bench@2.0 --registry https://example.com/registry.json --task 'web-*' --limit 10
  multistep sweep run tasks/ --task 'web-*' --limit 10 --override-cpus 4 --override-memory-mb 8192
  multistep sweep run sweep.yaml --detach

A DIRECTORY is a task, or contains tasks, of which --task, --exclude and --limit select some. Each task is validated, its
Dockerfile is built (unless the task names an image), and its files are uploaded with the sweep, which owns them. An invalid task
is rejected before anything is built. A task whose Dockerfile cannot be built is reported and omitted: the others run, and the
exit code is 1. COMMAND is split as a shell does, but no shell runs it: for pipes, redirections and variables write 'mine=sh -c
"SCRIPT"'. --var sets values of ${NAME} in task.toml and compose files only; agents receive --agent-env. A FILE is a manifest
with a TrialSweep, which is created unchanged.
The operator fetches the tasks of a dataset from git repositories; tasks at local paths are uploaded like a DIRECTORY.
Ctrl-C stops following only; `multistep sweep stop NAME` ends a sweep, `delete` deletes it and its trials.

\b
Exit codes:
  0    the sweep completed and all trials are scored (or it was submitted, with --detach)
  1    the sweep completed, but some trials are excluded (infrastructure, task or user failures), or some tasks are not in it, as
       their images could not be built (with --detach, too)
  2    bad input or usage
  3    the sweep failed: one of its limits stopped it, or it could not be run; or it is suspended as its budget is spent
  4    the cluster could not be reached
  130  Ctrl-C: the sweep continues
"""

_STATUS_EPILOG = """\b
Examples:
  multistep sweep status nightly
  multistep sweep status nightly --follow
  multistep sweep status nightly -o json | jq .status.trials

With --follow the exit codes are those of `multistep sweep run`.
"""

_REPORT_EPILOG = """\b
Examples:
  multistep sweep report nightly
  multistep sweep report nightly -o nightly.html
  multistep sweep report nightly --no-logs -o nightly.html -o nightly.csv -o nightly.parquet
  multistep sweep report nightly -o json | jq '.agents[] | {agent, mean}'
  multistep sweep report nightly --as harbor

OUTPUT is a file that ends in .html, .csv, .json or .parquet, or one of table (default), html, csv, json, parquet for stdout.
html is one page that needs nothing else. Of the first 200 trials without a pass it has the last 4 KiB of what agent and verifier
printed in the steps without a pass, and the failing tests that a verifier left in ctrf.json or junit.xml, unless --no-logs.
A regrade's report has the agreement of its verdicts with its source's.
csv and parquet have a row for each trial; json has all of the report, and `multistep sweep compare` reads it.
An active sweep has a report, too.

docs/reference/statistics.md explains scoring and all numbers. This needs Multistep's extra: pip install 'multistep[report]'.
"""

_RESULTS_EPILOG = """\b
Examples:
  multistep sweep results nightly                # into jobs/nightly/
  multistep sweep results nightly out/ -o json | jq .failed
  multistep sweep results nightly && multistep view

DIRECTORY is a jobs directory as Harbor has it: the sweep is the job DIRECTORY/SWEEP, with config.json, result.json, lock.json and a
directory for each trial, so Harbor's models load it and `harbor view DIRECTORY` shows it. Excluded trials are in a separate
job, SWEEP.excluded, because Harbor before 0.26 counts a trial without a reward as 0; those of single steps are in SWEEP.branches.
Run it again to resume or to fetch newly finished trials: complete trials are not fetched again.

Exit codes: 0 all finished trials are fetched, 2 bad input or usage, 4 some could not be fetched, or the cluster was not reached.
"""

_COMPARE_EPILOG = """\b
Examples:
  multistep sweep compare nightly                       # each pair of its agents
  multistep sweep compare nightly yesterday             # agents of the same name
  multistep sweep compare nightly/mine nightly/oracle
  multistep sweep compare nightly monday.json           # a report of a deleted sweep

A SIDE is SWEEP, SWEEP/AGENT, or a file that `multistep sweep report -o FILE.json` wrote (FILE.json/AGENT). Two are compared by
the tasks in which both have scored trials (docs/reference/statistics.md). This needs Multistep's extra:
pip install 'multistep[report]'.

Exit codes: 0 whatever the verdict, 2 bad input or usage, 4 the cluster could not be reached.
"""


@click.group(cls=SuggestingGroup, epilog=_EPILOG)
def sweep() -> None:
    """Run tasks x agents x attempts and report the results."""


@sweep.command(epilog=_RUN_EPILOG)
@click.argument("sources", nargs=-1, metavar="[FILE|DIRECTORY...]", type=click.Path(path_type=Path))
@click.option("-d", "--dataset", metavar="NAME[@VERSION]", help="Run the tasks of a dataset instead of directories.")
@dataset_options
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="AGENT",
    shell_complete=complete_sweep_agents,
    help="[NAME=]oracle, [NAME=]nop, [NAME=]AGENT@MODEL for an agent of Harbor, or NAME=COMMAND for a custom command; repeatable. "
    "Default: oracle.",
)
@click.option(
    "--agent-file",
    "agent_files",
    multiple=True,
    metavar="[NAME=]SCRIPT",
    help="A local script as an agent, run by its #! line; NAME: default the script's name; repeatable. At most 32 KiB.",
)
@click.option("--attempts", type=click.IntRange(1, 1000), metavar="N", help="Trials per task and agent; default: 1.")
@click.option("--parallelism", type=click.IntRange(1, 10_000), metavar="N", help="Maximum number of active trials; default: 10.")
@click.option(
    "--budget",
    type=FiniteRange(min=0, min_open=True),
    metavar="USD",
    help="Budget of all trials together: US dollars for their model requests. The sweep is suspended before it is exceeded.",
)
@click.option(
    "--find-drop",
    type=FiniteRange(min=0, min_open=True),
    metavar="DROP",
    help="Before the start, tell if the sweep is too small for `multistep gate` to find such a drop of an agent's mean score.",
)
@click.option("--name", metavar="NAME", help="Name of the sweep; default: DIRECTORY-RANDOM.")
@click.option("--timeout-multiplier", type=FiniteRange(min=0), metavar="X", help="Multiply every timeout by X.")
@resource_options
@var_option
@agent_env_option
@agent_secret_option
@hosted_options
@judge_options
@resume_option
@queue_option
@click.option("--detach", is_flag=True, help="Print the sweep's name and exit instead of following it.")
@image_options
@target_options
@verbose_option
@output_option
@run_options
def run(
    sources: tuple[Path, ...],
    dataset: str | None,
    chosen: DatasetOptions,
    name: str | None,
    find_drop: float | None,
    common: RunOptions,
    **options: Any,
) -> int:
    """Run the tasks in each DIRECTORY or of a dataset, or the sweep in FILE, and follow it."""
    from multistep.cli.sweep.run_sweep import SweepSubmission
    from multistep.client.submit.sweep_manifest import SweepOptions

    if find_drop is not None:
        require_report()
    return SweepSubmission(sources, SweepOptions(name or "", **options), replace(chosen, dataset=dataset), common, find_drop).run()


@sweep.command(epilog=_STATUS_EPILOG)
@click.argument("name", metavar="SWEEP", shell_complete=complete_sweeps)
@click.option("-f", "--follow", is_flag=True, help="Follow the sweep until it finishes, with progress on stderr.")
@connected
@output_option
async def status(cluster: Cluster, name: str, follow: bool, output: str) -> int:
    """Show a sweep's progress, results so far and estimated end."""
    from multistep.cli.sweep.run_sweep import show_sweep

    return await show_sweep(cluster, name, until_finished=follow, as_json=output == "json")


@sweep.command(epilog=_REPORT_EPILOG)
@click.argument("name", metavar="SWEEP", shell_complete=complete_sweeps)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="OUTPUT",
    default=["table"],
    help="A file or a format, see below; repeatable.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["harbor"]),
    help="harbor: the counts, means and errors that Harbor 0.26 shows for the sweep's results; -o is table or json.",
)
@click.option("--no-logs", is_flag=True, help="Leave outputs and failing tests out of the html page.")
@connected
async def report(cluster: Cluster, name: str, outputs: tuple[str, ...], form: str | None, no_logs: bool) -> None:
    """Report the results of SWEEP as a table, an HTML page, CSV, JSON or Parquet."""
    if form == "harbor":
        from multistep.cli.sweep.harbor_stats import write_harbor_stats

        await write_harbor_stats(cluster, name, outputs)
    else:
        require_report()
        from multistep.cli.sweep.sweep_report import write_report

        await write_report(cluster, name, outputs, logs=not no_logs)


@sweep.command(epilog=_RESULTS_EPILOG)
@click.argument("name", metavar="SWEEP", shell_complete=complete_sweeps)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default=Path("jobs"))
@connected
@output_option
async def results(cluster: Cluster, name: str, directory: Path, output: str) -> int:
    """Fetch the results of all trials of SWEEP into DIRECTORY (default: jobs), as a Harbor job."""
    from multistep.cli.sweep.sweep_results import write_results

    return await write_results(cluster, name, directory, as_json=output == "json")


@sweep.command(epilog=_COMPARE_EPILOG)
@click.argument("sides", nargs=-1, required=True, metavar="SIDE [SIDE]", shell_complete=complete_sweeps)
@target_options
@output_option
def compare(sides: tuple[str, ...], target: Target, output: str) -> None:
    """Compare two sweeps, or agents, and test whether they differ significantly."""
    require_report()
    from multistep.cli.sweep.compare import write_comparison

    asyncio.run(write_comparison(target, sides, as_json=output == "json"))


for _command in (list_sweeps, retry_sweep, stop_sweeps, delete_sweeps):
    sweep.add_command(_command)
