"""When a sweep's lease expires. Pure."""

from __future__ import annotations

from typing import Final

from multistep.api import labels
from multistep.api.sweep import TrialSweep
from multistep.api.sweep_lease import SweepLeaseStatus
from multistep.engine.status_conditions import time

_MAX_RENEWAL: Final = 64  # characters of the annotation that matter, which bounds the status


def lease(sweep: TrialSweep, now: float) -> SweepLeaseStatus | None:
    """Return the status of the lease: an unseen value of the annotation renews it now. None without spec.lease."""
    if sweep.spec.lease is None:
        return None
    renewal, known = sweep.metadata.annotations.get(labels.RENEWAL, "")[:_MAX_RENEWAL], sweep.status.lease
    return known if known is not None and known.renewal == renewal else SweepLeaseStatus(renewal=renewal, renew_time=time(now))


def expires_at(sweep: TrialSweep, now: float) -> float | None:
    """Return when the lease expires (seconds since the epoch), if it is not renewed. None without spec.lease."""
    held = lease(sweep, now)
    return None if held is None or sweep.spec.lease is None else held.renew_time.timestamp() + sweep.spec.lease.seconds
