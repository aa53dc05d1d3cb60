"""Test completion: names that cannot be read from the cluster are not completed, and no error is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem

from multistep.api.trial import harbor_agents
from multistep.api.trial.values import BUILT_IN
from multistep.cli import completion

from .conftest import Invoke

KUBECTL = "from multistep.cli.completion import kubectl_complete; kubectl_complete()"
BASH = "from multistep.cli.main import main; main()"


@pytest.mark.parametrize(
    ("program", "arguments", "wanted"), [(KUBECTL, ["show", ""], ":4\n"), (BASH, [], "\n")], ids=["kubectl", "bash"]
)
def test_without_a_cluster_nothing_is_completed_and_nothing_is_reported(
    tmp_path: Path, program: str, arguments: list[str], wanted: str
) -> None:
    words = {"_MULTISTEP_COMPLETE": "bash_complete", "COMP_WORDS": "multistep show ", "COMP_CWORD": "2"}
    environment = {**os.environ, **words, "KUBECONFIG": str(tmp_path / "none"), "MULTISTEP_COMPLETION_SECONDS": "60"}
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, wanted, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(shell: str, invoke: Invoke) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0 and "_MULTISTEP_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "tasks/a", "--agent", "o"], ["oracle", "openclaw", "opencode", "opencode-v2", "openhands", "openhands-sdk"]),
        (["package", "--agent", "comm"], ["command"]),
        (["sweep", "run", "tasks", "--agent", "nop", "--agent", "claude"], ["claude-code@"]),
        (["sweep", "run", "--agent", "c"], [f"{each}@" for each in harbor_agents.NAMES if each.startswith("c")]),
    ],
)
def test_agents_are_completed_without_the_cluster_and_without_slow_imports(words: list[str], wanted: list[str]) -> None:
    slow = "import sys; slow = {'pydantic', 'aiohttp', 'kopf', 'yaml'} & {*sys.modules}; assert not slow, slow"
    result = subprocess.run(
        [sys.executable, "-c", f"{KUBECTL}; {slow}", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout.split(), result.stderr) == (0, [*wanted, ":4"], "")


def test_names_and_texts_with_control_characters_are_not_completed() -> None:
    hostile = [CompletionItem("a\x1b[2J"), CompletionItem("ab", help="x\x9by")]
    items = [CompletionItem("a"), *hostile, CompletionItem("ac", help="Running")]
    assert [each.value for each in completion._matching(items, "a")] == ["a", "ac"]


def test_the_names_of_built_in_agents_are_those_of_the_api() -> None:
    context, option = click.Context(click.Command("run")), click.Option(["--agent"])
    assert [each.value for each in completion.complete_agents(context, option, "")][: len(BUILT_IN)] == [*BUILT_IN]
