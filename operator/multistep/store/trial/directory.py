"""The layout of the trial directory on disk, and atomic changes to this directory.

Names at its top that start with a dot are temporary files or internal data, which are neither served nor archived. The functions
block.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from multistep.api.common.safe_paths import leads_out
from multistep.errors import StoreError
from multistep.store.files.file_trees import walk, write_all
from multistep.store.trial.access_tokens import KEY_FILE
from multistep.timestamps import rfc3339

LOG = "trial.log"
ATTEMPTS = "attempts"
SPOOL = ".spool-"  # prefix of a download's temporary file, on file systems without nameless files (O_TMPFILE)
_EXCEPTION = "exception.txt"
_STEPS = "steps"
_MARKER = ".attempt"
_GONE = ".gone"
_REMOVED = ".removed-"
_LITTER = (f"{_REMOVED}*", f"{KEY_FILE}-*", f"{SPOOL}*")  # temporary files at the top of the volume, which ``tidy`` deletes
_MAX_LINE_CHARACTERS = 4096
_PLAIN_NAME = re.compile(r"((steps/[^/\0]+/)?[a-z]|services/[a-z0-9])[a-z0-9_-]*\.[a-z]+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\S+")


def make_directory(path: Path) -> None:
    """Create a directory and its parents, even if another thread deletes empty parents at the same time."""
    for _ in range(5):
        try:
            return path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            continue
    return path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file atomically. Readers see either the old or the new contents, also after a power failure."""
    scratch = path.with_name(f".new-{token_hex(8)}")
    try:
        _write_new(scratch, data, mode)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_to_disk(path: Path) -> None:
    """Flush a file or directory to the disk (fsync)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class TrialDirectory:
    """One trial's directory. ``check`` is called before each visible change, and raises if this process may not write."""

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.check = check

    @contextmanager
    def work(self) -> Iterator[Path]:
        """Return a context with a temporary directory on the results' file system."""
        path = self.path / f".work-{token_hex(8)}"
        make_directory(path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def put(self, path: Path, place: str) -> None:
        """Move a directory to the path ``place`` in the trial's directory, and delete an older directory there."""
        target = self.path / place
        make_directory(target.parent)
        with self.work() as aside:
            self.check()
            if os.path.lexists(target):
                target.rename(aside / "old")
            path.rename(target)

    def start_attempt(self, attempt: int, kept: Sequence[str] = ()) -> None:
        """Start an attempt, and move the previous attempt's results to ``attempts/N/``. trial.log stays. The call is idempotent.

        ``kept`` has the names of the first steps' directories, which stay, because the attempt continues after these steps.
        """
        current = self.attempt()
        if attempt < current:
            raise StoreError(f"attempt {attempt} has finished; the results are those of attempt {current}")
        if attempt == current:
            return
        self.check()
        make_directory(self.path)
        former = self.path / ATTEMPTS / str(current)
        for name in self._names():
            if kept and name == _STEPS:
                for step in sorted({path.name for path in (self.path / _STEPS).iterdir()} - set(kept)):
                    _move(self.path / _STEPS / step, former / _STEPS)
            else:
                _move(self.path / name, former)
        for index in range(len(kept)):
            _rename_notes(self.path, f"-{current}-{index}", f"-{attempt}-{index}")
        write_file(self.path / _MARKER, str(attempt).encode())

    def attempt(self) -> int:
        """Return the number of the attempt whose results are at the directory's top instead of in ``attempts/N/``."""
        try:
            return int((self.path / _MARKER).read_text())
        except FileNotFoundError:
            return 1
        except ValueError:
            raise StoreError(
                f"{self.path / _MARKER} does not contain a number; delete it if the trial has only one attempt"
            ) from None

    def store_step_data(self, what: str, attempt: int, step: int, data: bytes) -> None:
        """Store internal data about a step in a hidden file. ``what`` names the kind of data."""
        self.check()
        make_directory(self.path)
        write_file(self.path / f".{what}-{attempt}-{step}", data)

    def step_data(self, what: str, attempt: int) -> dict[int, bytes]:
        """Return the internal data that ``store_step_data`` stored under the name ``what``, by step index."""
        files = self.path.glob(f".{what}-{attempt}-*")
        return {int(file.name.rpartition("-")[2]): file.read_bytes() for file in files}

    def note(self, name: str, data: bytes) -> None:
        """Append data to a hidden file. After a crash, the last line may be incomplete."""
        self.check()
        fd = os.open(self.path / f".{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def notes(self, name: str) -> bytes:
        """Return the contents of a hidden file without an incomplete last line."""
        try:
            return (self.path / f".{name}").read_bytes().rpartition(b"\n")[0]
        except FileNotFoundError:
            return b""

    def _names(self) -> list[str]:
        kept = (ATTEMPTS, LOG)
        return sorted(path.name for path in self.path.iterdir() if not path.name.startswith(".") and path.name not in kept)

    def finish(self, files: Mapping[str, bytes], directories: Iterable[str]) -> None:
        """Write the files of the whole trial (such as result.json), then flush the whole directory to the disk."""
        self.check()
        make_directory(self.path)
        for place in directories:
            self._ensure(place)
        for name, data in files.items():
            if not _PLAIN_NAME.fullmatch(name):
                raise StoreError(f"{name!r} is not the name of a file of a trial directory")
            self._ensure(name.rpartition("/")[0])
            write_file(self.path / name, self._merged_log(data) if name == LOG else data)
        if _EXCEPTION not in files:
            (self.path / _EXCEPTION).unlink(missing_ok=True)
        self._tidy()
        self._sync_all()

    def _ensure(self, place: str) -> None:
        if leads_out(place):
            raise StoreError(f"{place!r} is not below the trial directory")
        make_directory(self.path / place)

    def _merged_log(self, text: bytes) -> bytes:
        """Return the lines of ``text`` and of trial.log, sorted by time and without duplicates."""
        lines = [*text.decode(errors="replace").splitlines(), *self._log_lines()]
        return "".join(f"{line}\n" for line in sorted(dict.fromkeys(lines), key=_time)).encode(errors="replace")

    def _log_lines(self) -> list[str]:
        try:
            return (self.path / LOG).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def log(self, lines: Iterable[str], now: float) -> None:
        """Append lines to trial.log, except lines whose text the log already has. The call is idempotent."""
        known = {line.partition(" ")[2] for line in self._log_lines()}
        new = [line for line in map(_one_line, lines) if line not in known]
        if not new:
            return
        self.check()
        make_directory(self.path)
        stamp = rfc3339(now, "milliseconds")
        data = "".join(f"{stamp} {line}\n" for line in new).encode(errors="backslashreplace")
        fd = os.open(self.path / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def mark_gone(self, now: float) -> None:
        """Mark the trial as deleted since ``now``. The mark is an empty file with this mtime, which even a full volume can
        store."""
        self.check()
        self._tidy()
        mark = self.path / _GONE
        if self.path.is_dir():
            mark.touch()
            os.utime(mark, (now, now))

    def unmark(self) -> None:
        """Delete the deletion mark."""
        self.check()
        (self.path / _GONE).unlink(missing_ok=True)

    def gone_since(self) -> float | None:
        """Return when the trial was marked as deleted (seconds since the epoch), or None."""
        try:
            return (self.path / _GONE).stat().st_mtime
        except FileNotFoundError:
            return None

    def _tidy(self) -> None:
        """Delete temporary files that a crash left."""
        for path in self.path.glob(".work-*"):
            shutil.rmtree(path, ignore_errors=True)
        for pattern in (".new-*", ".redact-*"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def _sync_all(self) -> None:
        """Flush all results to the disk, because the operator may then delete the pod, which has the only other copy."""
        for entry in walk(self.path, hidden=False):
            if stat.S_ISREG(entry.info.st_mode) or stat.S_ISDIR(entry.info.st_mode):
                fd = entry.open()
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        sync_to_disk(self.path)


def has_results(path: Path) -> bool:
    """Return whether a trial's directory has any file or directory that is not hidden."""
    try:
        return any(not entry.name.startswith(".") for entry in path.iterdir())
    except FileNotFoundError:
        return False


def clear_directory(path: Path, *, but: str) -> None:
    """Delete everything in a trial's directory except the directory ``but``."""
    for entry in path.iterdir():
        if entry.name == but:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def remove_tree(path: Path, root: Path) -> None:
    """Delete a tree below ``root``. Rename it to a hidden name first, so that it disappears at once. Delete empty parents, too."""
    trash = root / f"{_REMOVED}{token_hex(8)}"
    try:
        path.rename(trash)
    except FileNotFoundError:
        return
    for tree in root.glob(f"{_REMOVED}*"):  # these include renamed trees that a crash left
        shutil.rmtree(tree, ignore_errors=True)
    for parent in (path.parent, path.parent.parent):
        try:
            parent.rmdir()
        except OSError:
            return


def delete_leftovers(root: Path, before: float) -> int:
    """Delete temporary files in ``root`` that are older than ``before`` (seconds since the epoch), and return their number."""
    leftovers = [leftover for pattern in _LITTER for leftover in root.glob(pattern) if leftover.lstat().st_mtime < before]
    for leftover in leftovers:
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        elif leftover.is_file():
            leftover.unlink(missing_ok=True)
    return len(leftovers)


def _move(path: Path, directory: Path) -> None:
    """Move a file or directory into a directory, with a number as suffix if its name exists there."""
    make_directory(directory)
    target, number = directory / path.name, 2
    while os.path.lexists(target):
        target, number = directory / f"{path.name}.{number}", number + 1
    path.rename(target)


def _rename_notes(trial: Path, former: str, now: str) -> None:
    """Rename the hidden files with data about a step, so that they belong to another attempt. ``former`` and ``now`` are the old
    and the new suffix of the file names, ``-ATTEMPT-STEP``."""
    for path in trial.glob(f".*{former}"):
        path.rename(path.with_name(path.name.removesuffix(former) + now))


def _one_line(text: str) -> str:
    return " ".join(text.split("\n")).strip()[:_MAX_LINE_CHARACTERS]


def _time(line: str) -> str:
    match = _TIME.match(line)
    return match.group() if match else ""
