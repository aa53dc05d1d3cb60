"""Which events of a watch tell anything that a decision rests on. A status that we wrote ourselves is no news.

Only a hint that saves looks: a watch may lose events, so ``Resync`` compares what is known here with what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..cluster import pods
from ..engine.decisions import PodFacts
from .turns import Key

Body = Mapping[str, Any]
_OVER = ("Complete", "Failed")
Name = tuple[str, str, str]  # kind ("trial", "sweep" or "pod"), namespace, name


@dataclass(frozen=True)
class Seen:
    """What was last heard of an object. key: the trial, or the sweep, to look at; version: its resourceVersion; over: a trial
    or a sweep that has finished."""

    key: Key
    version: str
    facts: object = None
    over: bool = False


@dataclass(frozen=True)
class PodEvent:
    """Something of a trial's pod changed that matters. key: the trial; now: the pod as it is, or was last; before: as it was when
    something was heard of it before, if ever."""

    key: Key
    now: PodFacts
    before: PodFacts | None


class EventFilter:
    """Remembers what was last heard of each trial, each sweep and each pod."""

    def __init__(self) -> None:
        self._seen: dict[Name, Seen] = {}
        self._told: set[Name] | None = None

    def trial(self, body: Body, type: str | None) -> Key | None:
        """The trial to look at, if its spec changed, it is to be deleted, or it was not known. type: None for a listing."""
        metadata, over = body["metadata"], (body.get("status") or {}).get("phase") in _OVER
        return self._heard("trial", metadata, (metadata["namespace"], metadata["name"]), _identity(metadata), type, over=over)

    def over(self, key: Key) -> bool:
        """Whether a trial has ended: its pods tell nothing any more, and its last look saw to their end."""
        seen = self._seen.get(("trial", *key))
        return seen is not None and seen.over

    def sweep(self, body: Body, type: str | None) -> Key | None:
        """The sweep to look at, if its spec changed, it is to be deleted, or it was not known."""
        metadata, over = body["metadata"], (body.get("status") or {}).get("phase") in _OVER
        return self._heard("sweep", metadata, (metadata["namespace"], metadata["name"]), _identity(metadata), type, over=over)

    def pod(self, body: Body, type: str | None) -> PodEvent | None:
        """If something of it changed that matters."""
        key, facts, metadata = pods.trial_of(body), pods.facts(body), body["metadata"]
        seen = self._seen.get(("pod", metadata["namespace"], metadata["name"]))
        before = seen.facts if seen is not None and isinstance(seen.facts, PodFacts) else None
        return PodEvent(key, facts, before) if key and self._heard("pod", metadata, key, facts, type) else None

    def known(self) -> dict[Name, Seen]:
        """All that was heard of, as it is now."""
        return dict(self._seen)

    @contextmanager
    def listening(self) -> Iterator[Set[Name]]:
        """What a watch tells of meanwhile; of what came and went nothing else is left."""
        self._told = told = set[Name]()
        try:
            yield told
        finally:
            self._told = None

    def note(self, name: Name, seen: Seen | None) -> None:
        """Heard in another way; None: it is gone."""
        if seen is None:
            self._seen.pop(name, None)
        else:
            self._seen[name] = seen

    def _heard(
        self, kind: str, metadata: Mapping[str, Any], key: Key, facts: object, type: str | None, *, over: bool = False
    ) -> Key | None:
        name = (kind, metadata["namespace"], metadata["name"])
        if self._told is not None:
            self._told.add(name)
        before = self._seen.get(name)
        self.note(name, None if type == "DELETED" else Seen(key, metadata.get("resourceVersion", ""), facts, over))
        matters = type in (None, "DELETED") or before is None or before.facts != facts
        return key if matters else None


def _identity(metadata: Mapping[str, Any]) -> object:
    """Changes with the spec, and when the end was asked for; a status that was written is no news."""
    return metadata.get("uid"), metadata.get("generation"), bool(metadata.get("deletionTimestamp"))
