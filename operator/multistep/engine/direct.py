"""Large files of a collection go from the pod straight to the object store: which one is next, and what came of it.

Like the script, this is decided by records alone: a survey's, in whose result are the files that are to be sent, and one
for each file. When one cannot be sent, it and those after it travel with the rest of the collection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..api.records import Fields, Record
from .operations import Collect

MOST_FILES = 64  # of one collection: their names are in a record
MOST_BYTES = 5_000_000_000  # of one file: what stores take in one request
URL_SECONDS = 300.0  # how long after it was signed a request may begin


@dataclass(frozen=True)
class Large:
    """A large file. source: index among the collection's; path: in the source, "" for itself; binary: it is no text."""

    source: int
    path: str
    size: int
    binary: bool = True

    @property
    def member(self) -> str:
        """What the download calls it."""
        return f"{self.source}/{self.path}" if self.path else str(self.source)

    @classmethod
    def from_json(cls, value: object, sources: int) -> Large:
        """Read what the runner told. Raises RunnerError."""
        fields = Fields(value, "a large file")
        source, size = fields.integer("source"), fields.integer("size")
        found = cls(source, fields.text("path", 1024), size, fields.boolean("binary"))
        if not (0 <= source < sources and size >= 0):
            raise fields.wrong("source", "one of those that were asked for, of a size")
        return found

    def to_json(self) -> dict[str, Any]:
        """The way back."""
        return {"source": self.source, "path": self.path, "size": self.size, "binary": self.binary}


@dataclass(frozen=True)
class Survey:
    """Find the files that are to be sent, and write them down."""

    id: str


@dataclass(frozen=True)
class Send:
    """Have the runner send one file. number: among those of the survey."""

    id: str
    number: int
    file: Large

    @property
    def seconds(self) -> float:
        """How long it may take."""
        return 120.0 + self.file.size / 1_000_000


@dataclass(frozen=True)
class Sent:
    """A file that the runner says it sent. version: the store's ETag, if it told one."""

    number: int
    file: Large
    sha256: str
    version: str


@dataclass(frozen=True)
class Reached:
    """How far it is. next: None when all is done that can be; running: its record; failure: why the rest is not sent."""

    next: Survey | Send | None = None
    running: Record | None = None
    sent: tuple[Sent, ...] = ()
    failure: str = ""


def reached(collect: Collect, records: Mapping[str, Record]) -> Reached:
    """From the records that there are to what is next."""
    survey = records.get(f"{collect.id}-survey")
    if survey is None:
        return Reached(Survey(f"{collect.id}-survey"))
    found = Fields(survey.result, "survey").sequence("files", MOST_FILES)
    sent: list[Sent] = []
    for number, value in enumerate(found):
        send = Send(f"{collect.id}-send-{number}", number, Large.from_json(value, len(collect.sources)))
        record = records.get(send.id)
        if record is None or not record.done:
            return Reached(send, record, tuple(sent))
        result = Fields(record.result, "send")
        if (fault := result.optional_fault("error")) is not None:
            return Reached(sent=tuple(sent), failure=f"{send.file.member}: {fault.message}")
        sent.append(Sent(number, send.file, result.text("sha256", 64), result.text("version", 1024)))
    return Reached(sent=tuple(sent))
