"""`multistep init`: creates a task from a template, a working task with comments on its options."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from multistep.api.common.plural import plural
from multistep.errors import InvalidTask, UsageError

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
    from multistep.cli.terminal import print_err, print_line

    names = [each.strip() for each in steps.split(",")]
    scaffold(directory, names)
    print_line(str(directory))
    print_err(f"created a task with {plural(len(names), 'step')}; next: multistep check {shlex.quote(str(directory))}")


_ORGANISATION: Final = "example"

_TASK: Final = """\
# A multi-step task. All keys: docs/reference/task-format.md. `multistep check` reports errors and unknown keys.
schema_version = "1.4"

# How the trial's reward is computed: "mean" of the rewards of the steps that ran, or "final": the last step's reward.
multi_step_reward_strategy = "mean"

# Collected after every step, together with all files in /logs/artifacts.
artifacts = ["/app/notes.txt"]

[task]
name = %(name)s # org/name
description = ""

[environment] # built once from environment/Dockerfile, shared by all steps
workdir = "/app"
memory_mb = 512
# cpus = 1 # as memory_mb: request and limit alike, so a node must have as much free
# env = { MODE = "fast", API_KEY = "${API_KEY}" } # for every process; ${NAME} is given by `multistep run --var NAME`

# [verifier.env] # for every step's tests, never for the agent
# EXPECTED = "value"
"""

_STEP: Final = """
[[steps]]
name = %(name)s
%(gate)s

[steps.agent]
timeout_sec = 600.0

[steps.verifier] # each step has its own timeout: it does not inherit [verifier] timeout_sec
timeout_sec = 60.0
"""

_GATE: Final = "min_reward = 1.0 # below it, the later steps do not run; a table gates several keys: { correctness = 0.8 }"
_LAST: Final = "# min_reward: a gate on the last step would stop nothing"

_DOCKERFILE: Final = """\
FROM debian:bookworm-slim
# Install here what agent and tests need: nothing is installed later.
WORKDIR /app
"""

_INSTRUCTION: Final = """\
Add the line `%(name)s: done` to `notes.txt` in the current directory. Keep the lines that are there.
`example-%(number)s.txt` shows the form.
"""

_EXAMPLE: Final = "something: done\n"

_TEST: Final = """\
#!/bin/bash
# Runs in WORKDIR after the agent. It must write a reward, also when the work is bad; its exit status does not matter.
# A number goes into reward.txt. For several keys write an object of numbers into reward.json instead.
. /tests/helpers.sh
reward=0
has_line %(line)s && reward=1
echo "$reward" > /logs/verifier/reward.txt
"""

_HELPERS: Final = """\
# Shared by the steps' test.sh: tests/ of the task is uploaded to /tests, then the step's tests/ over it.

# Whether notes.txt has exactly this line.
has_line() {
    grep -qxF -- "$1" /app/notes.txt
}
"""

_SOLUTION: Final = """\
#!/bin/bash
# What the oracle agent runs, as the agent's user in WORKDIR.
set -euo pipefail
echo %(line)s >> notes.txt
"""


def scaffold(directory: Path, steps: Sequence[str]) -> None:
    """Write a task with these steps into a new or empty directory. Raises UsageError if a step's name is invalid or the directory
    is not empty."""
    _check_steps(steps)
    files = task_files(directory.resolve().name, steps)
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(f"{directory} exists and is not an empty directory: choose another name")
        for path, text in files.items():
            file = directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755 if path.endswith(".sh") else 0o644)
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror or error}") from error


def task_files(name: str, steps: Sequence[str]) -> dict[str, str]:
    """Return the contents of the new task's files by path. name: name of the task's directory."""
    files = {
        "task.toml": _config(name, steps),
        "environment/Dockerfile": _DOCKERFILE,
        "tests/helpers.sh": _HELPERS,
    }
    for number, step in enumerate(steps, start=1):
        values = {"name": step, "number": str(number), "line": shlex.quote(f"{step}: done")}
        files |= {
            f"steps/{step}/instruction.md": _INSTRUCTION % values,
            f"steps/{step}/workdir/example-{number}.txt": _EXAMPLE,
            f"steps/{step}/tests/test.sh": _TEST % values,
            f"steps/{step}/solution/solve.sh": _SOLUTION % values,
        }
    return files


def _config(name: str, steps: Sequence[str]) -> str:
    head = _TASK % {"name": json.dumps(f"{_ORGANISATION}/{_package(name)}")}
    gates = [*[_GATE] * (len(steps) - 1), _LAST]
    tables = [_STEP % {"name": _toml(step), "gate": gate} for step, gate in zip(steps, gates, strict=True)]
    return head + "".join(tables)


def _check_steps(steps: Sequence[str]) -> None:
    """Check the steps' names by the rules of task.toml. Raises UsageError if a name is invalid."""
    from multistep.api.task.task_toml import parse_task

    try:
        parse_task("".join(f"[[steps]]\nname = {_toml(step)}\n" for step in steps))
    except InvalidTask as error:
        raise UsageError(f"--steps {','.join(steps)}: {error}") from error


def _package(name: str) -> str:
    """Convert a directory's name into a valid last part of task.name."""
    return re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]+", "-", name)).strip("-._") or "task"


def _toml(text: str) -> str:
    """Return the text as a TOML basic string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
