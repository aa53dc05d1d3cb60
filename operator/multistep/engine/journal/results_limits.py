"""Limits how many bytes and files a step, a trial and a namespace may store as results. All functions are pure.

An agent controls the size of the collected files. Without limits one trial could fill the results volume for all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multistep.api.trial.runner_records import Fields, Record
from multistep.engine.journal.operations import CAPTURE_LIMIT_BYTES, Collect

SURVEYED_FILES = 64  # maximum number of large files that the runner lists in its answer to a Survey
MAX_BYTES = 5_000_000_000  # maximum size of a file, because object stores accept no more in one request
URL_SECONDS = 300.0  # a signed URL accepts requests that start within this time


@dataclass(frozen=True)
class LargeFile:
    """A large output file of a step."""

    source: int
    """Index in ``Collect.sources`` of the source that contains the file."""
    path: str
    """The file's path below the source, "" if the source is the file itself."""
    size: int
    binary: bool = True
    """Whether the file is not text."""

    @property
    def member(self) -> str:
        """Return the file's name in the tar stream that the operator downloads."""
        return f"{self.source}/{self.path}" if self.path else str(self.source)

    @classmethod
    def from_json(cls, value: object, sources: int) -> LargeFile:
        """Parse an entry of the runner's answer to a Survey. Raises RunnerError if it is malformed.

        ``sources`` is the number of sources of the Collect.
        """
        fields = Fields(value, "a large file")
        source, size = fields.integer("source"), fields.integer("size")
        large = cls(source, fields.text("path", 1024), size, fields.boolean("binary"))
        if not (0 <= source < sources and size >= 0):
            raise fields.wrong("source", "the index of a requested source, with a size of 0 or more")
        return large

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that from_json parses."""
        return {"source": self.source, "path": self.path, "size": self.size, "binary": self.binary}


@dataclass(frozen=True)
class Survey:
    """A request to the runner to list the large files of a Collect. The record of the request has the list."""

    id: str


@dataclass(frozen=True)
class Send:
    """A request to the runner to send one file to the object store."""

    id: str
    number: int
    """Index of the file in the answer to the Survey."""
    file: LargeFile

    @property
    def seconds(self) -> float:
        """Return the timeout in seconds: 120, plus one second per MB."""
        return 120.0 + self.file.size / 1_000_000


@dataclass(frozen=True)
class SentFile:
    """A file that the runner reported as sent."""

    number: int
    """Index of the file in the answer to the Survey."""
    file: LargeFile
    sha256: str
    version: str
    """The store's ETag, "" if it returned none."""


@dataclass(frozen=True)
class UploadProgress:
    """Progress of a direct upload, in which the runner sends large files from the pod to the object store."""

    next: Survey | Send | None = None
    """The next request, None if no request is left."""
    running: Record | None = None
    """The record of ``next``, None if the runner has not started it."""
    sent: tuple[SentFile, ...] = ()
    failure: str = ""
    """Why one file could not be sent, so that the remaining files are not sent either; "" if no file failed."""


def upload_progress(collect: Collect, records: Mapping[str, Record]) -> UploadProgress:
    """Return how far the direct upload of a Collect's large files has got, according to the runner's records."""
    survey = records.get(f"{collect.id}-survey")
    if survey is None:
        return UploadProgress(Survey(f"{collect.id}-survey"))
    files = Fields(survey.result, "survey").sequence("files", SURVEYED_FILES)
    sent: list[SentFile] = []
    for number, value in enumerate(files):
        send = Send(f"{collect.id}-send-{number}", number, LargeFile.from_json(value, len(collect.sources)))
        record = records.get(send.id)
        if record is None or not record.done:
            return UploadProgress(send, record, tuple(sent))
        result = Fields(record.result, "send")
        if (fault := result.optional_fault("error")) is not None:
            return UploadProgress(sent=tuple(sent), failure=f"{send.file.member}: {fault.message}")
        sent.append(SentFile(number, send.file, result.text("sha256", 64), result.text("version", 1024)))
    return UploadProgress(sent=tuple(sent))


