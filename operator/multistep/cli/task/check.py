"""`multistep check`."""

from __future__ import annotations

from pathlib import Path

import click

from multistep.cli.exits import Exit
from multistep.cli.options import output_option, task_argument

_EPILOG = """\b
Examples:
  multistep check my-task
  multistep check my-task -o json | jq .problems

Exits with 2 if the task has problems. Warnings are about what has no effect, such as a misspelt key.
"""


@click.command(epilog=_EPILOG)
@task_argument
@output_option
def check(task: Path, output: str) -> None:
    """Validate the task in directory TASK and list its steps."""
    from multistep.cli.task.examine import examine
    from multistep.cli.task.task_directory import TaskDirectory
    from multistep.cli.terminal import print_json, print_out, report_view

    directory = TaskDirectory.open(task)
    report = examine(directory.bundle(), directory.directory_name)
    if output == "json":
        print_json(report.to_json())
    else:
        print_out(report_view(report))
    if not report.ok:
        raise click.exceptions.Exit(Exit.BAD_INPUT)
