"""Enqueues the trial or sweep that a watch event concerns, and counts objects by phase."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from multistep.kube.lease import Lease
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.queue.event_filter import EventFilter
from multistep.reconcile.queue.work_queue import WorkQueue
from multistep.reconcile.sweep.reconcile_sweep import Sweeps
from multistep.reconcile.trial.reconciler import Reconciler
from multistep.telemetry.metric_types import PhaseGauge
from multistep.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]
DELETED: Final = "DELETED"  # type of the watch event of a deletion
BATCH_SECONDS: Final = 0.5
"""Events of a sweep's trials within this time cause a single reconcile of the sweep."""


class EventRouter:
    """Routes watch events to the work queues."""

    def __init__(
        self,
        lease: Lease,
        event_filter: EventFilter,
        metrics: Metrics,
        *,
        queue: WorkQueue,
        sweep_queue: WorkQueue,
        reconciler: Reconciler,
        sweeps: Sweeps,
    ) -> None:
        self._lease = lease
        self._event_filter = event_filter
        self._metrics = metrics
        self._queue = queue
        self._sweep_queue = sweep_queue
        self._reconciler = reconciler
        self._sweeps = sweeps

    def enqueue(self, key: Key, seconds: float = 0.0) -> None:
        """Enqueue a trial after ``seconds``, so that one reconcile handles all events until then. A standby ignores events, because
        a new leader reconciles every trial."""
        if self._lease.held:
            self._queue.add_within(key, seconds)

    def enqueue_sweep(self, key: Key, seconds: float = 0.0) -> None:
        """Enqueue a sweep after ``seconds``, so that one reconcile handles all events until then."""
        if self._lease.held:
            self._sweep_queue.add_within(key, seconds)

    def missed(self, kind: str, key: Key) -> None:
        """Enqueue a trial or sweep after a resync found that a watch event of the object, or of the trial's pod, was missed. If it
        was an event of a trial, the active sweeps of the namespace list their trials again."""
        if kind == "sweep":
            return self.enqueue_sweep(key)
        if kind == "trial":
            for sweep in self._sweeps.cache.invalidate(key[0]):
                self.enqueue_sweep(sweep, BATCH_SECONDS)
        return self.enqueue(key)

    def restored(self) -> None:
        """Drop the cached state of sweeps and trials, because etcd was restored from a backup."""
        self._sweeps.cache.clear()
        self._reconciler.memory.hints.clear()

    def trial_event(self, trial: Object, event: str | None) -> None:
        """Record the trial's phase for the metrics, also on a standby. Enqueue the trial and its sweep if their filters accept the
        event."""
        with _error_contained(trial, self.enqueue):
            key = trial["metadata"]["namespace"], trial["metadata"]["name"]
            _count_phase(self._metrics.phases, key, trial, event)
            sweep = self._sweeps.cache.observe(trial, deleted=event == DELETED)
            if sweep is not None:
                self.enqueue_sweep(sweep, BATCH_SECONDS)
            if self._event_filter.trial(trial, event):
                self.enqueue(key)

    def sweep_event(self, sweep: Object, event: str | None) -> None:
        """Record the sweep's phase for the metrics, also on a standby. Enqueue the sweep if the event filter accepts the event."""
        with _error_contained(sweep, self.enqueue_sweep):
            key = sweep["metadata"]["namespace"], sweep["metadata"]["name"]
            _count_phase(self._metrics.sweeps, key, sweep, event)
            if self._event_filter.sweep(sweep, event):
                self.enqueue_sweep(key)

    def pod_event(self, pod: Object, event: str | None) -> None:
        """Enqueue the pod's trial if the event filter accepts the event. The event may also free a slot for a queued trial."""
        with _error_contained(pod, None):
            seen = self._event_filter.pod(pod, event)
            if seen is None:
                return
            seconds = self._reconciler.on_pod_event(seen, event)
            if seconds is not None and (event is None or not self._event_filter.finished(seen.key)):
                self.enqueue(seen.key, seconds)


@contextmanager
def _error_contained(content: Object, enqueue: Callable[[Key], None] | None) -> Iterator[None]:
    """Log an error that an event's object causes, so that other events are still handled. Anyone may have written the object.
    ``enqueue`` requeues it, so that its reconcile reports the error in the status. None is for objects whose status the operator
    does not write."""
    try:
        yield
    except Exception:
        metadata = content.get("metadata") or {}
        key = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
        logger.exception("the event of %s %s cannot be read", content.get("kind") or "an object", "/".join(key))
        if enqueue is not None and all(key):
            enqueue(key)


def _count_phase(phases: PhaseGauge, key: Key, content: Object, event: str | None) -> None:
    if event == DELETED:
        phases.forget(key)
    else:
        phases.observe(key, (content.get("status") or {}).get("phase"))
