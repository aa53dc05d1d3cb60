"""How much of a collection is kept: limits of bytes and files per step, trial and namespace. Pure.

An agent decides what is collected, so without limits one trial could fill the results volume for all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .direct import Large
from .operations import CAPTURE_LIMIT_BYTES

SURVEYED_FILES = 64  # how many large files one survey reports
_REWARD_FILES = frozenset({"verifier/reward.json", "verifier/reward.txt"})


@dataclass(frozen=True)
class Amount:
    """An amount of results. files: with directories and links."""

    bytes: int = 0
    files: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.bytes + other.bytes, self.files + other.files)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.bytes - other.bytes, self.files - other.files)


def total(amounts: Iterable[Amount]) -> Amount:
    """Return the sum of amounts."""
    return sum(amounts, Amount())


@dataclass(frozen=True)
class Limits:
    """The most that is kept of one step, of one trial (all attempts), and of all trials of a namespace."""

    step: Amount
    trial: Amount
    namespace: Amount


@dataclass(frozen=True)
class Room:
    """What one collection may bring. bytes_of, files_of: whose limit that is."""

    bytes: int
    files: int
    bytes_of: str = "step"
    files_of: str = "step"

    @property
    def survey_bytes(self) -> int:
        """Return the size from which on a file is worth a survey: fewer of them than a survey reports would fill the room."""
        return self.bytes // SURVEYED_FILES + 1

    def refusal(self, size: int) -> str:
        """Return why a file of a size does not fit."""
        return f"its {size} bytes exceed what is left of the {self.bytes_of}'s results limit"


def room(limits: Limits, *, step: Amount, trial: Amount, namespace: Amount) -> Room:
    """Return the smallest of what the limits leave. step, trial, namespace: what they have without this collection."""
    left = {"step": limits.step - step, "trial": limits.trial - trial, "namespace": limits.namespace - namespace}
    bytes_of = min(left, key=lambda name: left[name].bytes)
    files_of = min(left, key=lambda name: left[name].files)
    return Room(max(0, left[bytes_of].bytes), max(0, left[files_of].files), bytes_of, files_of)


def too_large(files: Iterable[Large], available: Room) -> tuple[Large, ...]:
    """Return the files that do not fit. The smallest ones come first, so one huge file displaces no other."""
    left, out = available.bytes, list[Large]()
    for file in sorted(files, key=lambda each: each.size):
        if file.size > left:
            out.append(file)
        else:
            left -= file.size
    return tuple(out)


@dataclass
class Filling:
    """A collection that is unpacked into its room. used: what was taken so far."""

    room: Room
    used: Amount = field(default_factory=Amount)

    def refuse(self, path: str, size: int) -> str:
        """Take the room for a file, or return why it does not fit.

        A reward file always fits, and the agent's own logs take half of the room at most, so they displace no verdict.
        path: of the file among the step's results; size: of its contents, holes of a sparse file included.
        """
        after, share = self.used + Amount(size, 1), 2 if path.startswith("agent/") else 1
        if not (path in _REWARD_FILES and size <= CAPTURE_LIMIT_BYTES):
            if after.bytes > self.room.bytes // share:
                return self.room.refusal(size)
            if after.files > self.room.files // share:
                return f"there are more files than the {self.room.files_of}'s results limit"
        self.used = after
        return ""
