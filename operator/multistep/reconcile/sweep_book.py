"""What is known of the trials of each sweep: a few facts of each, by what watches tell and lists.

Only a hint that saves reading all trials for every look: it is made anew from a list by a process that begins, or that found its
watch to have missed something. What would be wrong about it cannot make a trial twice, nor one too many (engine.sweeps).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.sweep_trials import Plan, facts, owner_of
from ..engine.sweeps import TrialFacts
from .turns import Key
from .versions import is_older


@dataclass
class Page:
    """Of one sweep.

    trials: by name. made: how many numbers are known to have been made. whole: all trials were listed. heard: names of which a
    watch told since the look began that goes on. over: the sweep has ended, nothing is noted any more. plan: with the generation
    of the spec that it was made of. written: when the sweep's status was (seconds since the epoch). version: the newest that was
    seen of the sweep, its resourceVersion.
    """

    key: Key
    trials: dict[str, TrialFacts] = field(default_factory=dict)
    made: int = 0
    whole: bool = False
    heard: set[str] = field(default_factory=set)
    over: bool = False
    plan: tuple[int, Plan] | None = None
    written: float | None = None
    version: str = ""

    def begin(self) -> None:
        """A look begins: from now on, what a watch tells is newer than the answers to what is asked."""
        self.heard.clear()

    def hear(self, name: str, found: TrialFacts | None) -> bool:
        """What a watch tells of a trial; None: it is gone. Returns whether that is news."""
        self.heard.add(name)
        before = self.trials.get(name)
        if found is None:
            self.trials.pop(name, None)
        else:
            self.trials[name] = found
        return before != found

    def read(self, trial: Mapping[str, Any]) -> None:
        """A trial as the API server answered; by now it may be gone, and the watch have told so."""
        if (name := trial["metadata"]["name"]) not in self.heard:
            self.trials[name] = facts(trial)

    async def fill(self, trials: AsyncIterator[dict[str, Any]], uid: str) -> None:
        """Read all trials of the sweep with this uid."""
        listed = set[str]()
        async for each in trials:
            if (owner := owner_of(each)) is not None and owner[1] == uid:
                listed.add(each["metadata"]["name"])
                self.read(each)
        for name in self.trials.keys() - listed - self.heard:
            del self.trials[name]
        self.whole = True

    def close(self) -> None:
        """The sweep has ended: its status is the record."""
        self.trials.clear()
        self.heard.clear()
        self.plan, self.over = None, True

    def of(self, names: Sequence[str]) -> list[TrialFacts]:
        """The facts of those trials whose number is that of their name: labels can be changed by anybody."""
        count = len(names)
        found = [each for name, each in self.trials.items() if 0 <= each.number < count and names[each.number] == name]
        self.made = max(self.made, max((each.number for each in found), default=-1) + 1)
        return found


class Book:
    """The pages, by the sweeps' uids."""

    def __init__(self) -> None:
        self._pages: dict[str, Page] = {}

    def saw(self, trial: Mapping[str, Any], *, gone: bool = False) -> Key | None:
        """A watch tells that a trial was made, changed or deleted. Returns the sweep to look at, if that is news to it."""
        owner = owner_of(trial)
        if owner is None:
            return None
        metadata, (sweep, uid) = trial["metadata"], owner
        page = self._pages.get(uid)
        if page is None:
            if gone:
                return None  # with its sweep, most often
            page = self._pages[uid] = Page((metadata["namespace"], sweep))
        if page.over:
            return None
        return page.key if page.hear(metadata["name"], None if gone else facts(trial)) else None

    def page(self, key: Key, uid: str, version: str, *, over: bool) -> Page:
        """The page of a sweep as it was just read. version, over: its own; a page that knows a later version, or that the sweep has
        ended, is of a time before the API server's store was restored from an older copy. Earlier namesakes' pages are dropped."""
        page = self._pages.get(uid)
        if page is None or is_older(version, page.version) or (page.over and not over):
            self.drop(key)
            page = self._pages[uid] = Page(key)
        page.version = version
        return page

    def clear(self) -> None:
        """Forget everything: the next reconcile of each sweep lists its trials."""
        self._pages.clear()

    def drop(self, key: Key) -> None:
        """The sweep is gone."""
        for uid in [uid for uid, page in self._pages.items() if page.key == key]:
            del self._pages[uid]

    def doubt(self, namespace: str) -> list[Key]:
        """The watch missed something: trials are listed again by the next look at their sweep. Returns those to look at."""
        doubted = [page for page in self._pages.values() if page.key[0] == namespace and page.whole and not page.over]
        for page in doubted:
            page.whole = False
        return [page.key for page in doubted]
