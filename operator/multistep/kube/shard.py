"""Selects the trials that an operator reconciles, by namespace and by the value of the shard label or its absence.

Shards are always disjoint, because a trial has either one value of the label or none. With free label selectors, shards could
overlap, and two operators would reconcile the same trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from multistep.api.common import labels

LABEL_SHARD: Final = labels.SHARD


@dataclass(frozen=True)
class Shard:
    """An operator's share of the trials."""

    name: str = ""
    """Value of the label, or "" for trials without the label."""
    namespaces: Sequence[str] = ()
    """The namespaces of the trials. If there are none, the shard has all namespaces."""

    @property
    def selector(self) -> str:
        """The label selector of the shard's trials, sweeps and pods."""
        return f"{LABEL_SHARD}={self.name}" if self.name else f"!{LABEL_SHARD}"

    def selecting(self, selector: str) -> str:
        """Return ``selector``, restricted to the objects of this shard."""
        return f"{selector},{self.selector}"

    @property
    def namespaces_to_list(self) -> list[str | None]:
        """The namespaces in which to list objects. [None] stands for all namespaces."""
        return [*self.namespaces] or [None]

    def has(self, metadata: Mapping[str, Any]) -> bool:
        """Return whether an object belongs to this shard according to its labels."""
        value = (metadata.get("labels") or {}).get(LABEL_SHARD)
        return bool(value == self.name if self.name else value is None)

    def __str__(self) -> str:
        which = f"trials with the label {LABEL_SHARD}={self.name}" if self.name else f"trials without a label {LABEL_SHARD}"
        return f"{which}, in {', '.join(self.namespaces) or 'all namespaces'}"
