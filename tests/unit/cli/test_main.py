"""Test the command group: help, lazy imports, and exit codes of errors."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from multistep.cli.exit_codes import Exit, Interrupted, exit_of
from multistep.cli.main import COMMANDS, LazyGroup, cli
from multistep.client.watch import Gone
from multistep.errors import (
    ClusterError,
    Conflict,
    InvalidSpec,
    InvalidTask,
    MultistepError,
    NotFound,
    SourceError,
    StoreError,
    Unavailable,
    UsageError,
)
from multistep.version import __version__

from .conftest import Invoke

_CONTEXT = click.Context(cli)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (InvalidTask("x"), 2),
        (InvalidSpec("x"), 2),
        (SourceError("x"), 2),
        (NotFound("x"), 2),
        (Conflict("x"), 2),
        (ClusterError("forbidden", status=403), 2),
        (ClusterError("unauthorized", status=401), 4),
        (Gone("x"), 3),
        (Unavailable("x"), 4),
        (StoreError("x"), 4),
        (Interrupted("x"), 130),
    ],
)
def test_errors_have_exit_codes(error: MultistepError, code: int) -> None:
    assert exit_of(error) == code


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_exists_and_has_help(name: str) -> None:
    command = LazyGroup().get_command(_CONTEXT, name)
    assert command is not None and command.help and command.name == name


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "version"])
def test_every_command_shows_examples(name: str, invoke: Invoke) -> None:
    shown = invoke(name, "--help")
    assert shown.exit_code == 0
    assert f"multistep {name}" in shown.output and "Examples:" in shown.output


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'pydantic', 'aiohttp', 'kubernetes', 'rich', 'yaml', 'kopf'}"
    modules = ", ".join(f"multistep.cli.{each}" for each in ["main", *(module for module, _ in COMMANDS.values())])
    text = f"import sys, {modules}; sys.exit(str({heavy} & set(sys.modules) or ''))"
    ended = subprocess.run(
        [sys.executable, "-c", text], env={"PYTHONPATH": "operator"}, capture_output=True, text=True, check=False
    )
    assert ended.stderr.strip() == ""


def test_an_unknown_command_is_bad_usage(invoke: Invoke) -> None:
    assert invoke("frobnicate").exit_code == Exit.BAD_INPUT


def test_version(invoke: Invoke) -> None:
    assert invoke("version").stdout == f"multistep {__version__}\n"


def test_control_c_is_130(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("multistep.client.task.task_directory.TaskDirectory.open", interrupt)
    assert invoke("check", ".").exit_code == 130


@pytest.mark.parametrize("group", ["sweep", "agent", "dataset"])
def test_a_group_lists_its_commands_with_whole_summaries_and_suggests_names(group: str, invoke: Invoke) -> None:
    shown = invoke(group, "--help").output
    assert "..." not in shown.partition("Commands:")[2].partition("Examples:")[0]
    assert "Did you mean" in invoke(group, {"sweep": "stats", "agent": "bild", "dataset": "lst"}[group]).output


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["get", "trials"], "list"), (["describe", "x"], "show"), (["job", "start"], "sweep"), (["sweep", "get"], "list")],
)
def test_a_command_of_kubectl_or_harbor_is_answered_with_its_name_here(words: list[str], meant: str, invoke: Invoke) -> None:
    result = invoke(*words)
    assert result.exit_code == 2 and f"Did you mean {meant}?" in result.output
