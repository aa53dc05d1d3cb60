"""`multistep regrade`: its options. regrade.py has the implementation."""

from __future__ import annotations

from pathlib import Path

import click

from multistep.cli.options import complete_either, image_options, kubeconfig_options, namespace_option, output_option
from multistep.client.options import Target

_EPILOG = """\b
Examples:
  multistep regrade my-task-claude-x7k2p
  multistep regrade my-task-claude-x7k2p --tests fixed/ --results out/
  multistep regrade nightly --task tasks/my-task --name nightly-v2
  multistep regrade sweep/nightly --detach -o json

The verifiers run again, on the checkpoints that SOURCE stored after its steps; no agent and no model runs. SOURCE must have
run with `checkpoints: {policy: AfterStep, keep: WithResults}`; it does not change. It is the name of a trial or a sweep; trial/NAME
and sweep/NAME distinguish them. A directory of --tests has tests/ and steps/NAME/tests/, as in a task's directory; they
replace those of the task. For a deleted trial whose results are kept, --task names the task.

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
@image_options
@namespace_option
@kubeconfig_options
@output_option
def regrade(
    source: str,
    tests: Path | None,
    tasks: tuple[Path, ...],
    name: str | None,
    results: Path | None,
    *,
    detach: bool,
    image: str | None,
    runner_in_image: bool,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    output: str,
) -> None:
    """Verify the steps of SOURCE, a trial or a sweep, again."""
    from multistep.cli.regrade.regrade import Request

    code = Request(
        source=source,
        target=Target(kubeconfig, context, namespace),
        tests=tests,
        tasks=tasks,
        name=name,
        image=image,
        runner_in_image=runner_in_image,
        results=results,
        detach=detach,
        as_json=output == "json",
    ).run()
    if code:
        raise click.exceptions.Exit(code)
