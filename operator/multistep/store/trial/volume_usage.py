"""Counts how much of the results volume each trial uses. A hidden file in the trial's directory, its note, stores the usage.

The notes of a namespace are read once. Only code on the event loop may use VolumeUsage. Threads may read and write notes.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from multistep.engine.journal.operations import Part
from multistep.engine.journal.results_limits import NO_LIMIT, Amount, Headroom, ResultsLimits, remaining_headroom, total_amount
from multistep.errors import CollectionCut
from multistep.store.files.file_trees import walk
from multistep.store.files.read_tar import MAX_MEMBERS
from multistep.store.trial.directory import TrialDirectory

NOTE = "usage"
ADMITTED_BYTES = 2**20  # bytes of each download that are accepted even beyond the limits
HEADER_BYTES = 2048  # assumed size of a file's tar header, which does not count towards the limits
_PARTS: Mapping[str, Part] = {"agent": "agent", "verifier": "verifier"}


@dataclass(frozen=True)
class Collection:
    """One download of a step's logs and artifacts to the volume."""

    attempt: int
    step: int
    """Index of the step."""
    part: Part
    """Whether the download has all outputs or those of one pod."""


Counts = Callable[[Collection], bool]
"""Whether a collection counts towards the limit of its trial."""

# The usage of one trial by collection. For a trial without a note, the key None has the total.
TrialUsage = Mapping[Collection | None, Amount]


@dataclass
class VolumeUsage:
    """Usage of the results volume."""

    limits: ResultsLimits
    trials: dict[str, dict[str, dict[Collection | None, Amount]]] = field(default_factory=dict)
    """Usage by namespace and by the trial's path (NAME/UID) in it."""
    reserved: Counter[str] = field(default_factory=Counter)
    """Bytes of downloads that are not unpacked yet, by namespace."""
    bytes: Counter[str] = field(default_factory=Counter)
    """Bytes of all trials, by namespace."""

    def knows(self, namespace: str) -> bool:
        """Return whether the usage of the namespace is loaded."""
        return namespace in self.trials

    def read(self, namespace: str, usages: Mapping[str, TrialUsage]) -> None:
        """Load the usage that the volume has, unless the namespace is already loaded, because the usage in memory is then newer."""
        if namespace not in self.trials:
            self.trials[namespace] = {trial: dict(usage) for trial, usage in usages.items()}
            self.bytes[namespace] = sum(amount.bytes for usage in usages.values() for amount in usage.values())

    def headroom(
        self, namespace: str, trial: str, collection: Collection, *more: Collection, counts: Counts = lambda _: True
    ) -> Headroom:
        """Return how much a collection may store. The former version of the collection does not count, because it is replaced.

        ``more`` has further collections to store at the same time. ``counts`` decides which of the trial's collections count."""
        trials, replaced = self.trials[namespace], {collection, *more}
        own = {stored: amount for stored, amount in trials.get(trial, {}).items() if stored not in replaced}
        others = total_amount(amount for name, usage in trials.items() if name != trial for amount in usage.values())
        step = total_amount(
            amount
            for stored, amount in own.items()
            if stored and (stored.attempt, stored.step) == (collection.attempt, collection.step)
        )
        taken = others + total_amount(own.values()) + Amount(self.reserved[namespace])
        return remaining_headroom(self.limits, step=step, trial=_counted(own, counts), namespace=taken)

    def alone(self, namespace: str, trial: str, collection: Collection, *, counts: Counts = lambda _: True) -> Headroom:
        """Return how much a collection could store if the namespace had no other trial."""
        own = {stored: amount for stored, amount in self.trials[namespace].get(trial, {}).items() if stored != collection}
        return remaining_headroom(self.limits, step=Amount(), trial=_counted(own, counts), namespace=total_amount(own.values()))

    def left(self, namespace: str) -> int:
        """Return how many more bytes the namespace's trials may store."""
        return self.limits.namespace.bytes - self.bytes[namespace] - self.reserved[namespace]

    def record(self, namespace: str, trial: str, collection: Collection, amount: Amount) -> None:
        """Record the files and bytes of an unpacked collection, in place of an earlier collection that it replaced."""
        usage = self.trials[namespace].setdefault(trial, {})
        self.bytes[namespace] += amount.bytes - usage.get(collection, Amount()).bytes
        usage[collection] = amount

    def free(self, namespace: str, trial: str) -> None:
        """Stop counting a trial whose results were deleted."""
        usage = self.trials.get(namespace, {}).pop(trial, {})
        self.bytes[namespace] -= sum(amount.bytes for amount in usage.values())

    def reserve(self, namespace: str, size: int) -> None:
        """Reserve bytes for a download. A negative size releases them."""
        self.reserved[namespace] += size


