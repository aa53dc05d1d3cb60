"""Completion of names: what cannot be read from the cluster is not completed, and nothing disturbs the user's command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
