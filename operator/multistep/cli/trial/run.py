"""`multistep run`: its options. run_trial.py has the implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from multistep.cli.groups import TrialCommand
from multistep.cli.options import (
    RunOptions,
    agent_env_option,
    image_options,
    output_option,
    run_options,
    target_options,
    task_argument,
    trial_options,
    var_option,
    verbose_option,
)

_EPILOG = """\b
Examples:
  multistep run my-task --agent oracle
  multistep run my-task --results out/ --agent-env API_KEY -- bash -c 'my-agent < "$MULTISTEP_INSTRUCTION_FILE"'
  multistep run my-task --agent-file agent.py --agent-env-from-secret API_KEY=keys:mine -- --fast
  multistep run my-task --agent claude-code --model anthropic/claude-sonnet-4-5 --key-from-secret keys:anthropic
  multistep run my-task --agent nop --var API_KEY --var MODE=fast -o json | jq .status.rewards
  multistep run my-task --agent nop --from-step deploy --to-step deploy
  multistep run my-task --agent claude-code --model anthropic/claude-sonnet-4-5 --from base:build --key-from-secret keys:anthropic
  multistep run my-task --override-cpus 4 --override-memory-mb 8192
  multistep run my-task --detach && kubectl get mst --watch

The task is validated, its Dockerfile is built (unless there is an image), and the trial is created and followed. Progress goes
to stderr, the table to stdout. The trial and its results stay in the cluster until the trial is deleted; the objects created
for it (the task's files, Secrets) are deleted with it. --var sets values of ${NAME} in task.toml and compose files only; the
agent's process receives --agent-env.

\b
Exit codes:
  0  the trial completed without an exception or a failed gate (or was submitted, with --detach)
  1  the trial completed, but a step raised an exception or a gate failed
  2  bad input or usage
  3  the trial failed: it could not be run
  4  the cluster or its results could not be reached
"""


@click.command(cls=TrialCommand, epilog=_EPILOG)
@task_argument
@click.option("--results", type=click.Path(path_type=Path), metavar="DIR", help="Fetch the results into this new directory.")
@var_option
@agent_env_option
@click.option("--detach", is_flag=True, help="Print the trial's name and exit instead of following it.")
@image_options
@target_options
@verbose_option
@output_option
@trial_options
@run_options
def run(task: Path, results: Path | None, common: RunOptions, **options: Any) -> int:
    """Run a trial of the task in directory TASK and show its outcome."""
    from multistep.cli.trial.run_trial import run_trial
    from multistep.client.submit.trial_manifest import TrialOptions

    return run_trial(task, TrialOptions(**options), common, results)
