"""Writes a trial's status, then counts its transitions in the tally and emits Events."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.status.status_size import to_json
from multistep.errors import ClusterError, Conflict, NotLeading, Unavailable
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.event_manifest import event_manifest
from multistep.kube.resources import TRIALS
from multistep.logs import also_about
from multistep.reconcile.trial.emit_trial_events import Transition, transitions
from multistep.reconcile.trial.transition_metrics import Tally
from multistep.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


class TrialWriter:
    """Writes the status of one trial. trial: the parsed trial, as last read or written; refused: whether the last write failed."""

    def __init__(self, cluster: Cluster, metrics: Metrics, tally: Tally, found: Object, trial: MultiStepTrial) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._tally = tally
        self._object = found
        self.trial = trial
        self.refused = False

    async def write(self, new: TrialStatus, *, before: TrialStatus | None = None) -> None:
        """Write the status if it changed; then emit Events.

        before: the status from which the transitions to report are computed; None: the status last read or written.
        Raises Conflict if the object was changed since it was read.
        """
        old = before or self.trial.status
        content = to_json(new)
        if content != (self._object.get("status") or {}):
            await self._apply(content)
            self.trial = self.trial.model_copy(update={"status": new})
            self._tally.observe(self.trial)
            also_about(attempt=new.attempt, step=new.current_step)
            await self.emit(transitions(old, new))

    async def require_current(self) -> None:
        """Read the trial again; raise Conflict if it changed since it was read or written. Results have no version, so without
        this check a stale reconcile could replace the results of a trial that another operator finished."""
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


async def emit_events(cluster: Cluster, about: Object, found: Sequence[Transition]) -> None:
    """Log transitions and emit them as Events, in their order, best effort: nothing depends on them."""
    for each in found:
        logger.log(logging.WARNING if each.type == "Warning" else logging.INFO, "%s: %s", each.reason, each.message)
    for each in found:
        try:
            await cluster.create(event_manifest(about, reason=each.reason, message=each.message, type=each.type))
        except (ClusterError, NotLeading) as error:
            logger.info("could not emit an Event: %s", error)
            if isinstance(error, Unavailable) and not error.status:  # each further Event could wait as long for an answer
                return
