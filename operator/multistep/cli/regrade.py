"""`multistep regrade`: creates a trial or sweep that runs the verifiers of an earlier one again, and follows it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from multistep.cli.completion import complete_either
from multistep.cli.exit_codes import Exit
from multistep.cli.options import RunOptions, image_options, judge_options, output_option, run_options, target_options
from multistep.client.options import JudgeOptions, Target

if TYPE_CHECKING:
    from multistep.client.submit.manifests import Submission
    from multistep.client.submit.regrade import Regrade

_EPILOG = """\b
Examples:
  multistep regrade my-task-claude-x7k2p
  multistep regrade my-task-claude-x7k2p --tests fixed/ --results out/
  multistep regrade nightly --task tasks/my-task --name nightly-v2
  multistep regrade nightly --judge openai/gpt-5 --judge-model-env MODEL_NAME --name nightly-gpt-5
  multistep regrade sweep/nightly --detach -o json

The verifiers run again, on the checkpoints that SOURCE stored after its steps; no agent runs. SOURCE must have
run with `checkpoints: {policy: AfterStep, keep: WithResults}`; it does not change. It is the name of a trial or a sweep; trial/NAME
and sweep/NAME distinguish them. A directory of --tests has tests/ and steps/NAME/tests/, as in a task's directory; they
replace those of the task. For a deleted trial whose results are kept, --task names the task. --judge replaces the judge of
SOURCE, whose key and budget stay, unless an option replaces them; the tests may then ask no other model, and `multistep sweep
report` of the new sweep shows how far the two judges agree.

\b
Exit codes:
  0  the trial completed without an exception or a failed gate; the sweep completed, all its trials scored
  1  the trial completed, but a step raised an exception or a gate failed; the sweep completed, some trials are excluded
  2  bad input or usage
  3  the trial or sweep failed: SOURCE has no checkpoint, for example
  4  the cluster or its results could not be reached
"""


@click.command(epilog=_EPILOG)
@click.argument("source", shell_complete=complete_either)
@click.option("--tests", type=click.Path(path_type=Path), metavar="DIR", help="Use the tests of this directory, not the task's.")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="TASK",
    help="Use this version of the whole task; for a sweep of several tasks, of the task of this name.",
)
@click.option("--name", metavar="NAME", help="Name of the new trial or sweep; default: SOURCE-regrade-RANDOM.")
@click.option("--results", type=click.Path(path_type=Path), metavar="DIR", help="Fetch a trial's results into this new directory.")
@click.option("--detach", is_flag=True, help="Print the name and exit instead of following it.")
@judge_options
@image_options
@target_options
@output_option
@run_options
def regrade(
    source: str,
    tests: Path | None,
    tasks: tuple[Path, ...],
    name: str | None,
    results: Path | None,
    judge: JudgeOptions,
    common: RunOptions,
) -> int:
    """Verify the steps of SOURCE, a trial or a sweep, again."""
    from multistep.api.sweep.sweep import SWEEP_KIND
    from multistep.cli.image.images import existing_image
    from multistep.cli.sweep.run_sweep import submit_sweep
    from multistep.cli.trial.run_trial import show_finding, submit_trial, var_options
    from multistep.client.results.fetch import check_directory
    from multistep.client.submit.regrade import Regrade
    from multistep.client.task.task_directory import TaskDirectory
    from multistep.errors import UsageError

    if results:
        check_directory(results)
    if tests and tasks:
        raise UsageError("--tests and --task exclude each other: put the tests into the task's directory")
    if tests and not tests.is_dir():
        raise UsageError(f"--tests: {tests} is not a directory")
    directories = [TaskDirectory.open(each) for each in tasks]
    wanted = Regrade(source, show_finding, var_options, existing_image, common.trial_image, name, tests, directories, judge)
    submission = asyncio.run(_submission(common.target, wanted))
    if submission.main["kind"] != SWEEP_KIND:
        return asyncio.run(submit_trial(submission, common, results))
    if results:
        raise UsageError("--results is for a trial: fetch those of a sweep with `multistep sweep results`")
    ended = asyncio.run(submit_sweep(submission, common))
    return ended if common.detach else max(ended, asyncio.run(_verified(common.target, submission.main["metadata"]["name"])))


async def _submission(target: Target, wanted: Regrade) -> Submission:
    from multistep.cli import cluster

    async with cluster.connect(target) as connected:
        return await wanted.submission(connected)


async def _verified(target: Target, name: str) -> Exit:
    """Return FAULT, and print why, if trials of the regrade verified nothing: they may have the scores of their sources."""
    from multistep.api.common.plural import plural
    from multistep.api.trial.failure_table import REGRADE_IMPOSSIBLE
    from multistep.cli import cluster
    from multistep.cli.terminal import print_err, print_warning
    from multistep.client.objects import find_sweep
    from multistep.client.sweep_trials import counted_rows

    async with cluster.connect(target) as connected:
        found = await find_sweep(connected, connected.namespace, name)
        rows = await counted_rows(connected, found, print_warning) if found else []
    impossible = [each for each in rows if each.reason == REGRADE_IMPOSSIBLE]
    if not impossible:
        return Exit.OK
    print_err(f"error: {len(impossible)} of {plural(len(rows), 'trial')} verified nothing ({REGRADE_IMPOSSIBLE}): the sources'")
    print_err(f"scores, if any, are unchanged; the first: {impossible[0].trial}: {impossible[0].message}")
    return Exit.FAULT
