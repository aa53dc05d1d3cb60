"""Files that could not be copied unchanged from the pod to the results. The manifest, the result and the status list them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_NAMED = 100  # maximum number of files listed by name per source
CHANGED = "changed while it was read"
UNREADABLE = "could not be read"


@dataclass
class Incomplete:
    """Files of one collected path (source) that are missing or were changed. whole_reason: why the copy of the whole source ended
    early; "" if it did not."""

    files: list[tuple[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    whole_reason: str = ""

    def add(self, path: str, reason: str, kind: str = "") -> None:
        """Add a file. kind: short form of the reason; the summary shows the number of files per kind. "" means ``reason``."""
        self.reasons[kind or reason] += 1
        if len(self.files) < MAX_NAMED:
            self.files.append((path, reason))

    def __bool__(self) -> bool:
        return bool(self.reasons or self.whole_reason)

    def entries(self) -> list[dict[str, str]]:
        """Return the entries for manifest.json: one per listed file, and one with the path "" if the source's copy ended early."""
        cut = [("", self.whole_reason)] if self.whole_reason else []
        return [{"path": path, "reason": reason} for path, reason in [*cut, *self.files]]

    def summary(self, source: str) -> str:
        """Return one line for the status, without file names, which an agent chooses."""
        counts = [f"{count} {'file' if count == 1 else 'files'}: {reason}" for reason, count in self.reasons.items()]
        return f"{source}: {'; '.join([*([self.whole_reason] if self.whole_reason else []), *counts])}"


def summaries(sources: Sequence[str], found: Sequence[Incomplete]) -> tuple[str, ...]:
    """Return a line for each source that is incomplete."""
    return tuple(each.summary(source) for source, each in zip(sources, found, strict=True) if each)
