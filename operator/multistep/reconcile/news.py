"""Which events of a watch tell anything that a decision rests on. A status that we wrote ourselves is no news.

Only a hint that saves looks: what a listing brings is always news, and watches list again every few minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cluster import pods
from .turns import Key

Body = Mapping[str, Any]


class News:
    """Remembers what was last seen of each trial and each pod."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], object] = {}

    def trial(self, body: Body, type: str | None) -> Key | None:
        """The trial to look at, if its spec changed, it is to be deleted, or it was not known. type: None for a listing."""
        metadata = body["metadata"]
        facts = (metadata.get("uid"), metadata.get("generation"), bool(metadata.get("deletionTimestamp")))
        return (metadata["namespace"], metadata["name"]) if self._is_new("trial", metadata, facts, type) else None

    def pod(self, body: Body, type: str | None) -> Key | None:
        """The trial to look at, if something of its pod changed that matters."""
        key = pods.trial_of(body)
        return key if key and self._is_new("pod", body["metadata"], pods.facts(body), type) else None

    def _is_new(self, kind: str, metadata: Mapping[str, Any], facts: object, type: str | None) -> bool:
        name = (kind, metadata["namespace"], metadata["name"])
        if type == "DELETED":
            self._seen.pop(name, None)
            return True
        if type is not None and self._seen.get(name) == facts:
            return False
        self._seen[name] = facts
        return True
