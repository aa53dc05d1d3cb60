"""The trial directory on disk: where things are, and how they are put there in one move.

What begins with a dot at its top is work in progress or a marker, and is neither served nor archived. Blocking code.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from ..errors import StoreError
from .access import KEY_FILE
from .tree import walk, write_all

LOG = "trial.log"
ATTEMPTS = "attempts"
SPOOL = ".spool-"  # begins the name that a download has for a moment, where files cannot be nameless from the start
_EXCEPTION = "exception.txt"
_MARKER = ".attempt"
_GONE = ".gone"
_REMOVED = ".removed-"
_LITTER = (f"{_REMOVED}*", f"{KEY_FILE}-*", f"{SPOOL}*")  # at the top of the volume
_MAX_LINE_CHARACTERS = 4096
_PLAIN_NAME = re.compile(r"(steps/[^/\0]+/)?[a-z][a-z0-9_-]*\.[a-z]+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\S+")


def make(path: Path) -> None:
    """mkdir -p, while another thread may be removing parents that are empty."""
    for _ in range(5):
        try:
            return path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            continue
    return path.mkdir(parents=True, exist_ok=True)


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file as a whole: readers see the old one or the new one, also after a power failure."""
    scratch = path.with_name(f".new-{token_hex(8)}")
    try:
        _write_new(scratch, data, mode)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def sync(path: Path) -> None:
    """Have a file or directory on the disk, not only on its way there."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class TrialDirectory:
    """One trial's directory. check: called before each change that can be seen; raises if this process may not make it."""

    def __init__(self, path: Path, check: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.check = check

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A new directory beside the results, on the same disk, gone afterwards."""
        path = self.path / f".work-{token_hex(8)}"
        make(path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def put(self, made: Path, place: str) -> None:
        """Move a directory to its place, out of which an older one goes first."""
        target = self.path / place
        make(target.parent)
        with self.work() as aside:
            self.check()
            if os.path.lexists(target):
                target.rename(aside / "old")
            made.rename(target)

    def begin(self, attempt: int) -> None:
        """Make attempt the current one; what the former left moves to ``attempts/N/``. trial.log goes on."""
        current = self.attempt()
        if attempt < current:
            raise StoreError(f"attempt {attempt} is over; the results are at attempt {current}")
        if attempt == current:
            return
        self.check()
        make(self.path)
        for name in self._names():
            _move(self.path / name, self.path / ATTEMPTS / str(current))
        write(self.path / _MARKER, str(attempt).encode())

    def attempt(self) -> int:
        """The number of the attempt whose results are at the top."""
        try:
            return int((self.path / _MARKER).read_text())
        except FileNotFoundError:
            return 1
        except ValueError:
            raise StoreError(f"{self.path / _MARKER} holds no number; delete it if the trial has one attempt only") from None

    def keep(self, what: str, attempt: int, step: int, data: bytes) -> None:
        """Keep something about a step that is no result: nobody else reads it, and it goes with the trial."""
        self.check()
        make(self.path)
        write(self.path / f".{what}-{attempt}-{step}", data)

    def kept(self, what: str, attempt: int) -> dict[int, bytes]:
        """All of one kind, by step."""
        found = self.path.glob(f".{what}-{attempt}-*")
        return {int(each.name.rpartition("-")[2]): each.read_bytes() for each in found}

    def note(self, name: str, data: bytes) -> None:
        """Append to a hidden file. A crash may leave the end of it cut."""
        self.check()
        fd = os.open(self.path / f".{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def noted(self, name: str) -> bytes:
        """What was appended to it, without a last line that was cut."""
        try:
            return (self.path / f".{name}").read_bytes().rpartition(b"\n")[0]
        except FileNotFoundError:
            return b""

    def _names(self) -> list[str]:
        kept = (ATTEMPTS, LOG)
        return sorted(each.name for each in self.path.iterdir() if not each.name.startswith(".") and each.name not in kept)

    def finish(self, files: Mapping[str, bytes], directories: Iterable[str]) -> None:
        """Write the trial's own files and see that everything is on the disk."""
        self.check()
        make(self.path)
        for place in directories:
            self._ensure(place)
        for name, data in files.items():
            if not _PLAIN_NAME.fullmatch(name):
                raise StoreError(f"{name!r} is no file of a trial directory")
            write(self.path / name, self._merged_log(data) if name == LOG else data)
        if _EXCEPTION not in files:
            (self.path / _EXCEPTION).unlink(missing_ok=True)
        self._tidy()
        self._sync_all()

    def _ensure(self, place: str) -> None:
        if place.startswith("/") or ".." in place.split("/"):
            raise StoreError(f"{place!r} is not below the trial directory")
        make(self.path / place)

    def _merged_log(self, text: bytes) -> bytes:
        """Lines in the order of their times, those that were appended meanwhile among them; none twice."""
        lines = [*text.decode(errors="replace").splitlines(), *self._log_lines()]
        return "".join(f"{line}\n" for line in sorted(dict.fromkeys(lines), key=_time)).encode(errors="replace")

    def _log_lines(self) -> list[str]:
        try:
            return (self.path / LOG).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def log(self, lines: Iterable[str], now: float) -> None:
        """Add lines to trial.log; not one whose text is there already, since a repeated call says the same again."""
        known = {line.partition(" ")[2] for line in self._log_lines()}
        new = [line for line in map(_one_line, lines) if line not in known]
        if not new:
            return
        self.check()
        make(self.path)
        stamp = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = "".join(f"{stamp} {line}\n" for line in new).encode(errors="backslashreplace")
        fd = os.open(self.path / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
        finally:
            os.close(fd)

    def mark_gone(self, now: float) -> None:
        """Put the time into a mark, which is an empty file so that a full volume most likely takes it."""
        self.check()
        self._tidy()
        mark = self.path / _GONE
        if self.path.is_dir():
            mark.touch()
            os.utime(mark, (now, now))

    def unmark(self) -> None:
        """Take the mark away."""
        self.check()
        (self.path / _GONE).unlink(missing_ok=True)

    def gone_since(self) -> float | None:
        """What the mark says, if there is one."""
        try:
            return (self.path / _GONE).stat().st_mtime
        except FileNotFoundError:
            return None

    def _tidy(self) -> None:
        """Delete what a crash left behind."""
        for path in self.path.glob(".work-*"):
            shutil.rmtree(path, ignore_errors=True)
        for pattern in (".new-*", ".redact-*"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def _sync_all(self) -> None:
        """The pod, which has the only other copy, may be deleted next."""
        for entry in walk(self.path, hidden=False):
            if stat.S_ISREG(entry.info.st_mode) or stat.S_ISDIR(entry.info.st_mode):
                fd = entry.open()
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        sync(self.path)


def remove(path: Path, root: Path) -> None:
    """Delete a tree below root: out of sight at once, then for good; then parents that are empty."""
    trash = root / f"{_REMOVED}{token_hex(8)}"
    try:
        path.rename(trash)
    except FileNotFoundError:
        return
    for each in root.glob(f"{_REMOVED}*"):  # what a crash left, too
        shutil.rmtree(each, ignore_errors=True)
    for parent in (path.parent, path.parent.parent):
        try:
            parent.rmdir()
        except OSError:
            return


def tidy(root: Path, before: float) -> int:
    """Delete work in progress that has not changed since a time; returns how many there were."""
    found = [each for pattern in _LITTER for each in root.glob(pattern) if each.lstat().st_mtime < before]
    for each in found:
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        elif each.is_file():
            each.unlink(missing_ok=True)
    return len(found)


def _move(path: Path, directory: Path) -> None:
    """Move into a directory, next to what has the same name there."""
    make(directory)
    target, number = directory / path.name, 2
    while os.path.lexists(target):
        target, number = directory / f"{path.name}.{number}", number + 1
    path.rename(target)


def _one_line(text: str) -> str:
    return " ".join(text.split("\n")).strip()[:_MAX_LINE_CHARACTERS]


def _time(line: str) -> str:
    match = _TIME.match(line)
    return match.group() if match else ""
