"""Test --agent-file: a local script as the command agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multistep.client.submit.agent_choice import MAX_BYTES, script_command

from .conftest import Invoke
from .fakes import CliCluster
from .test_sweep_run import GOOD, made


def started(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a trial runs it, and return the result. Check that the script leaves no temporary files."""
    temporary = script.parent / "tmp"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(script_command(script, arguments), env=env, capture_output=True, text=True, check=False)
    assert list(temporary.iterdir()) == []
    return done


@pytest.mark.parametrize(
    "text",
    [
        f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\nsys.exit(3)\n",
        f"#!/usr/bin/env -S {sys.executable} -B\nimport sys\nprint(sys.argv[1:])\nsys.exit(3)\n",
        "#!/bin/sh\nprintf '[%s' \"'$1'\"; printf ', %s' \"'$2'\" \"''\"; echo ]; exit 3\n",
        "printf '[%s' \"'$1'\"; printf ', %s' \"'$2'\" \"''\"; echo ]; exit 3",
    ],
)
def test_a_script_runs_by_its_shebang_with_its_arguments_and_its_status(tmp_path: Path, text: str) -> None:
    (tmp_path / "agent").write_text(text)
    done = started(tmp_path / "agent", "a $HOME 'b'".replace("'", ""), "%s*", "")
    assert (done.stdout, done.returncode) == ("['a $HOME b', '%s*', '']\n", 3), done.stderr


def test_a_script_of_the_maximum_size_runs(tmp_path: Path) -> None:
    start = "#!/bin/sh\necho ok #"
    (tmp_path / "agent").write_text(start + "x" * (MAX_BYTES - len(start)))
    assert started(tmp_path / "agent").stdout == "ok\n"


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        (b"#!" + b"x" * MAX_BYTES, "has more than 32 KiB, the limit"),
        (b" \n", "is empty"),
        (b"#!/bin/sh\r\ntrue\r\n", "has CRLF line endings"),
        (b"\x7fELF\xff", "is not a script: it is not UTF-8 text"),
        (b"#!/bin/sh\n\0", "is not a script: it has a NUL byte"),
        (None, "No such file or directory"),
    ],
)
def test_what_is_no_script_is_reported_with_its_name(
    task: Path, invoke: Invoke, cluster: CliCluster, data: bytes | None, reported: str
) -> None:
    script = task.parent / "agent"
    if data is not None:
        script.write_bytes(data)
    result = invoke("run", task, "--agent-file", script)
    assert result.exit_code == 2 and cluster.objects == {}
    assert f"error: --agent-file {script}" in result.stderr and reported in result.stderr


def test_a_trial_gets_the_script_and_its_arguments(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    script = task.parent / "agent.sh"
    script.write_text("#!/bin/sh\necho $1\n")
    result = invoke("run", task, "--agent-file", script, "--agent-env-from-secret", "KEY=keys:mine", "--", "--fast")
    assert result.exit_code == 0, result.stderr
    agent = cluster.of("MultiStepTrial")[0]["spec"]["agent"]
    assert (agent["name"], agent["command"]) == ("command", script_command(script, ["--fast"]))
    assert agent["command"][3:] == ["agent.sh", "#!/bin/sh\necho $1\n", "--fast"]
    assert agent["env"] == [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "mine"}}}]


def test_a_script_beside_another_agent_is_refused(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    result = invoke("run", task, "--agent-file", "x", "--agent", "nop")
    assert result.exit_code == 2 and "--agent nop and --agent-file exclude each other" in result.stderr


def test_scripts_are_agents_of_a_sweep_with_variables_of_secrets(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [GOOD]
    for name in ("My_agent.py", "other.sh"):
        (task.parent / name).write_text(f"#!/usr/bin/env python3\n# {name}\n")
    files = ("--agent-file", task.parent / "My_agent.py", "--agent-file", f"new={task.parent / 'other.sh'}")
    result = invoke("sweep", "run", task, *files, "--agent-env-from-secret", "KEY=keys:mine")
    assert result.exit_code == 0, result.stderr
    agents = made(cluster)["spec"]["agents"]
    assert [each["name"] for each in agents] == ["my-agent", "new"]
    assert [each["agent"]["command"][3:] for each in agents] == [
        ["My_agent.py", "#!/usr/bin/env python3\n# My_agent.py\n"],
        ["other.sh", "#!/usr/bin/env python3\n# other.sh\n"],
    ]
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "mine"}}}]
    assert [each["agent"]["env"] for each in agents] == [env, env] and cluster.of("Secret") == []
