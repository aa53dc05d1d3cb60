"""Direct upload of a step's large output files from the pod to the object store: decides which file is next.

The decision depends only on the runner's records: the record of the survey, which lists the large files, and one record for each
sent file. If a file cannot be sent, the operator downloads this file and all later ones with the rest of the step's outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multistep.api.trial.runner_records import Fields, Record
from multistep.engine.journal.operations import Collect

SURVEYED_FILES = 64  # maximum number of large files that the runner lists in its answer to a Survey, and that are sent per Collect
MAX_BYTES = 5_000_000_000  # maximum size of a file: object stores accept no more in one request
URL_SECONDS = 300.0  # validity of a signed URL: the request must start within it


@dataclass(frozen=True)
class Large:
    """A large output file of a step. source: index in ``Collect.sources`` of the source that contains the file; path: the file's
    path below the source, "" if the source is the file itself; binary: whether the file is not text."""

    source: int
    path: str
    size: int
    binary: bool = True

    @property
    def member(self) -> str:
        """Return the file's name in the tar stream that the operator downloads."""
        return f"{self.source}/{self.path}" if self.path else str(self.source)

    @classmethod
    def from_json(cls, value: object, sources: int) -> Large:
        """Parse an entry of the runner's survey. Raises RunnerError."""
        fields = Fields(value, "a large file")
        source, size = fields.integer("source"), fields.integer("size")
        found = cls(source, fields.text("path", 1024), size, fields.boolean("binary"))
        if not (0 <= source < sources and size >= 0):
            raise fields.wrong("source", "the index of a requested source, with a size of 0 or more")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that from_json parses."""
        return {"source": self.source, "path": self.path, "size": self.size, "binary": self.binary}


@dataclass(frozen=True)
class Survey:
    """A request to the runner to list the large files. The list is stored in a record."""

    id: str


@dataclass(frozen=True)
class Send:
    """A request to the runner to send one file. number: index of the file in the survey."""

    id: str
    number: int
    file: Large

    @property
    def seconds(self) -> float:
        """Return the timeout in seconds: 120, plus 1 per MB."""
        return 120.0 + self.file.size / 1_000_000


@dataclass(frozen=True)
class Sent:
    """A file that the runner reported as sent. number: index in the survey; version: the store's ETag, "" if it returned none."""

    number: int
    file: Large
    sha256: str
    version: str


@dataclass(frozen=True)
class Reached:
    """Progress of the direct upload. next: the next request, None if no request is left; running: the record of ``next`` if the
    runner has started it; failure: why the remaining files are not sent, "" if none failed."""

    next: Survey | Send | None = None
    running: Record | None = None
    sent: tuple[Sent, ...] = ()
    failure: str = ""


def reached(collect: Collect, records: Mapping[str, Record]) -> Reached:
    """Return the progress of the direct upload of a Collect's large files, according to the runner's records."""
    survey = records.get(f"{collect.id}-survey")
    if survey is None:
        return Reached(Survey(f"{collect.id}-survey"))
    found = Fields(survey.result, "survey").sequence("files", SURVEYED_FILES)
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
