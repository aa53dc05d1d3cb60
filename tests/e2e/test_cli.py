"""Test the command line against the real cluster: exit codes, the table, and results byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.given import Given, Step, tree, trial
from tests.support import forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "hello-multi-step-advanced"


async def multistep(*arguments: str) -> tuple[int, str, str]:
    """Run the command line and return its exit code, stdout and stderr."""
    return await asyncio.to_thread(_multistep, arguments)


def _multistep(arguments: Sequence[str]) -> tuple[int, str, str]:
    with TemporaryDirectory() as directory:
        out, err = Path(directory, "out"), Path(directory, "err")
        code = forked.start(forked.COMMAND_LINE, arguments, os.environ, out, err).exit_code()
        return code, out.read_text(), err.read_text()


async def test_run_builds_runs_and_fetches_the_example_in_harbors_layout(given: Given, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    run = ("run", str(EXAMPLE), "--agent", "oracle", "-n", given.namespace, "--results", str(directory))
    code, out, err = await multistep(*run)
    assert code == 0, err
    assert "scaffold" in out and "document" in out and "Complete" in out
    files = tree(directory)
    assert {"result.json", "config.json", "lock.json", "trial.log"} <= files.keys()
    for step in ("scaffold", "implement", "document"):
        assert {f"steps/{step}/agent/oracle.txt", f"steps/{step}/verifier/test-stdout.txt"} <= files.keys()
        assert f"steps/{step}/artifacts/greet.sh" in files and f"steps/{step}/artifacts/manifest.json" in files
    assert "steps/document/artifacts/docs/README.md" in files
    result = json.loads(files["result.json"])
    assert [step["step_name"] for step in result["step_results"]] == ["scaffold", "implement", "document"]
    assert result["verifier_result"]["rewards"]["reward"] == 1


async def test_a_missed_gate_is_exit_code_1_and_distinguished_in_json(given: Given) -> None:
    code, out, err = await multistep("run", str(EXAMPLE), "--agent", "nop", "-n", given.namespace, "-o", "json")
    assert code == 1, err
    shown = json.loads(out)
    assert "min_reward" in json.dumps(shown)


async def test_what_is_stored_is_byte_for_byte_what_was_in_the_pod(given: Given, tmp_path: Path) -> None:
    """The step writes random bytes and their digests; the downloaded files must match."""
    make = "#!/bin/bash\nmkdir -p /tmp/d/e; head -c 3000001 /dev/urandom > '/tmp/d/e/a b'; printf '\\0\\r\\n\\377' > /tmp/d/odd\n"
    sums_script = "cd /tmp/d && sha256sum 'e/a b' odd > /logs/artifacts/sums; ln -s odd link; chmod 751 odd\n"
    manifest = trial(Step("a", solve=make + sums_script), artifacts=[{"source": "/tmp/d"}])
    await given.ended(manifest)
    code, _, err = await multistep("results", manifest["metadata"]["name"], str(tmp_path / "r"), "-n", given.namespace)
    assert code == 0, err
    artifacts = tmp_path / "r" / "steps" / "a" / "artifacts"
    lines = [line.split("  ", 1) for line in (artifacts / "sums").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    assert sums == {name: hashlib.sha256((artifacts / "d" / name).read_bytes()).hexdigest() for name in ("e/a b", "odd")}
    assert (artifacts / "d" / "link").readlink() == Path("odd") and (artifacts / "d" / "odd").stat().st_mode & 0o777 == 0o751


@pytest.mark.long
async def test_agent_env_reaches_the_command_agent_and_a_template_variable_does_not(given: Given, tmp_path: Path) -> None:
    task = tmp_path / "task"
    shutil.copytree(EXAMPLE, task)
    with (task / "task.toml").open("a") as config:
        config.write('\n[solution.env]\nJUDGE = "${JUDGE}"\n')
    agent = ("sh", "-c", 'printf "%s|%s" "$MODE" "$JUDGE" > /logs/artifacts/seen')
    values = ("--var", "JUDGE=verifiers", "--agent-env", "MODE=two words")
    results = ("--results", str(tmp_path / "out"), "-n", given.namespace)
    code, _, err = await multistep("run", str(task), *values, *results, "--no-verify", "--", *agent)
    assert code == 0, err
    assert (tmp_path / "out/steps/scaffold/artifacts/seen").read_text() == "two words|"


async def test_a_missing_namespace_is_reported_before_the_image_is_built(given: Given, tmp_path: Path) -> None:
    task = tmp_path / "task"
    shutil.copytree(EXAMPLE, task)
    (task / "environment/Dockerfile").write_text("FROM localhost/nothing-to-build-from:1\n")
    for command in (("run",), ("sweep", "run")):
        code, _, err = await multistep(*command, str(task), "-n", f"{given.namespace}-none")
        assert code == 2 and f"namespace '{given.namespace}-none' does not exist" in err, err
        assert "building" not in err


@pytest.mark.long
async def test_an_error_of_several_lines_is_shown_once_with_its_lines(given: Given, tmp_path: Path) -> None:
    """A setup script prints the error: its output is in the status. Agents' output, which may include keys, never is."""
    setup = "#!/bin/sh\nprintf 'Traceback:\\n  line 1\\nValueError: no\\n'; exit 3\n"
    config = "[environment]\ndocker_image = 'debian:bookworm-slim'\n[[steps]]\nname = 'a'\n"
    texts = {"instruction.md": "do it", "workdir/setup.sh": setup, "tests/test.sh": "#!/bin/sh\n"}
    for name, text in {"task.toml": config, **{f"steps/a/{name}": text for name, text in texts.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code, out, err = await multistep("run", str(tmp_path), "--name", "raises", "--agent", "nop", "-n", given.namespace)
    assert code == 1, err
    assert "setup.sh exited with status 3:\n  Traceback:\n    line 1\n  ValueError: no\n" in out
    assert (out + err).count("Traceback") == 1
    assert f"more: multistep logs raises --step a --phase setup -n {given.namespace}\n" in out
    code, out, err = await multistep("logs", "raises", "--step", "a", "--phase", "setup", "-n", given.namespace)
    assert (code, out) == (0, "Traceback:\n  line 1\nValueError: no\n"), err


@pytest.mark.long
async def test_bad_input_is_exit_code_2_and_a_failed_trial_3(given: Given, tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text("[[steps]]\nname = 'a/b'\n")
    code, _, err = await multistep("run", str(tmp_path), "--agent", "oracle", "-n", given.namespace)
    assert code == 2 and "steps[0].name" in err
    missing = ("--image", "localhost/none:1", "--agent", "oracle", "-n", given.namespace)
    code, out, _ = await multistep("run", str(EXAMPLE), *missing)
    assert code == 3 and "localhost/none:1" in out
