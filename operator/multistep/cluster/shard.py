"""Which of the cluster's trials an operator runs: those of its namespaces that have its shard's label, or none.

Shards are disjoint by construction: a trial has one value of the label, or none. A selector of the user's could overlap with that
of another operator, and both would run the same trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..api import labels

LABEL_SHARD: Final = labels.SHARD


@dataclass(frozen=True)
class Shard:
    """name: the label's value; "": trials without the label. namespaces: empty for all."""

    name: str = ""
    namespaces: Sequence[str] = ()

    @property
    def selector(self) -> str:
        """Selects its trials, sweeps and pods by label."""
        return f"{LABEL_SHARD}={self.name}" if self.name else f"!{LABEL_SHARD}"

    def selecting(self, selector: str) -> str:
        """What another selector selects, of this shard."""
        return f"{selector},{self.selector}"

    @property
    def places(self) -> list[str | None]:
        """Where to list: each namespace, or everywhere (None)."""
        return [*self.namespaces] or [None]

    def has(self, metadata: Mapping[str, Any]) -> bool:
        """Whether an object is of this shard, by its labels."""
        value = (metadata.get("labels") or {}).get(LABEL_SHARD)
        return bool(value == self.name if self.name else value is None)

    def __str__(self) -> str:
        which = f"trials with the label {LABEL_SHARD}={self.name}" if self.name else f"trials without a label {LABEL_SHARD}"
        return f"{which}, in {', '.join(self.namespaces) or 'all namespaces'}"
