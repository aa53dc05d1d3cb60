"""Caches a few facts of each sweep's trials, from watch events and lists, so that a reconcile need not list all trials.

The operator fills the cache from a list when it starts, and again when a watch missed an event. A wrong entry cannot create a trial
twice or exceed a limit (engine.sweep.next_trials).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from multistep.api.sweep.sweep import Scoring, SweepWeightsStatus
from multistep.engine.sweep.next_trials import TrialFacts
from multistep.engine.sweep.own_trials import SweepMembers
from multistep.engine.sweep.trial_manifests import SweepPlan, owner_of, trial_facts
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.queue.event_filter import is_older


@dataclass
class SweepEntry:
    """The cache entry of one sweep. Times are in seconds since the epoch."""

    key: Key
    scoring: Scoring = field(default_factory=Scoring)
    """The sweep's spec.scoring."""
    trials: dict[str, TrialFacts] = field(default_factory=dict)
    """Facts by trial name."""
    created: int = 0
    """Number of trials that are known to be created."""
    listed: bool = False
    """Whether all trials were listed."""
    observed: set[str] = field(default_factory=set)
    """Names of the trials with a watch event since the current reconcile started."""
    finished: bool = False
    """Whether the sweep has finished. The entry then records nothing more."""
    plan: tuple[int, SweepPlan] | None = None
    """Generation of the spec, and the plan that was made from it."""
    written: float | None = None
    """Time of the last write of the status."""
    since: float | None = None
    """Time of the first reconcile."""
    version: str = ""
    """The newest observed resourceVersion of the sweep."""
    weights: SweepWeightsStatus | None = None
    """What this process last sent to the model gateway."""
    warned: set[str] = field(default_factory=set)
    """Names of the foreign trials that were reported."""

    def start_reconcile(self, scoring: Scoring) -> None:
        """Forget earlier watch events, at the start of a reconcile.

        From now on, an event takes precedence over the responses to this reconcile's requests. ``scoring`` is the sweep's
        spec.scoring, which is unknown before its first reconcile. If it changed, the trials are listed again.
        """
        self.observed.clear()
        if scoring != self.scoring:
            self.scoring, self.listed = scoring, False
            self.trials.clear()

    def observe(self, name: str, found: TrialFacts | None) -> bool:
        """Record the facts from a trial's watch event, None if the trial was deleted. Return whether they changed."""
        self.observed.add(name)
        before = self.trials.get(name)
        if found is None:
            self.trials.pop(name, None)
        else:
            self.trials[name] = found
        return before != found

    def read(self, trial: Mapping[str, Any]) -> None:
        """Record a trial from a response, unless a watch event is newer. That event may have reported the trial's deletion."""
        if (name := trial["metadata"]["name"]) not in self.observed:
            self.trials[name] = trial_facts(trial, self.scoring)

    async def fill(self, trials: AsyncIterator[dict[str, Any]], members: SweepMembers) -> None:
        """Record all listed trials that claim to belong to the sweep, and drop cached trials that are not in the list."""
        found = set[str]()
        async for each in trials:
            if members.is_claimed_by(each):
                found.add(each["metadata"]["name"])
                self.read(each)
        for name in self.trials.keys() - found - self.observed:
            del self.trials[name]
        self.listed = True

    def close(self) -> None:
        """Drop the trials of a finished sweep, because the sweep's status has the results."""
        self.trials.clear()
        self.observed.clear()
        self.plan, self.finished = None, True

    def of(self, members: SweepMembers) -> list[TrialFacts]:
        """Return the facts of the sweep's own trials."""
        found = [each for name, each in self.trials.items() if members.plans(name, each.number)]
        self.created = max(self.created, max((each.number for each in found), default=-1) + 1)
        return found

    def foreign(self, members: SweepMembers) -> list[str]:
        """Return the names of trials that falsely claim to belong to the sweep, each only once."""
        found = {name for name, each in self.trials.items() if not members.plans(name, each.number)}
        new = sorted(found - self.warned)
        self.warned |= set(new)
        return new


class SweepCache:
    """The cache of all sweeps, with one SweepEntry per sweep."""

    def __init__(self) -> None:
        self._entries: dict[str, SweepEntry] = {}

    def observe(self, trial: Mapping[str, Any], *, deleted: bool = False) -> Key | None:
        """Record a trial's watch event. Return the sweep's key if the sweep needs a reconcile."""
        owner = owner_of(trial)
        if owner is None:
            return None
        metadata, (sweep, uid) = trial["metadata"], owner
        entry = self._entries.get(uid)
        if entry is None:
            if deleted:
                return None  # the trial was most likely deleted together with its sweep
            entry = self._entries[uid] = SweepEntry((metadata["namespace"], sweep))
        if entry.finished:
            return None
        return entry.key if entry.observe(metadata["name"], None if deleted else trial_facts(trial, entry.scoring)) else None

    def entry(self, key: Key, uid: str, version: str, *, finished: bool) -> SweepEntry:
        """Return the cache entry of a sweep that was just read, with this resourceVersion.

        If the cached entry has a later version, or is finished although the sweep is not (``finished``), the API server's store was
        restored from an older copy. A new entry then replaces the cached one. Entries of earlier sweeps of the same name are
        dropped.
        """
        entry = self._entries.get(uid)
        if entry is None or is_older(version, entry.version) or (entry.finished and not finished):
            self.drop(key)
            entry = self._entries[uid] = SweepEntry(key)
        entry.version = version
        return entry

    def clear(self) -> None:
        """Drop the cache entries of all sweeps, so that the next reconcile of each sweep lists its trials."""
        self._entries.clear()

    def drop(self, key: Key) -> None:
        """Drop the cache entries of all sweeps with this key."""
        for uid in [uid for uid, entry in self._entries.items() if entry.key == key]:
            del self._entries[uid]

    def invalidate(self, namespace: str) -> list[Key]:
        """Make the next reconcile of each active sweep in the namespace list its trials, because the watch missed an event.

        Return the keys of these sweeps.
        """
        stale = [entry for entry in self._entries.values() if entry.key[0] == namespace and entry.listed and not entry.finished]
        for entry in stale:
            entry.listed = False
        return [entry.key for entry in stale]