NO_LIMIT = 2**62  # a number of bytes or files that no volume reaches
_REWARD_FILES = frozenset({"verifier/reward.json", "verifier/reward.txt"})


@dataclass(frozen=True)
class Amount:
    """An amount of stored results."""

    bytes: int = 0
    files: int = 0
    """Number of files, directories and links."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.bytes + other.bytes, self.files + other.files)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.bytes - other.bytes, self.files - other.files)


def total_amount(amounts: Iterable[Amount]) -> Amount:
    """Return the sum of amounts."""
    return sum(amounts, Amount())


@dataclass(frozen=True)
class ResultsLimits:
    """The limits of one step, of one trial (all attempts), and of all trials of a namespace."""

    step: Amount
    trial: Amount
    namespace: Amount


@dataclass(frozen=True)
class Headroom:
    """How many bytes and files one Collect may still store within the limits of its step, trial and namespace."""

    bytes: int
    files: int
    bytes_of: str = "step"
    """Which limit ("step", "trial" or "namespace") leaves the fewest bytes, for error messages."""
    files_of: str = "step"
    """Which limit ("step", "trial" or "namespace") leaves the fewest files, for error messages."""

    @property
    def survey_bytes(self) -> int:
        """Return the size in bytes from which on the runner lists a file as large.

        SURVEYED_FILES files of this size exceed ``bytes``, so a list of SURVEYED_FILES entries has room for all large files that
        fit.
        """
        return self.bytes // SURVEYED_FILES + 1

    def refusal(self, size: int) -> str:
        """Return the error message for a file of this size in bytes that does not fit into the limits."""
        return f"its {size} bytes exceed what is left of the {self.bytes_of}'s results limit"


def remaining_headroom(limits: ResultsLimits, *, step: Amount, trial: Amount, namespace: Amount) -> Headroom:
    """Return how much a Collect may still store.

    ``step``, ``trial`` and ``namespace`` are the amounts that these have stored, without files that the Collect replaces.
    """
    left = {"step": limits.step - step, "trial": limits.trial - trial, "namespace": limits.namespace - namespace}
    bytes_of = min(left, key=lambda name: left[name].bytes)
    files_of = min(left, key=lambda name: left[name].files)
    return Headroom(max(0, left[bytes_of].bytes), max(0, left[files_of].files), bytes_of, files_of)


def too_large(files: Iterable[LargeFile], available: Headroom) -> tuple[LargeFile, ...]:
    """Return the files that do not fit into ``available``. Small files are accepted first, so a huge file displaces no others."""
    left, out = available.bytes, list[LargeFile]()
    for file in sorted(files, key=lambda file: file.size):
        if file.size > left:
            out.append(file)
        else:
            left -= file.size
    return tuple(out)


def crowded_out(files: Sequence[LargeFile], available: Headroom, alone: Headroom) -> tuple[LargeFile, ...]:
    """Return the files that do not fit into ``available``, but fit into ``alone``, the headroom if the namespace had no other
    trial."""
    never = too_large(files, alone)
    return tuple(file for file in too_large(files, available) if file not in never)


@dataclass
class Filling:
    """Counts the accepted files while the operator unpacks a download, and refuses those that exceed the limits."""

    headroom: Headroom
    """The limits of the download."""
    used: Amount = field(default_factory=Amount)
    """The amount that was accepted so far."""

    def refuse(self, path: str, size: int) -> str:
        """Count a file and return "" if it fits, else return why it does not fit.

        A reward file of at most CAPTURE_LIMIT_BYTES always fits, and the agent's logs get at most half of ``headroom``, so they
        cannot displace a verdict. ``path`` is the file's path in the step's results. ``size`` is the number of bytes of its
        contents, including the holes of a sparse file.
        """
        after, share = self.used + Amount(size, 1), 2 if path.startswith("agent/") else 1
        if not (path in _REWARD_FILES and size <= CAPTURE_LIMIT_BYTES):
            if after.bytes > self.headroom.bytes // share:
                return self.headroom.refusal(size)
            if after.files > self.headroom.files // share:
                return f"more files than the {self.headroom.files_of}'s results limit"
        self.used = after
        return ""
