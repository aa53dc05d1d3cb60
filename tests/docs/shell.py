"""Run a documentation page's commands in one bash, so that directory, variables and background processes are kept."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

COMMAND_SECONDS: Final = 1400.0  # a bit less than the test's timeout: on a busy machine, installing a program takes long
MAX_SHOWN: Final = 6000  # number of characters of an output that are kept: its last ones


class Shell:
    """A running bash that receives one command at a time. scratch: directory for scripts and outputs of the commands."""

    def __init__(self, process: asyncio.subprocess.Process, scratch: Path, kubeconfig: Path) -> None:
        self._process = process
        self._scratch = scratch
        self._kubeconfig = kubeconfig
        self._count = 0

    @classmethod
    async def start(cls, workdir: Path, scratch: Path, env: Mapping[str, str], kubeconfig: Path) -> Self:
        process = await asyncio.create_subprocess_exec(
            *("bash", "--noprofile", "--norc"),
            cwd=workdir,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, scratch, kubeconfig)

    async def run(self, command: str) -> tuple[int | None, str]:
        """Run a command; return its exit code (None if it timed out or ended the shell) and its stdout and stderr."""
        self._count += 1
        script, printed = self._scratch / f"{self._count}.sh", self._scratch / f"{self._count}.out"
        script.write_text(command + "\n")
        assert self._process.stdin and self._process.stdout
        # Reset KUBECONFIG, because a page may export the kubeconfig of `make deploy`, whose default namespace all tests share.
        report = f"export KUBECONFIG={self._kubeconfig}; echo $multistep_code"
        line = f"set -o pipefail; . {script} </dev/null >{printed} 2>&1 3>&-; multistep_code=$?; set +o pipefail; {report}\n"
        self._process.stdin.write(line.encode())
        reported = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(COMMAND_SECONDS):
                reported = await self._process.stdout.readline()
        reply_text = printed.read_bytes().decode(errors="replace") if printed.exists() else ""
        return (int(reported) if reported.strip().isdigit() else None), reply_text[-MAX_SHOWN:]

    async def end(self) -> None:
        """Kill the shell and its background processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
