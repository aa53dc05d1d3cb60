"""The verbs of the command line on the real cluster: list, shell, cp, delete and open."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.given import Given, Step, trial
from tests.e2e.test_cli import multistep

_PROGRAM = (sys.executable, "-c", "from multistep.cli.main import main; main()")


async def in_shell(text: str, *arguments: str) -> tuple[int, str]:
    """Run a command with a text as stdin; return its exit code and stdout."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*_PROGRAM, *arguments, stdin=pipe, stdout=pipe, stderr=pipe)
    out, _ = await process.communicate(text.encode())
    return process.returncode or 0, out.decode()


async def test_a_kept_trial_is_listed_entered_copied_from_and_deleted(given: Given, tmp_path: Path) -> None:
    manifest = trial(Step("a", solve="#!/bin/sh\necho done > /tmp/notes.txt\n"), podCleanup="Never")
    name, there = manifest["metadata"]["name"], ("-n", given.namespace)
    await given.ended(manifest)
    code, out, _ = await multistep("list", *there, "--phase", "complete", "-o", "json")
    assert (code, [each["metadata"]["name"] for each in json.loads(out)["items"]]) == (0, [name])
    code, out, _ = await multistep("list", *there)
    assert out.splitlines()[0].startswith("NAME") and out.splitlines()[1].startswith(name)

    assert await in_shell("cat /tmp/notes.txt; exit 7\n", "shell", name, *there) == (7, "done\n")
    code, out, err = await multistep("shell", name, *there, "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (code, out, err) == (3, "out\n", "err\n")
    code, _, err = await multistep("cp", f"{name}:/tmp/notes.txt", str(tmp_path / "copied"), *there)
    assert code == 0, err
    assert (tmp_path / "copied" / "notes.txt").read_text() == "done\n"
    code, _, err = await multistep("cp", f"{name}:/tmp/none", str(tmp_path / "none"), *there)
    assert code == 2 and "/tmp/none" in err

    code, out, err = await multistep("open", "--no-browser", name, *there)
    assert code == 0, err
    assert (Path(out.strip()) / "result.json").is_file()

    assert (await multistep("delete", name, *there))[0] == 2  # without a terminal, --yes is required
    assert (await multistep("delete", "--yes", name, *there))[0] == 0
    code, _, err = await multistep("shell", name, *there)
    assert code == 2 and "does not exist" in err


def all_of(leader: int) -> str:
    """Return all that a terminal shows. The kernel may pass the last output on only after the program has ended."""
    shown = b""
    with suppress(OSError):  # EIO after the last output
        while chunk := os.read(leader, 65536):
            shown += chunk
    return shown.decode()


async def test_a_shell_on_a_terminal_is_interactive(given: Given) -> None:
    manifest = trial(Step("a"), podCleanup="Never")
    await given.ended(manifest)
    leader, follower = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM, "shell", manifest["metadata"]["name"], "-n", given.namespace, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    os.write(leader, b"tty; echo size $(stty size | wc -w)\nexit 5\n")
    code = await process.wait()
    shown = await asyncio.to_thread(all_of, leader)
    os.close(leader)
    assert code == 5 and "/dev/pts/" in shown and "size 2" in shown


@pytest.mark.long
async def test_a_trial_whose_pod_is_gone_has_no_shell(given: Given) -> None:
    manifest = trial(Step("a"))
    await given.ended(manifest)
    await given.without_pods(manifest["metadata"]["name"])
    code, _, err = await multistep("shell", manifest["metadata"]["name"], "-n", given.namespace)
    assert code == 2 and "--keep" in err
