"""`multistep check`: validates a task and lists its steps."""

from __future__ import annotations

from pathlib import Path

import click

from multistep.cli.exit_codes import Exit
from multistep.cli.options import output_option, task_argument

_EPILOG = """\b
Examples:
  multistep check my-task
  multistep check --strict my-task
  multistep check my-task -o json | jq '.problems[], .warnings[] | {place, step, message}'

Each problem and warning starts with its place, FILE:LINE, and the name of its step. Warnings are about what has no effect,
such as a misspelt key, and about likely mistakes: scripts without a shebang or with CRLF line endings, a workdir that the
Dockerfile does not name, an empty instruction, a missing solution, a timeout of 0, rewards without the key reward or no reward
at all.

\b
Exit codes:
  0  the task can be run (with --strict: and there are no warnings)
  1  with --strict: the task can be run, but there are warnings
  2  the task has problems, or bad usage
"""


@click.command(epilog=_EPILOG)
@task_argument
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@output_option
def check(task: Path, strict: bool, output: str) -> int:
    """Validate the task in directory TASK and list its steps."""
    from multistep.cli.task.check_view import report_view
    from multistep.cli.terminal import print_json, print_out
    from multistep.client.task.check_task import examine
    from multistep.client.task.task_directory import TaskDirectory

    directory = TaskDirectory.open(task)
    report = examine(directory.bundle(), directory.directory_name, mistakes=True)
    if output == "json":
        print_json(report.to_json())
    else:
        print_out(report_view(report))
    if not report.ok:
        return Exit.BAD_INPUT
    return Exit.FAULT if strict and report.warnings else Exit.OK
