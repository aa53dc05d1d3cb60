"""Writes a trial's status, then counts its transitions in the metrics and emits Events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.status.status_size import redacted, to_json
from multistep.errors import Conflict
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import TRIALS
from multistep.logs import also_about
from multistep.reconcile.trial.emit_events import Transition, emit_events, transitions
from multistep.telemetry.metrics import Metrics


class TrialWriter:
    """Writes the status of one trial."""

    def __init__(
        self,
        cluster: Cluster,
        metrics: Metrics,
        observe: Callable[[MultiStepTrial], object],
        found: Object,
        trial: MultiStepTrial,
    ) -> None:
        """Create the writer. ``observe`` is called with the trial after each write."""
        self._cluster = cluster
        self._metrics = metrics
        self._observe = observe
        self._object = found
        self.trial = trial  # the parsed trial, as last read or written
        self.refused = False  # whether the last read or write failed
        self.secrets: Collection[str] = ()  # values that no message may contain

    async def write(self, new: TrialStatus, *, before: TrialStatus | None = None) -> None:
        """Write the status if it changed, and then emit Events. Raises Conflict if the object was changed since it was read.

        The Events report the transitions from ``before``, or from the status last read or written if ``before`` is None.
        """
        old, new = before or self.trial.status, redacted(new, self.secrets)
        content = to_json(new)
        if content != (self._object.get("status") or {}):
            await self._apply(content)
            self.trial = self.trial.model_copy(update={"status": new})
            self._observe(self.trial)
            also_about(attempt=new.attempt, step=new.current_step)
            await self.emit(transitions(old, new))

    async def require_current(self) -> None:
        """Raise Conflict if the trial has changed since it was read or written.

        Results have no version, so without this check a reconcile with an outdated trial could replace the results of a trial that
        another operator has finished.
        """
        metadata, self.refused = self.trial.metadata, True
        found = await self._cluster.get(TRIALS, metadata.namespace, metadata.name)
        if (now := found["metadata"])["resourceVersion"] != metadata.resource_version or now["uid"] != metadata.uid:
            raise Conflict(f"{metadata.namespace}/{metadata.name} was changed", status=409, reason="Conflict")
        self.refused = False

    async def _apply(self, content: Object) -> None:
        metadata, self.refused = self.trial.metadata, True
        self._object = await self._cluster.apply_status(
            TRIALS, metadata.namespace, metadata.name, uid=metadata.uid, resource_version=metadata.resource_version, status=content
        )
        self.refused = False
        self._metrics.status_writes.inc()
        fresh = metadata.model_copy(update={"resource_version": self._object["metadata"]["resourceVersion"]})
        self.trial = self.trial.model_copy(update={"metadata": fresh})

    async def emit(self, found: Sequence[Transition]) -> None:
        """Emit Events of the trial."""
        await emit_events(self._cluster, self._object, found)
