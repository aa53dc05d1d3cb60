"""Replaces values of secrets in the text files of a trial, in bounded memory, as Harbor 0.26 does at the end of a trial.

In .json and .jsonl files, a secret of digits is replaced only inside strings, so that the file stays valid JSON.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from secrets import token_hex

from multistep.engine.status.status_size import MARK
from multistep.store.files.file_trees import TreeEntry, pread_all, walk, write_all

_SAMPLE_BYTES = 8192  # a file with a NUL in its first bytes is not text, as in Harbor 0.26
_JSON_TOKENS = rb"\\[^\n]", rb'"', rb"\n"


class Redactor:
    """Replaces values of secrets by MARK. Values that MARK contains are not replaced, because the replacement would insert them
    again."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {secret for secret in secrets if secret and secret not in MARK}
        self._plain = _longest_first(values)
        self._json = _longest_first(values | {_in_json(value, ascii_) for value in values for ascii_ in (True, False)})

    def __bool__(self) -> bool:
        return bool(self._plain)

    def tree(self, top: Path) -> None:
        """Redact all regular UTF-8 files below a directory, except hidden names at its top. Mode and mtime stay the same."""
        if not self:
            return
        for entry in walk(top, hidden=False):
            if stat.S_ISREG(entry.info.st_mode):
                self._file(top, entry)

    def text(self, chunks: Iterable[bytes], *, is_json: bool = False) -> Iterator[bytes]:
        """Yield the redacted text. ``chunks`` has the text in pieces of any size."""
        scrubber = _Scrubber(self._json if is_json else self._plain, is_json=is_json)
        for chunk in chunks:
            yield scrubber.feed(chunk)
        yield scrubber.feed(b"", last=True)

    def _file(self, top: Path, entry: TreeEntry) -> None:
        is_json = entry.name.lower().endswith((".json", ".jsonl"))
        fd = entry.open()
        try:
            if _is_hit(fd, self._json if is_json else self._plain):
                self._rewrite(top, entry, fd, is_json=is_json)
        finally:
            os.close(fd)

    def _rewrite(self, top: Path, entry: TreeEntry, fd: int, *, is_json: bool) -> None:
        scratch = top / f".redact-{token_hex(8)}"
        out = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for chunk in self.text(_chunks(fd), is_json=is_json):
                write_all(out, chunk)
            os.fchmod(out, stat.S_IMODE(entry.info.st_mode))
            os.utime(out, ns=(entry.info.st_atime_ns, entry.info.st_mtime_ns))
            os.replace(scratch, entry.name, dst_dir_fd=entry.parent)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        finally:
            os.close(out)


class _Scrubber:
    """Redacts one text. It holds back the last bytes of each chunk, so that a value that spans two chunks is found."""

    def __init__(self, values: list[bytes], *, is_json: bool) -> None:
        tokens = [re.escape(value) for value in values]
        self._is_json = is_json and any(value.isdigit() for value in values)  # only if needed, because matching each quote is slow
        self._tokens = re.compile(b"|".join([*tokens, *(_JSON_TOKENS if self._is_json else ())]))
        self._longest = max(2, *map(len, values))
        self._in_string = False
        self._held = b""

    def feed(self, data: bytes, *, last: bool = False) -> bytes:
        text = self._held + data
        end = len(text) if last else max(0, len(text) - self._longest + 1)
        out, at = [], 0
        for match in self._tokens.finditer(text):
            if match.start() >= end:
                break
            out += [text[at : match.start()], self._replacement(match.group())]
            at = match.end()
        cut = max(at, end)
        self._held = text[cut:]
        return b"".join([*out, text[at:cut]])

    def _replacement(self, token: bytes) -> bytes:
        if self._is_json and (token in (b'"', b"\n") or (len(token) == 2 and token[:1] == b"\\")):
            self._track_string(token)
            return token
        if self._is_json and token.isdigit() and not self._in_string:
            return token
        return MARK.encode()

    def _track_string(self, token: bytes) -> None:
        """Record whether the text after this token is inside of a JSON string. A line break ends a string, so that a stray quote
        affects only its line."""
        if token == b"\n":
            self._in_string = False
        elif token == b'"':
            self._in_string = not self._in_string
        elif token == b'\\"' and not self._in_string:
            self._in_string = True


def _is_hit(fd: int, values: list[bytes]) -> bool:
    """Return whether the file is text that contains one of the values."""
    if b"\0" in os.pread(fd, _SAMPLE_BYTES, 0):
        return False
    decoder = codecs.getincrementaldecoder("utf-8")()
    overlap, tail, hit = max(map(len, values)) - 1, b"", False
    try:
        for chunk in _chunks(fd):
            decoder.decode(chunk)
            window = tail + chunk
            hit = hit or any(value in window for value in values)
            tail = window[-overlap:] if overlap else b""
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return hit


def _chunks(fd: int) -> Iterator[bytes]:
    return pread_all(fd, 0, os.fstat(fd).st_size)


def _longest_first(values: Iterable[str]) -> list[bytes]:
    return sorted((value.encode(errors="surrogateescape") for value in values), key=lambda encoded: (-len(encoded), encoded))


def _in_json(value: str, ensure_ascii: bool) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii)[1:-1]
