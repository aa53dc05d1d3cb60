"""Reads the file of one step. The file may be cut off or forged, so the reader's time and memory are limited."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from multistep.token_records.frames import Damaged, frames, objects_of
from multistep.token_records.record import BLOCK_BYTES, Record, StepRecords, StoredPrompt
from multistep.token_records.write_file import VERSION

_MAX_FILE_BYTES: Final = 1 << 30
_MAX_CONTENT_BYTES: Final = 4 << 30
_MAX_OBJECTS: Final = 1 << 22
_MAX_PROMPT_TOKENS: Final = 1 << 22
_MAX_TOKENS: Final = 1 << 31  # of all prompts: a forged record can name a block many times


class _Close(BaseModel):
    model_config = ConfigDict(strict=True)

    records: NonNegativeInt
    tokens: NonNegativeInt
    dropped: NonNegativeInt
    missing: list[str]


def read(path: Path) -> StepRecords:
    """Read a step's file. Raises OSError.

    What is wrong with the file is in the result, with the records before it. The limits: 1 GiB, 4 million objects, 4 million tokens
    per prompt.
    """
    contents = _Contents()
    try:
        contents.read(path)
        why = contents.missing()
    except Damaged as error:
        why = str(error)
    except (ValidationError, ValueError, KeyError, TypeError, IndexError) as error:
        why = f"an object is invalid: {' '.join(str(error).split())[:200]}"
    return StepRecords(contents.head, sorted(contents.records, key=lambda each: each.order), why)


class _Contents:
    """What was read of a file so far."""

    def __init__(self) -> None:
        self.head: Mapping[str, Any] = {}
        self.records: list[Record] = []
        self._seen: set[tuple[str, int]] = set()
        self._blocks: list[bytes] = []
        self._close: _Close | None = None
        self._prompt_tokens = 0

    def read(self, path: Path) -> None:
        """Read all whole frames. Raises Damaged, and other errors if an object has wrong members."""
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise Damaged(f"the file has more than {_MAX_FILE_BYTES} bytes")
        objects = size = 0
        with path.open("rb") as file:
            for _, content in frames(file):
                size += len(content)
                objects += 1
                for each in objects_of(content):
                    objects += 1
                    if objects > _MAX_OBJECTS or size > _MAX_CONTENT_BYTES:
                        raise Damaged("the file has too many objects")
                    self._add(each)

    def missing(self) -> str:
        """Return why records are missing, or an empty text."""
        close = self._close
        if close is None:
            return "the file has no end: the gateway was stopped, or the file was cut off"
        if close.missing or close.dropped:
            return f"{len(close.missing)} requests have no record, and {close.dropped} records exceeded a limit of bytes"
        counted = len(self.records), sum(len(each.ids) for each in self.records)
        if counted != (close.records, close.tokens):
            return f"the file has {counted[0]} records and {counted[1]} tokens instead of {close.records} and {close.tokens}"
        return ""

    def _add(self, stored: dict[str, Any]) -> None:
        kind = stored.pop("t")
        if self._close is not None:
            raise Damaged("objects follow the file's end")
        if (kind == "head") == bool(self.head):
            raise Damaged("the file does not start with its only head")
        if kind == "head":
            if stored["v"] != VERSION:
                raise Damaged(f"the file has version {stored['v']!r}, and only version {VERSION} can be read")
            self.head = stored
        elif kind == "block":
            self._blocks.append(_block(stored["ids"]))
        elif kind == "record":
            self._add_record(stored)
        elif kind == "close":
            self._close = _Close.model_validate(stored)
        else:
            raise Damaged(f"an object has the unknown kind {kind!r}")

    def _add_record(self, stored: dict[str, Any]) -> None:
        prompt = self._prompt(array("I", stored.pop("blocks")), stored.pop("rest"))
        record = Record.model_validate({**stored, "stored_prompt": prompt})
        if (record.id, record.choice) in self._seen:
            raise Damaged(f"request {record.id} has two records")
        self._seen.add((record.id, record.choice))
        self.records.append(record)

    def _prompt(self, numbers: array[int], rest: bytes) -> StoredPrompt:
        if not isinstance(rest, bytes) or len(rest) >= BLOCK_BYTES or len(rest) % 4:
            raise Damaged("a prompt's rest is not shorter than a block of token ids")
        tokens = (len(numbers) * BLOCK_BYTES + len(rest)) // 4
        self._prompt_tokens += tokens
        if tokens > _MAX_PROMPT_TOKENS or self._prompt_tokens > _MAX_TOKENS:
            raise Damaged("the prompts have too many tokens")
        return StoredPrompt([self._blocks[number] for number in numbers], rest)


def _block(ids: Any) -> bytes:
    if not isinstance(ids, bytes) or len(ids) != BLOCK_BYTES:
        raise Damaged(f"a block does not have {BLOCK_BYTES} bytes of token ids")
    return ids
