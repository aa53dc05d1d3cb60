"""`multistep init`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from multistep.api.common.plural import plural

_EPILOG = """\b
Examples:
  multistep init my-task
  multistep init tasks/parser --steps scaffold,implement,document

\b
Next:
  multistep check my-task                    validates the task
  multistep run my-task --agent oracle       runs the solution: every reward should be 1
  multistep run my-task --agent nop          does nothing: every reward should be 0

The new task runs unchanged: each step asks for a line in a file, tests for it and has a solution. Replace these by your own.
"""


@click.command(epilog=_EPILOG)
@click.argument("directory", metavar="NAME", type=click.Path(path_type=Path))
@click.option("--steps", default="first,second", show_default=True, metavar="A,B,...", help="Names of the steps, in order.")
def init(directory: Path, steps: str) -> None:
    """Create a task from a template in the new directory NAME."""
    from multistep.cli.task.scaffold import scaffold
    from multistep.cli.terminal import print_err, print_line

    names = [each.strip() for each in steps.split(",")]
    scaffold(directory, names)
    print_line(str(directory))
    print_err(f"created a task with {plural(len(names), 'step')}; next: multistep check {shlex.quote(str(directory))}")
