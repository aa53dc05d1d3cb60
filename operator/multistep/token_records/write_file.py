"""Writes the file of one step. Every frame is in the file when the call returns, so a process that is killed loses nothing else."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from multistep.token_records.frames import Damaged, frame_of, frames, objects_of
from multistep.token_records.record import BLOCK_BYTES, TokenIds, sampling_of

VERSION: Final = 1
_MAX_LISTED: Final = 1000  # ids in a close


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """A prompt whose blocks the file has. It needs 4 bytes of memory per block."""

    numbers: array[int]
    rest: bytes
    refused: str
    """Name of the limit that forbade a block, or ""."""


class Writer:
    """Writes a step's file, or continues one that another process left. Not thread-safe.

    A call that fails with OSError leaves the file as it was.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], admit: Callable[[int, int], str] = lambda _size, _added: "") -> None:
        """Open the file. If it exists, drop a last frame that is cut off or damaged, and continue.

        admit: returns, for the file's size and the bytes to add, the name of the limit that forbids these, or ""; a record that is
        forbidden is dropped and counted. Raises OSError.
        """
        self._file = path.open("ab", buffering=0)
        self._admit = admit
        self._digest = hashlib.sha256()
        self._blocks: dict[bytes, int] = {}
        self.size = 0
        """Bytes of the file."""
        self.recorded: set[tuple[str, int]] = set()
        """Requests (id and choice) that have a record."""
        self.tokens = 0
        """Number of sampled tokens in all records."""
        self.versions = Counter[str]()
        """Number of sampled tokens by the version of their weights, for tokens whose version is known."""
        self.dropped = Counter[str]()
        """Number of records that this process dropped, by the name of the limit."""
        self.closed = False
        """Whether the file has its end."""
        try:
            self._continue(path)
            if not self.size:
                self._write(frame_of([{"t": "head", "v": VERSION, **head}]))
        except BaseException:
            self._file.close()
            raise

    @property
    def sha256(self) -> str:
        """Return the hexadecimal digest of the file."""
        return self._digest.hexdigest()

    def prompt(self, ids: TokenIds) -> PromptBlocks:
        """Store the blocks of a prompt that the file lacks, and return the prompt's blocks. Raises OSError."""
        raw = ids.tobytes()
        whole = len(raw) - len(raw) % BLOCK_BYTES
        blocks = [raw[start : start + BLOCK_BYTES] for start in range(0, whole, BLOCK_BYTES)]
        names = list(map(_name, blocks))
        new = {name: block for name, block in zip(names, blocks, strict=True) if name not in self._blocks}
        refused = self._append([{"t": "block", "ids": block} for block in new.values()]) if new else ""
        if not refused:
            self._blocks.update({name: number for number, name in enumerate(new, len(self._blocks))})
        return PromptBlocks(array("I", [] if refused else [self._blocks[name] for name in names]), raw[whole:], refused)

    def record(self, prompt: PromptBlocks, **fields: Any) -> None:
        """Write a record, unless the file has one of this request and choice. fields: those of Record, without its prompt. Raises
        OSError, and ValueError if the file is closed."""
        key = fields["id"], fields["choice"]
        if key in self.recorded:
            return
        ids, logprobs = fields["ids"], fields["logprobs"]
        values = {"ids": ids.tobytes(), "logprobs": logprobs.tobytes(), "sampling": sampling_of(fields.get("sampling", {}))}
        stored = {"t": "record", "blocks": prompt.numbers.tobytes(), "rest": prompt.rest, **fields, **values}
        if refused := prompt.refused or self._append([stored]):
            self.dropped[refused] += 1
        else:
            self._count_record(*key, len(ids), fields.get("versions", []))

    def close(self, missing: Sequence[str] = ()) -> None:
        """Write the end and flush the file to the disk. A second call does nothing. missing: ids of requests that the server
        answered and that have no record. Raises OSError."""
        if not self.closed:
            counts = {"records": len(self.recorded), "tokens": self.tokens, "dropped": self.dropped.total()}
            self._write(frame_of([{"t": "close", **counts, "missing": list(missing[:_MAX_LISTED]), "at": time.time()}]))
            self.closed = True
        if not self._file.closed:
            os.fsync(self._file.fileno())
        self.stop()

    def stop(self) -> None:
        """Close the file as it is; another writer can continue it."""
        self._file.close()

    def _append(self, objects: Sequence[Mapping[str, Any]]) -> str:
        """Write a frame, unless a limit forbids it. Return the limit's name, or "" if the frame was written."""
        frame = frame_of(objects)
        refused = self._admit(self.size, len(frame))
        if not refused:
            self._write(frame)
        return refused

    def _write(self, frame: bytes) -> None:
        if self.closed:
            raise ValueError("the file is closed")
        try:
            written = self._file.write(frame)
            if written != len(frame):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._file.truncate(self.size)
            raise
        self._digest.update(frame)
        self.size += len(frame)

    def _continue(self, path: Path) -> None:
        """Read what the file has, and drop what follows its last whole frame."""
        with path.open("rb") as file:
            with suppress(Damaged):
                for end, content in frames(file):
                    for each in objects_of(content):
                        self._count(each)
                    self.size = end
            self._file.truncate(self.size)
            file.seek(0)
            while piece := file.read(1 << 20):
                self._digest.update(piece)

    def _count(self, stored: Mapping[str, Any]) -> None:
        if stored["t"] == "block":
            self._blocks.setdefault(_name(stored["ids"]), len(self._blocks))
        elif stored["t"] == "record":
            self._count_record(stored["id"], stored["choice"], len(stored["ids"]) // 4, stored.get("versions", []))
        elif stored["t"] == "close":
            self.closed = True

    def _count_record(self, id_: str, choice: int, tokens: int, versions: Sequence[tuple[int, str]]) -> None:
        self.recorded.add((id_, choice))
        self.tokens += tokens
        starts = [start for start, _ in versions]
        for (start, version), end in zip(versions, [*starts[1:], tokens], strict=False):
            self.versions[version] += end - start


def _name(block: bytes) -> bytes:
    return hashlib.blake2b(block, digest_size=12).digest()
