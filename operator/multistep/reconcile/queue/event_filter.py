"""Decides which watch events need a reconcile. An event that only shows a write of the status needs none.

The filter only saves reconciles, so an event that it lets through needlessly does no harm. A watch may miss events, so ``Resync``
compares the filter's state with lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from multistep.api.common import labels
from multistep.api.common.base_model import Metadata
from multistep.api.trial.values import FINISHED_PHASES
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.pods import pod_identity
from multistep.pods.pod_facts import pod_facts
from multistep.reconcile.admission.concurrency_limit import Key


def is_older(version: str, than: str) -> bool:
    """Return whether a resourceVersion precedes another one. Return False for versions that are not numbers."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


Body = Mapping[str, Any]
Changed = Callable[[Metadata], bool]
Name = tuple[str, str, str]  # kind ("trial", "sweep" or "pod"), namespace, name


class _Identity(NamedTuple):
    """The metadata that a change of the spec, a request to delete the object or its recreation changes.

    A change of the status does not change them.
    """

    uid: str | None
    generation: int
    deleted: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """An object's last observed state."""

    key: Key
    """Key of the trial or sweep to reconcile after a change."""
    version: str
    """The object's resourceVersion."""
    facts: object = None
    """The part of the object whose changes need a reconcile."""
    finished: bool = False
    """Whether the trial or sweep has finished."""


@dataclass(frozen=True)
class PodEvent:
    """A relevant change of a trial's pod."""

    key: Key
    """Key of the trial."""
    now: PodFacts
    """State of the pod in this event."""
    before: PodFacts | None
    """State of the pod in the last relevant event, None if this event is the first."""


class EventFilter:
    """Remembers the last observed state of each trial, sweep and pod."""

    def __init__(self) -> None:
        self._seen: dict[Name, Seen] = {}
        self._collected: set[Name] | None = None
        self._older: list[Name] = []  # the first object of which an event had an older version than the event before

    def trial(self, body: Body, type: str | None) -> Key | None:
        """Return the trial's key if the trial needs a reconcile, because it is new or deleted, or its spec changed.

        ``type`` is the event's type, None for an object from a list.
        """
        metadata, finished = body["metadata"], (body.get("status") or {}).get("phase") in FINISHED_PHASES
        return self._record(
            "trial", metadata, (metadata["namespace"], metadata["name"]), _identity(metadata), type, finished=finished
        )

    def finished(self, key: Key) -> bool:
        """Return whether a trial has finished. Events of its pods then need no reconcile, because the last one deleted the pods."""
        seen = self._seen.get(("trial", *key))
        return seen is not None and seen.finished

    def changed(self, trial: Metadata) -> bool:
        """Return whether the last event of a trial showed a newer spec than ``trial`` has, or a request to delete it."""
        seen = self._seen.get(("trial", trial.namespace, trial.name))
        shown = seen.facts if seen is not None else None
        return isinstance(shown, _Identity) and (shown.uid != trial.uid or shown.generation > trial.generation or shown.deleted)

    def sweep(self, body: Body, type: str | None) -> Key | None:
        """Return the sweep's key if the sweep needs a reconcile.

        It does if it is new or deleted, its spec changed, or its lease was renewed.
        """
        metadata, finished = body["metadata"], (body.get("status") or {}).get("phase") in FINISHED_PHASES
        return self._record(
            "sweep", metadata, (metadata["namespace"], metadata["name"]), _sweep_identity(metadata), type, finished=finished
        )

    def pod(self, body: Body, type: str | None) -> PodEvent | None:
        """Return the pod's event if its trial needs a reconcile."""
        key, facts, metadata = pod_identity.trial_of(body), pod_facts(body), body["metadata"]
        seen = self._seen.get(("pod", metadata["namespace"], metadata["name"]))
        before = seen.facts if seen is not None and isinstance(seen.facts, PodFacts) else None
        return PodEvent(key, facts, before) if key and self._record("pod", metadata, key, facts, type) else None

    def known(self) -> dict[Name, Seen]:
        """Return a copy of the last observed states."""
        return dict(self._seen)

    def take_older(self) -> list[Name]:
        """Return at most one object whose resourceVersion decreased from one event to the next since the last call."""
        found, self._older = self._older, []
        return found

    @contextmanager
    def listening(self) -> Iterator[Set[Name]]:
        """Return a context manager that yields a set. Each event in the ``with`` block adds its object's name to the set.

        Names are never removed from the set, even if an object is created and deleted within the block.
        """
        self._collected = collected = set[Name]()
        try:
            yield collected
        finally:
            self._collected = None

    def note(self, name: Name, seen: Seen | None) -> None:
        """Record a state that a list showed, None if the object was deleted."""
        if seen is None:
            self._seen.pop(name, None)
        else:
            self._seen[name] = seen

    def _record(
        self, kind: str, metadata: Mapping[str, Any], key: Key, facts: object, type: str | None, *, finished: bool = False
    ) -> Key | None:
        name = (kind, metadata["namespace"], metadata["name"])
        if self._collected is not None:
            self._collected.add(name)
        before = self._seen.get(name)
        if not self._older and before is not None and is_older(metadata.get("resourceVersion", ""), before.version):
            self._older.append(name)
        self.note(name, None if type == "DELETED" else Seen(key, metadata.get("resourceVersion", ""), facts, finished))
        matters = type in (None, "DELETED") or before is None or before.facts != facts
        return key if matters else None


def _sweep_identity(metadata: Mapping[str, Any]) -> object:
    return _identity(metadata), (metadata.get("annotations") or {}).get(labels.RENEWAL)


def _identity(metadata: Mapping[str, Any]) -> _Identity:
    return _Identity(metadata.get("uid"), metadata.get("generation", 0), bool(metadata.get("deletionTimestamp")))
