"""The `multistep` command, also `kubectl multistep`: the group, and the translation of errors to exit codes.

A command is imported only when it is called, so that --help is fast.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from multistep.cli.exit_codes import Exit, exit_of
from multistep.cli.groups import SuggestingGroup
from multistep.errors import MultistepError
from multistep.version import __version__

COMPLETION_VARIABLE: Final = "_MULTISTEP_COMPLETE"  # the shell's completion script sets it
COMMANDS: Final = {  # by name: module, relative to multistep.cli, and summary
    "init": ("task.init", "Create a new task from a template."),
    "check": ("task.check", "Validate a task and list its steps."),
    "build": ("task.build", "Build the image of a task's environment."),
    "package": ("task.package", "Write the manifests of a trial to stdout."),
    "run": ("trial.run", "Build, submit and follow a trial, and fetch its results."),
    "list": ("manage.list", "List trials."),
    "show": ("manage.show", "Show a trial's steps, rewards and outcome, or a sweep."),
    "logs": ("trial.logs", "Show the output of a trial's phases."),
    "shell": ("trial.shell_and_cp", "Start a shell in a trial's container."),
    "cp": ("trial.shell_and_cp", "Copy files out of a trial's container."),
    "stop": ("manage.stop_and_delete", "Stop trials permanently."),
    "retry": ("manage.retry", "Run a trial without a score again."),
    "delete": ("manage.stop_and_delete", "Delete trials."),
    "regrade": ("regrade", "Verify a trial or a sweep again, without its agent."),
    "results": ("trial.results", "Fetch a trial's results into a directory."),
    "open": ("trial.open", "Open the report of a sweep, or the results of a trial."),
    "verify": ("trial.verify", "Compare fetched results with their evidence."),
    "view": ("view", "Open Harbor's viewer on fetched results."),
    "sweep": ("sweep.commands", "Run tasks x agents x attempts and report the results."),
    "gate": ("gate", "Fail if a sweep scores worse than another: a test for CI."),
    "history": ("history", "Ask about all trials that ever finished."),
    "dataset": ("dataset", "List the datasets of a registry.json, and their tasks."),
    "dashboard": ("dashboard.command", "Show sweeps and trials live in the browser."),
    "agent": ("agent", "List Harbor's agents, and build images of their programs."),
    "doctor": ("doctor.command", "Check the cluster and the installation, and name the fix of each fault."),
    "completion": ("completion", "Print the completion script of a shell."),
    "version": ("main", "Print the version."),
}

_EPILOG = """\b
Examples:
  multistep init my-task
  multistep check examples/hello-multi-step-advanced
  multistep run examples/hello-multi-step-advanced --agent oracle --results out/
  multistep package my-task --agent nop | kubectl apply -f -

\b
Exit codes:
  0  the trial completed without an exception or a failed gate
  1  the trial completed, but a step raised an exception or a gate failed
  2  bad input or usage
  3  the trial failed: it could not be run
  4  the cluster or its results could not be reached
"""


class LazyGroup(SuggestingGroup):
    """A command group that imports each command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        path, _ = COMMANDS[cmd_name]
        module = import_module(f"multistep.cli.{path}")
        # The function of "list" is list_, because list is a builtin.
        command = getattr(module, f"{cmd_name}_" if hasattr(module, f"{cmd_name}_") else cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> None:
        """Run a command, which returns its exit code, or None."""
        try:
            code = super().invoke(ctx)
        except MultistepError as error:
            from multistep.cli.terminal import print_err

            print_err(f"{'' if exit_of(error) is Exit.INTERRUPTED else 'error: '}{error}")
            raise click.exceptions.Exit(exit_of(error)) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(Exit.INTERRUPTED) from None
        if code:
            raise click.exceptions.Exit(code)


@click.version_option(__version__, prog_name="multistep", message="%(prog)s %(version)s")
@click.group(cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def cli() -> None:
    """Run multi-step agent trials in a Kubernetes cluster."""


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(f"multistep {__version__}")


def main() -> None:
    """Run the command line."""
    drop_library_logs()
    cli(prog_name=program_name(sys.argv[0]), complete_var=COMPLETION_VARIABLE)


def drop_library_logs() -> None:
    """Drop log messages of libraries, because errors are reported as exceptions."""
    logging.getLogger().addHandler(logging.NullHandler())


def program_name(path: str) -> str:
    """Return the program's name for messages. kubectl runs the plugin as a file named kubectl-multistep."""
    return "kubectl multistep" if Path(path).name.startswith("kubectl-") else "multistep"
