"""The state that the actions of one reconcile of a sweep share, and the writes of the sweep's status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepStatus, TrialSweep
from multistep.api.trial.status import holds
from multistep.engine.status.status_size import bounded
from multistep.engine.sweep import sweep_status
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import SWEEPS
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, Requeue
from multistep.reconcile.sweep.trial_cache import SweepEntry
from multistep.reconcile.trial.emit_events import Transition, emit_events
from multistep.telemetry.metrics import Metrics

STATUS_SECONDS: Final = 5.0  # minimum time between two status writes in which only counts changed
NEVER_STARTED: Final = "spec.stop is true; no trial was created"
_SHOWN: Final = 3


class SweepWriter:
    """Writes the status of one sweep."""

    def __init__(self, cluster: Cluster, metrics: Metrics, found: Object, sweep: TrialSweep) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self.object = found  # the sweep as last read or written
        self.sweep = sweep  # the parsed ``object``

    async def write(self, new: SweepStatus) -> bool:
        """Write the status, and return whether it changed. Raises Conflict if the sweep was changed since it was read."""
        content, metadata = sweep_status.to_json(new), self.sweep.metadata
        if content == (self.object.get("status") or {}):
            return False
        self.object = await self._cluster.apply_status(
            SWEEPS, metadata.namespace, metadata.name, uid=metadata.uid, resource_version=metadata.resource_version, status=content
        )
        fresh = metadata.model_copy(update={"resource_version": self.object["metadata"]["resourceVersion"]})
        self.sweep = self.sweep.model_copy(update={"status": new, "metadata": fresh})
        self._metrics.sweeps.observe((metadata.namespace, metadata.name), new.phase)
        return True

    async def emit(self, found: Sequence[Transition]) -> None:
        """Emit Events of the sweep."""
        await emit_events(self._cluster, self.object, found)


@dataclass(frozen=True)
class SweepRun:
    """One reconcile of one sweep."""

    cluster: Cluster
    writer: SweepWriter
    entry: SweepEntry
    """The cached facts of the sweep and its trials."""
    clock: Callable[[], float]
    """Returns seconds since the epoch."""

    @property
    def sweep(self) -> TrialSweep:
        """Return the sweep as last read or written."""
        return self.writer.sweep

    @property
    def started(self) -> bool:
        """Return whether the sweep has started."""
        return self.sweep.status.start_time is not None

    async def write(self, new: SweepStatus) -> None:
        """Write the status if it changed, and emit Events."""
        old = self.sweep.status
        if await self.writer.write(new):
            self.entry.written, self.entry.version = self.clock(), self.sweep.metadata.resource_version
            await self.writer.emit(transitions(old, new))

    async def write_throttled(self, status: SweepStatus) -> float | None:
        """Write the status, but at most every STATUS_SECONDS if only counts changed.

        Return the seconds until changed counts may be written, None if nothing is left to write.
        """
        last, now = self.entry.written, self.clock()
        wait = 0.0 if last is None or last > now else last + STATUS_SECONDS - now  # last > now if the clock was set back
        if wait > 0 and sweep_status.urgent_fields(status) == sweep_status.urgent_fields(self.sweep.status):
            return wait if status != self.sweep.status else None
        await self.write(status)
        return None

    async def wait(self, status: SweepStatus, requeue: Requeue) -> Requeue:
        """Write the status of a sweep that cannot start yet, and return ``requeue``. If the sweep was stopped, fail it instead."""
        if self.sweep.spec.stop:
            return await self.end(sweep_status.failed_status(self.sweep, "Stopped", NEVER_STARTED, self.clock()))
        await self.write(status)
        return requeue

    async def end(self, status: SweepStatus) -> Requeue:
        """Write the final status, and return when to reconcile the finished sweep."""
        await self.write(status)
        return await self.clean_up()

    async def clean_up(self) -> Requeue:
        """Update a finished sweep's observedGeneration, and delete the sweep after its TTL. Return when to reconcile it again."""
        sweep = self.sweep
        self.entry.close()
        ttl, ended = sweep.spec.ttl_seconds_after_finished, sweep.status.completion_time
        left = None if ttl is None or ended is None else ended.timestamp() + ttl - self.clock()
        if left is not None and left <= 0:
            await self.cluster.delete(SWEEPS, sweep.metadata.namespace, sweep.metadata.name, uid=sweep.metadata.uid)
            return AT_NEXT_EVENT
        if sweep.status.observed_generation != sweep.metadata.generation:
            await self.write(sweep_status.observed_status(sweep))
        return Requeue(left)


def transitions(old: SweepStatus, new: SweepStatus) -> list[Transition]:
    """Return the transitions between two statuses of a sweep, in order."""
    found = []
    if new.start_time and not old.start_time:
        found.append(Transition("SweepStarted", _message(new)))
    if old.phase == "Suspended" and new.phase in ("Pending", "Running"):
        found.append(Transition("Resumed", _message(new)))
    changed = _why(new) != _why(old)
    if new.phase in ("Suspended", "Complete") and changed:
        found.append(Transition(_why(new)[1], _message(new)))
    if changed and (new.phase in ("Halting", "Failed") or holds(new, "Stalled")):
        found.append(Transition(_why(new)[1], _message(new), "Warning"))
    return found


def _why(status: SweepStatus) -> tuple[str | None, str]:
    return status.phase, status.conditions[0].reason if status.conditions else ""


def _message(status: SweepStatus) -> str:
    return status.conditions[0].message


def foreign_trials(names: Sequence[str]) -> Transition:
    """Return a warning about trials that claim to belong to the sweep, but were not created by the operator."""
    shown = f"{', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
    text = (
        f"{plural(len(names), 'trial claims', 'trials claim')} to be of this sweep, which did not create it ({shown}); not counted"
    )
    return Transition("ForeignTrials", bounded(text), "Warning")
