"""Implements Harbor's BaseEnvironment for the trial's environment, through sessions with the environment's runner (guest.py)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from multistep_host import transfer
from multistep_host.frames import GuestError, RefusedError
from multistep_host.guest import Command, CommandResult, Guest

MAX_DOWNLOAD_BYTES = 512 << 20
_CANNOT_START = 126  # exit code of a shell and of `docker exec` for a command that cannot be started
_NOT_FOUND = 127
_START_ERRORS = {"NoSuchCommand": _NOT_FOUND, "NoSuchUser": _CANNOT_START, "BadCwd": _CANNOT_START, "Permission": _CANNOT_START}
_SIGKILL = 9


class GuestEnvironment(BaseEnvironment):
    """The trial's environment, with the interface that Harbor's agents use.

    The runner writes uploaded files with the rights of PID 1, as Harbor's Docker environment does, so every directory can be a
    target. The owner of the files is the user whom the operator's admission names.
    """

    def __init__(self, trial: str, directory: Path, workdir: str | None) -> None:
        """Create the object. `directory` is Harbor's trial directory on the agent host."""
        self.guest = Guest()
        self.exit_code: int | None = None  # the exit code of the last command
        self.before: Callable[[str], Awaitable[None]] | None = None  # is called with each command before it runs
        self._path = ""
        paths = TrialPaths(trial_dir=directory)
        paths.mkdir()
        super().__init__(
            environment_dir=directory,
            environment_name=trial,
            session_id=f"{trial}__env",
            trial_paths=paths,
            task_env_config=EnvironmentConfig(workdir=workdir or None),
        )

    def configure(self, env: Mapping[str, str], workdir: str | None, path: str = "") -> None:
        """Set the default variables and working directory of commands. `path` is a directory to put before PATH, or "" for none."""
        self._persistent_env = dict(env)
        self._path = path
        self.task_env_config.workdir = workdir or None

    @staticmethod
    def type() -> str:
        """Return the name under which Harbor knows this implementation of BaseEnvironment."""
        return "multistep"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """No optional capability, so that Harbor uses none."""
        return EnvironmentCapabilities()

    def _validate_definition(self) -> None:
        """Do nothing, because the operator has validated the definition."""

    async def start(self, force_build: bool) -> None:
        """Do nothing, because the operator has started the environment."""

    async def stop(self, delete: bool) -> None:
        """Do nothing, because the operator stops the environment."""

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command with bash, as Harbor 0.26's Docker environment does.

        Raises:
            RuntimeError: the command exceeded timeout_sec, the runner failed to run it, or the connection to the runner failed.
        """
        if self.before is not None:
            await self.before(command)
        who = self._resolve_user(user)
        wanted = Command(
            argv=("bash", "-c", f'export PATH="{self._path}:$PATH"\n{command}' if self._path else command),
            user="" if who is None else str(who),
            cwd=cwd or self.task_env_config.workdir or "",
            env={name: str(value) for name, value in (self._merge_env(env) or {}).items()},
            timeout=timeout_sec,
        )
        try:
            result = _exec_result(await self.guest.execute(wanted), timeout_sec)
        except RefusedError as refusal:
            return ExecResult(stdout="", stderr=str(refusal), return_code=_CANNOT_START)
        self.exit_code = result.return_code
        return result

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Upload a file."""
        target = Path(target_path)
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(transfer.pack_file, archive, Path(source_path), target.name)
            await self.guest.upload(archive, str(target.parent))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Upload the contents of a directory."""
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(transfer.pack_directory, archive, Path(source_dir))
            await self.guest.upload(archive, str(target_dir))

    async def upload_files(self, source_dir: Path, files: list[Path], target_dir: str) -> None:
        """Upload `files` of `source_dir` to the same relative paths below `target_dir`."""
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(transfer.pack_files, archive, source_dir, files)
            await self.guest.upload(archive, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Download a file.

        Raises:
            RuntimeError: the path is not a file, or is larger than MAX_DOWNLOAD_BYTES, or the transfer failed.
        """
        with tempfile.TemporaryFile() as archive:
            await self.guest.download(str(source_path), "file", archive.write, MAX_DOWNLOAD_BYTES)
            await asyncio.to_thread(transfer.unpack_file, archive, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Download the contents of a directory into `target_dir`, and overwrite existing files.

        Raises:
            RuntimeError: the path is not a directory, or is larger than MAX_DOWNLOAD_BYTES, or the transfer failed.
        """
        await self.download_tree(str(source_dir), Path(target_dir))

    async def download_tree(self, source: str, target: Path, keep: Collection[Path] = ()) -> set[Path]:
        """Download a directory as `download_dir` does, without overwriting the files in `keep`. Return the paths of the written
        files."""
        with tempfile.TemporaryFile() as archive:
            await self.guest.download(source, "directory", archive.write, MAX_DOWNLOAD_BYTES)
            return await asyncio.to_thread(transfer.unpack_directory, archive, target, keep)


def _exec_result(done: CommandResult, timeout_sec: float | None) -> ExecResult:
    phase: Mapping[str, Any] = done.phase
    if error := phase.get("error"):
        if error["code"] not in _START_ERRORS:
            raise GuestError(f"the environment's runner could not run a command: {error['message']}")
        return ExecResult(stdout=done.stdout, stderr=done.stderr + error["message"], return_code=_START_ERRORS[error["code"]])
    if phase.get("timedOut"):
        raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
    code = phase.get("exitCode")
    if code is None:
        code = 128 + (phase.get("signal") or _SIGKILL)
    return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=code)
