"""An environment for Harbor's classes that runs their commands in a directory, with no program but a few that handle files."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbor.environments.base import ExecResult
from harbor.models.task.config import EnvironmentConfig

# A path that a command names, wherever it starts a word: below the directory it is harmless. URLs, and paths of /dev, stay.
_ABSOLUTE = re.compile(r"(?<![\w./~}*:$\\-])/(?!dev/)(?=[A-Za-z])")
_TOOLS = (
    *("base64", "basename", "bash", "cat", "chmod", "cp", "cut", "dirname", "env", "find", "grep", "head", "id", "install", "ln"),
    *("ls", "mkdir", "mktemp", "mv", "printf", "rm", "sed", "sh", "sleep", "sort", "tail", "tee", "touch", "tr", "uname"),
)
# Every other program succeeds, reads what a pipe sends, and prints a version; fx prints what `fx status` prints. A program that
# left a pipe unread would end its writer by SIGPIPE, or not, depending on which one is faster.
_START = """\
command_not_found_handle() {
  if [ -p /dev/stdin ]; then cat > /dev/null; fi
  if [ "$1" = fx ]; then echo '{"build_channel": "dev", "build_revision": "1"}'; else echo 2.1.330; fi
}
"""
_PRESENT = "#!/bin/sh\necho 2.1.330\n"  # opencode-v2 looks for its program
_SECONDS = 20


class Sandbox:
    """The environment at `root`. HOME is its home directory; commands that fail, fail silently. asked: the commands, with their
    variables, and the uploaded files; an agent may remove a file before its step ends."""

    default_user: str | int | None = None
    session_id = "sandbox"
    task_env_config = EnvironmentConfig()

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.home = root / "home"
        for directory in ("home", "bin", "tmp", "app", "logs/agent", "installed-agent"):
            (root / directory).mkdir(parents=True, exist_ok=True)
        for name in _TOOLS:
            if program := shutil.which(name):
                (root / "bin" / name).symlink_to(program)
        (root / "start").write_text(_START)
        (root / "bin/opencode2").write_text(_PRESENT)
        (root / "bin/opencode2").chmod(0o755)

    async def exec(
        self, command: str, cwd: str | None = None, env: Mapping[str, str] | None = None, timeout_sec: int | None = None, **_: Any
    ) -> ExecResult:
        self.asked.append(f"{env or ''} {command}")
        own = {"HOME": str(self.home), "PATH": str(self.root / "bin"), "BASH_ENV": str(self.root / "start")}
        directory = self.place(cwd or "/app")
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", self._below(command)),
            cwd=directory if directory.is_dir() else self.root,
            env={**{name: self._below(value) for name, value in (env or {}).items()}, **own},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            output = (await asyncio.wait_for(process.communicate(), _SECONDS))[0]
        except TimeoutError:
            os.killpg(process.pid, 9)
            output = b""
        return ExecResult(stdout=output.decode(errors="replace").replace(str(self.root), ""), stderr="", return_code=0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = self.place(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source_path, target)
        self.asked.append(target.read_bytes().decode(errors="replace"))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self.place(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copyfile(self.place(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self.place(source_dir), target_dir, dirs_exist_ok=True)

    def place(self, path: str) -> Path:
        """Return where a path of the environment is on this machine."""
        return self.root / str(path).removeprefix(str(self.root)).lstrip("/")

    def files(self) -> dict[str, str]:
        """Return the contents of all files that agents wrote, by their paths in the environment."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            inside = path.relative_to(self.root).as_posix()
            if path.is_file() and not path.is_symlink() and not inside.startswith("bin/") and inside != "start":
                found["/" + inside] = path.read_bytes().decode(errors="replace").replace(str(self.root.parent), "")
        return found

    def _below(self, text: str) -> str:
        return _ABSOLUTE.sub(f"{self.root}/", text)