def _counted(usage: TrialUsage, counts: Counts) -> Amount:
    return total_amount(amount for collection, amount in usage.items() if collection is None or counts(collection))


class DownloadReservation:
    """Checks the size of one download while it arrives, and reserves its bytes in the namespace until it is unpacked.

    ``headroom`` is what the results limits still allow, or None for no limit. The first ADMITTED_BYTES, which contain the reward,
    are accepted even beyond the limits. Tar headers (HEADER_BYTES for each file) do not count.
    """

    def __init__(self, ledger: VolumeUsage, namespace: str, headroom: Headroom | None) -> None:
        self._ledger = ledger
        self._namespace = namespace
        self._headroom = headroom
        self._size = 0
        self._free = ADMITTED_BYTES + (headroom.files * HEADER_BYTES if headroom else 0)

    def admit(self, size: int) -> None:
        """Reserve the next ``size`` bytes of the download. Raises CollectionCut if the results limits do not allow them."""
        if self._headroom is None:
            return
        if self._size + size > self._headroom.bytes + self._free:
            raise CollectionCut(f"it has more bytes than what is left of the {self._headroom.bytes_of}'s results limit")
        if self._size > ADMITTED_BYTES and self._ledger.left(self._namespace) < size:
            raise CollectionCut("the trials of the namespace together exceed its results limit at this moment")
        self._size += size
        self._ledger.reserve(self._namespace, size)

    def close(self) -> None:
        """Release the reserved bytes."""
        self._ledger.reserve(self._namespace, -self._size)


def no_limits(_volume_bytes: int) -> ResultsLimits:
    """Return limits so high that no collection reaches them."""
    most = Amount(NO_LIMIT, MAX_MEMBERS)
    return ResultsLimits(most, Amount(NO_LIMIT, NO_LIMIT), Amount(NO_LIMIT, NO_LIMIT))


def write_note(to: TrialDirectory, collection: Collection, amount: Amount) -> None:
    """Append a collection's usage to the trial's note, unless its last line about the collection is the same."""
    line = f"{collection.attempt} {collection.step} {collection.part} {amount.bytes} {amount.files}\n"
    former = [
        former_line
        for former_line in to.notes(NOTE).decode(errors="replace").splitlines()
        if _collection(former_line.split()) == collection
    ]
    if former[-1:] != [line.strip()]:
        to.note(NOTE, line.encode())


def usage_on_disk(top: Path) -> dict[str, TrialUsage]:
    """Return the usage of all trials in a namespace's directory, by the trial's path (NAME/UID)."""
    return {f"{path.parent.name}/{path.name}": _usage(TrialDirectory(path)) for path in top.glob("*/*") if path.is_dir()}


def _usage(trial: TrialDirectory) -> TrialUsage:
    lines = [line.split() for line in trial.notes(NOTE).decode(errors="replace").splitlines()]
    try:
        recorded: dict[Collection | None, Amount] = {_collection(line): Amount(int(line[3]), int(line[4])) for line in lines}
    except (ValueError, IndexError):
        recorded = {}
    return recorded or {None: _measured(trial.path)}


def _collection(line: list[str]) -> Collection:
    return Collection(int(line[0]), int(line[1]), _PARTS.get(line[2], "all"))


def _measured(top: Path) -> Amount:
    """Return the size of a trial's files, for a trial without a valid note, e.g. because an earlier release collected them."""
    return total_amount(Amount(entry.info.st_size if stat.S_ISREG(entry.info.st_mode) else 0, 1) for entry in walk(top))
