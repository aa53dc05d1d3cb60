"""Periodic resync: compares lists of objects with the watch events, and requeues objects whose events were missed.

A watch can break, be delayed, or skip the changes during a gap, so no trial may depend on a watch alone. After the API server's
store was restored from an older copy, a watch reports nothing until new resourceVersions exceed those that the watch has seen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol
from zlib import crc32

from multistep.api.common.plural import plural
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import PODS, SWEEPS, TRIALS, Resource
from multistep.kube.shard import Shard
from multistep.pods import pod_identity
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.queue.event_filter import EventFilter, Name, Seen, is_older
from multistep.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

REVISIT_SECONDS: Final = 600
"""An unfinished trial is reconciled at least this often. A whole number of seconds."""
GRACE_SECONDS: Final = 10.0  # pause after a list, because watch events of listed objects may arrive a little later
_WHOLE: Final = {"trial": TRIALS, "sweep": SWEEPS}  # the kinds of objects that are reconciled
SOONER: Final = 0.5  # factor by which the interval is shortened after a comparison that found missed events
WATCH_TIMEOUT_SECONDS: Final = 330  # a watch ends after this time, and the next watch gets the events that it missed
# The watches are stalled after this many comparisons with missed events in a row, over more than WATCH_TIMEOUT_SECONDS.
STALLED_AFTER: Final = 14


class Lister(Protocol):
    """The API server's list call."""

    async def list_metadata(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = ""
    ) -> list[Object]: ...


class Resync:
    """Compares lists of objects with the observed watch events."""

    def __init__(
        self,
        lister: Lister,
        event_filter: EventFilter,
        add: Callable[[str, Key], None],
        metrics: Metrics,
        *,
        shard: Shard,
        restored: Callable[[], object] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the resync.

        ``shard`` selects the watched objects. ``add`` is called with the kind of a changed object and the key of the trial or sweep
        to reconcile. ``restored`` is called when the API server's store was restored from an older copy.
        """
        self._lister = lister
        self._event_filter = event_filter
        self._add = add
        self._metrics = metrics
        self._shard = shard
        self._restored = restored
        self._sleep = sleep
        self._clock = clock
        self._findings = 0  # number of comparisons in a row that found missed events
        self._first_finding = 0.0  # when the first of these comparisons ended
        self._revisited_at: float | None = None
        self.stalled = False  # whether the watches have missed events for so long that the process must restart
        self.finding = ""  # message about the events that were missed before the last comparison, "" if none was missed

    def pause_seconds(self, usual: float) -> float:
        """Return the seconds until the next comparison, which are fewer if the last one found missed events."""
        return usual * SOONER if self.finding else usual

    async def everything(self) -> None:
        """Requeue every trial and every sweep."""
        for kind, resource in _WHOLE.items():
            for key in await self._versions(resource):
                self._add(kind, key)

    async def compare(self) -> None:
        """Requeue each trial or sweep for which a watch missed a change of the object or its pods, and every unfinished sweep."""
        before = self._event_filter.known()
        with self._event_filter.listening() as reported:
            listed = await self._listed()
            await self._sleep(GRACE_SECONDS)
        changed = [name for name, seen in listed.items() if name not in reported and _version(before, name) != seen.version]
        gone = [name for name in before.keys() - listed.keys() if name not in reported]
        older = [name for name in listed if is_older(listed[name].version, _version(before, name))]
        if older := older or self._event_filter.take_older():
            logger.warning(
                "the API server's store was restored from an older copy: the version of %s went back", "/".join(older[0])
            )
            self._restored()
        for name in [*changed, *gone]:  # deletions do not count as missed events, because after a gap a watch does not report them
            self._event_filter.note(name, listed.get(name))
            self._add(name[0], (listed.get(name) or before[name]).key)
        for name in listed.keys() - set(changed) if older else _unfinished_sweeps(before, listed) - set(changed):
            self._add(name[0], listed[name].key)
        for name in self._revisited(before, listed) - set(changed):
            self._add("pod", listed[name].key)  # with the kind "pod", only this trial is reconciled and not its sweep
        self._conclude(changed)

    def _revisited(self, before: Mapping[Name, Seen], listed: Mapping[Name, Seen]) -> set[Name]:
        """Return the unfinished trials that are due for a reconcile.

        Each is reconciled every REVISIT_SECONDS, whatever it waits for, so that no trial stops forever because of a lost event.
        """
        now, last = self._clock(), self._revisited_at
        self._revisited_at = now
        if last is None:
            return set()
        due = {int(at % REVISIT_SECONDS) for at in range(int(last), int(min(now, last + REVISIT_SECONDS)))}
        unfinished = {each for each in listed if each[0] == "trial" and not (each in before and before[each].finished)}
        return {each for each in unfinished if crc32("/".join(each).encode()) % REVISIT_SECONDS in due}

    def _conclude(self, changed: Sequence[Name]) -> None:
        self._findings, now = self._findings + 1 if changed else 0, self._clock()
        if self._findings <= 1:
            self._first_finding = now
        self.stalled = self._findings >= STALLED_AFTER and now - self._first_finding > WATCH_TIMEOUT_SECONDS
        what = plural(len(changed), "change")
        self.finding = f"no watch reported {what}, {'/'.join(changed[0])} among them" if changed else ""
        for kind, _, _ in changed:
            self._metrics.missed_watch_events.labels(kind).inc()
        if changed:
            logger.warning("%s", self.finding)

    async def _listed(self) -> dict[Name, Seen]:
        found: dict[Name, Seen] = {}
        for kind, resource in _WHOLE.items():
            found |= {(kind, *key): Seen(key, version) for key, version in (await self._versions(resource)).items()}
        for namespace in self._shard.namespaces_to_list:
            for pod in await self._lister.list_metadata(
                PODS, namespace, label_selector=self._shard.selecting(pod_identity.LABEL_TRIAL)
            ):
                if (of := pod_identity.trial_of({"metadata": pod})) is not None:
                    found["pod", pod["namespace"], pod["name"]] = Seen(of, pod["resourceVersion"])
        return found

    async def _versions(self, resource: Resource) -> dict[Key, str]:
        """Return the resourceVersions of all objects of a kind in this shard."""
        selector = self._shard.selector
        lists = [
            await self._lister.list_metadata(resource, each, label_selector=selector) for each in self._shard.namespaces_to_list
        ]
        return {(each["namespace"], each["name"]): each["resourceVersion"] for found in lists for each in found}


def _unfinished_sweeps(before: Mapping[Name, Seen], listed: Mapping[Name, Seen]) -> set[Name]:
    return {name for name in listed if name[0] == "sweep" and not (name in before and before[name].finished)}


def _version(seen: Mapping[Name, Seen], name: Name) -> str:
    return seen[name].version if name in seen else ""
