"""A case: a Harbor task with ``trial.json`` (a partial Harbor TrialConfig) and ``expected.json`` (Harbor's outcome)."""

from __future__ import annotations

import gzip
import io
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from multistep.sources.task.bundle import Bundle, BundleEntry, tar_chunks

from .options import Options

TRIAL_FILE: Final = "trial.json"
EXPECTED_FILE: Final = "expected.json"
_OWNER_WRITE = 0o200
# Directories and links that a checkout may lack, by case name. Git does not store empty directories, and if the file system does
# not support links, git creates a plain file that contains the link's target.
_EMPTY_DIRECTORIES: Final = {"workdir-empty": "steps/a/workdir"}
_LINK_TARGETS: Final = {"workdir-symlink": "real.txt", "load-link-out-of-task": "/etc/passwd"}


class CaseError(Exception):
    """The case is invalid; the message states why."""


@dataclass(frozen=True)
class Packed:
    """A task, packed as a bundle. restored: paths of directories and links that the checkout lacked and that were added."""

    data: bytes
    restored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One case. table: its parsed task.toml, {} if unreadable."""

    directory: Path
    options: Options
    expected: Mapping[str, Any]
    table: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the case's name, which is the name of its directory."""
        return self.directory.name

    @property
    def title(self) -> str:
        """Return the name as valid Unicode."""
        return os.fsencode(self.name).decode(errors="replace")

    @property
    def is_refusal(self) -> bool:
        """Return whether the task is expected to be rejected."""
        return bool(self.expected["load_error"])

    @property
    def declared(self) -> tuple[str, ...]:
        """Return the names of the task's steps in order; () for a single-step task or an unreadable one."""
        steps = self.table.get("steps")
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            return ()
        return tuple(str(step.get("name")) for step in steps)

    @property
    def names_image(self) -> bool:
        """Return whether the task names an image, which may be missing from this cluster."""
        environment = self.table.get("environment")
        return isinstance(environment, dict) and bool(environment.get("docker_image"))

    def extra_instructions(self) -> list[str]:
        """Return the extra instructions in Harbor 0.26's order: first the files that trial.json lists, then the texts in it."""
        return [*map(self._text, self.options.extra_instruction_paths), *self.options.extra_instructions]

    def _text(self, path: str) -> str:
        place = self.directory / path
        if not place.resolve().is_relative_to(self.directory.resolve()):
            raise CaseError(f"{TRIAL_FILE}: extra_instruction_paths: {path!r} is not in the case's directory")
        try:
            return place.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CaseError(f"{TRIAL_FILE}: extra_instruction_paths: {path!r}: {error}") from error

    def packed(self) -> Packed:
        """Return the task as a bundle, without the case's two JSON files. Add the directories and links that the checkout lacks."""
        entries = {path: _writable(entry) for path, entry in Bundle.from_directory(self.directory).entries.items()}
        for name in (TRIAL_FILE, EXPECTED_FILE):
            entries.pop(name, None)
        lost = _lost(self.name, entries)
        entries |= lost
        out = io.BytesIO()
        with gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as stream:
            for chunk in tar_chunks((path, entries[path]) for path in sorted(entries)):
                stream.write(chunk)
        return Packed(out.getvalue(), tuple(lost))


def _lost(case: str, entries: Mapping[str, BundleEntry]) -> dict[str, BundleEntry]:
    found = {}
    if (directory := _EMPTY_DIRECTORIES.get(case)) and directory not in entries:
        found[directory] = BundleEntry("dir")
    if target := _LINK_TARGETS.get(case):
        files = (path for path, entry in entries.items() if entry.kind == "file" and entry.data == target.encode())
        found |= {path: BundleEntry("link", 0o777, target=target) for path in files}
    return found


def _writable(entry: BundleEntry) -> BundleEntry:
    """Return the entry with write permission for the owner, which a read-only copy of the cases lacks and git does not store."""
    return replace(entry, mode=entry.mode | _OWNER_WRITE)


def is_case(directory: Path) -> bool:
    """Return whether a directory is a case."""
    return directory.is_dir() and any((directory / name).is_file() for name in (TRIAL_FILE, EXPECTED_FILE))


def find_cases(directory: Path) -> list[Path]:
    """Return the directories of all cases in a directory, sorted by name."""
    return sorted(filter(is_case, directory.iterdir()))


def read_case(directory: Path) -> Case:
    """Read a case. Raise CaseError if it is invalid or trial.json has an unknown key."""
    expected = _json(directory / EXPECTED_FILE)
    if not isinstance(expected, dict) or "load_error" not in expected or not (expected["load_error"] or "trial" in expected):
        raise CaseError(f"{EXPECTED_FILE} must be an object with load_error and, unless that is set, trial")
    try:
        options = Options.model_validate(_json(directory / TRIAL_FILE))
    except ValidationError as error:
        raise CaseError("\n".join(f"{TRIAL_FILE}: {_problem(each)}" for each in error.errors())) from None
    return Case(directory, options, expected, _table(directory / "task.toml"))


def _problem(error: ErrorDetails) -> str:
    output = "this program does not know the key" if error["type"] == "extra_forbidden" else error["msg"]
    return f"{'.'.join(map(str, error['loc']))}: {output}"


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CaseError(f"{file.name}: {error}") from error


def _table(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # the operator probably rejects the task, which is what such a case tests
