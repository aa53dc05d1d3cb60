"""Test the installed command line: a wheel in a fresh environment, run directly, by the real kubectl and by a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hack import python_env
from hack.paths import ROOT
from multistep.api.common.base_model import API_VERSION
from tests.e2e.given import Given, Step, trial

BASH = """\
source <(multistep completion bash)
complete_words() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  "$(complete -p multistep | sed 's/.*-F \\([^ ]*\\).*/\\1/')" multistep
  printf '%s\\n' "${COMPREPLY[@]}"
}
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Yield the environment variables of a user who installed the wheel with pipx; none of them names the checkout."""
    directory = tmp_path_factory.mktemp("installed")
    python_env.build_wheel(directory)
    (wheel,) = directory.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
    python = ("--python", str(directory / "venv"))
    python_env.uv(
        "pip", "install", *python, "--only-binary", ":all:", "--require-hashes", "-r", str(ROOT / "requirements/operator.lock")
    )
    python_env.uv("pip", "install", *python, "--no-deps", str(wheel))
    python_env.uv("pip", "check", *python)
    home = {"HOME": str(directory), "KUBECONFIG": os.environ["KUBECONFIG"], "MULTISTEP_COMPLETION_SECONDS": "60"}
    yield {"PATH": f"{directory / 'venv' / 'bin'}:{os.environ['PATH']}", **home}


def printed(installed: Mapping[str, str], *command: str, code: int = 0) -> str:
    """Run a command outside the checkout and return its output."""
    done = subprocess.run(command, env=installed, cwd=installed["HOME"], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout


def test_it_runs_without_a_checkout_and_shows_its_own_name(installed: Mapping[str, str]) -> None:
    where = printed(installed, "python", "-c", "import multistep; print(multistep.__file__)")
    assert where.startswith(installed["HOME"]) and str(ROOT) not in where
    assert printed(installed, "multistep", "--help").startswith("Usage: multistep [")
    assert printed(installed, "kubectl", "multistep", "--help").startswith("Usage: kubectl multistep [")
    assert printed(installed, "kubectl", "multistep", "logs", "--help").startswith("Usage: kubectl multistep logs [")
    assert printed(installed, "multistep", "init", "my-task") == "" or Path(installed["HOME"], "my-task", "task.toml").is_file()
    assert "my-task" in printed(installed, "kubectl", "multistep", "check", "my-task")
    printed(installed, "kubectl", "multistep", "no-such-command", code=2)


def test_commands_that_need_the_extra_name_it_where_it_is_missing(installed: Mapping[str, str]) -> None:
    assert "Usage: multistep sweep report [" in printed(installed, "multistep", "sweep", "report", "--help")
    for command in ("report", "compare"):
        done = subprocess.run(["multistep", "sweep", command, "x"], env=installed, capture_output=True, text=True, check=False)
        assert (done.returncode, "pip install 'multistep[report]'" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_completion_script_for_each_shell(installed: Mapping[str, str], shell: str) -> None:
    assert "_MULTISTEP_COMPLETE" in printed(installed, "multistep", "completion", shell)


async def test_shells_complete_commands_options_trials_sweeps_namespaces_and_steps(
    given: Given, installed: Mapping[str, str]
) -> None:
    """The trial and the sweep stay suspended, because completion needs only their names."""
    waiting = trial(Step("scaffold"), name="complete-me", suspend=True)
    await given.applied(waiting)
    agents, tasks = [{"name": "nop", "agent": {"name": "nop"}}], [{"name": "a", **waiting["spec"]["task"]}]
    spec = {"suspend": True, "tasks": tasks, "agents": agents}
    await given.applied({"apiVersion": API_VERSION, "kind": "TrialSweep", "metadata": {"name": "complete-all"}, "spec": spec})
    other = f"-n {given.namespace}"
    for words, wanted in {
        "multistep lo": "logs",
        "multistep logs --ta": "--tail",
        "multistep logs --phase ver": "verifier",
        f"multistep logs {other} compl": "complete-me",
        "multistep sweep re": "report",
        f"multistep sweep report {other} compl": "complete-all",
        f"multistep show -n {given.namespace[:-1]}": given.namespace,
    }.items():
        assert wanted in printed(installed, "bash", "-c", f"{BASH}complete_words {words}").split(), words
    by_kubectl = printed(installed, "kubectl", "__complete", "multistep", "show", "-n", given.namespace, "compl")
    assert "complete-me" in by_kubectl and by_kubectl.rstrip().endswith(":4")
    assert "logs\t" in printed(installed, "kubectl", "__complete", "multistep", "lo")


def test_without_a_cluster_nothing_is_completed_and_nothing_printed(installed: Mapping[str, str]) -> None:
    config = Path(installed["HOME"], "nowhere")
    config.write_text(Path(installed["KUBECONFIG"]).read_text().replace("server: https://", "server: https://127.0.0.1:9/"))
    nowhere = {**installed, "KUBECONFIG": str(config), "MULTISTEP_COMPLETION_SECONDS": "0.5"}
    assert printed(nowhere, "bash", "-c", f"{BASH}complete_words multistep show compl").split() == []
