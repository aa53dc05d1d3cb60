"""A task's directory on this machine: its bundle, its name, and whether its image must be built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from multistep.api.task.task_toml import toml_table
from multistep.errors import InvalidTask, UsageError
from multistep.sources.task.bundle import Bundle, digest_of, pack_directory


@dataclass(frozen=True)
class TaskDirectory:
    """A directory with a task.toml, which may be invalid."""

    path: Path
    table: Mapping[str, Any]
    """The parsed task.toml; {} if it is not valid TOML."""
    toml_error: str = ""
    """Why task.toml is not valid TOML; "" if it is."""

    @classmethod
    def open(cls, path: Path) -> TaskDirectory:
        """Open a task directory. Raises UsageError if the path is not a directory with a task.toml."""
        if not path.is_dir():
            raise UsageError(f"{path} is not a directory: name the directory of a task, the one with task.toml in it")
        file = path / "task.toml"
        if not file.is_file():
            raise UsageError(f"{path} has no task.toml: name the directory of a task")
        try:
            return cls(path.resolve(), toml_table(file.read_text(encoding="utf-8")))
        except (InvalidTask, UnicodeDecodeError) as error:
            return cls(path.resolve(), {}, str(error))

    @property
    def directory_name(self) -> str:
        """Return the directory's name, the default of task.name."""
        return self.path.name

    @property
    def name(self) -> str:
        """Return the last part of task.name, or the directory's name if task.name is unset."""
        table = self.table.get("task")
        name = table.get("name") if isinstance(table, Mapping) else None
        return name.rsplit("/", 1)[-1] if isinstance(name, str) and name else self.directory_name

    @property
    def environment(self) -> Path:
        """Return the directory from which the environment's image is built."""
        return self.path / "environment"

    @property
    def needs_build(self) -> bool:
        """Report whether the image must be built: a Dockerfile exists, and task.toml names no image."""
        table = self.table.get("environment")
        named = isinstance(table, Mapping) and table.get("docker_image")
        return not named and (self.environment / "Dockerfile").is_file()

    @cached_property
    def packed(self) -> bytes:
        """Return the bundle: the packed task."""
        return pack_directory(self.path)

    @property
    def digest(self) -> str:
        """Return the bundle's digest."""
        return digest_of(self.packed)

    def bundle(self) -> Bundle:
        """Return the opened bundle. Raises SourceError if it exceeds the operator's size limits."""
        return Bundle.from_archive(self.packed, self.digest)
