"""Determines when a sweep's lease expires. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from multistep.api.common import labels
from multistep.api.sweep.lease import SweepLeaseStatus
from multistep.api.sweep.sweep import TrialSweep
from multistep.engine.status.build_conditions import time

_MAX_RENEWAL: Final = 64  # characters; the status has the digest of a longer annotation, to limit its size


def lease(sweep: TrialSweep, now: float) -> SweepLeaseStatus | None:
    """Return the status of the lease; None without spec.lease. A new value of the annotation labels.RENEWAL renews the lease."""
    if sweep.spec.lease is None:
        return None
    renewal, known = sweep.metadata.annotations.get(labels.RENEWAL, ""), sweep.status.lease
    if len(renewal) > _MAX_RENEWAL:
        renewal = hashlib.sha256(renewal.encode()).hexdigest()
    return known if known is not None and known.renewal == renewal else SweepLeaseStatus(renewal=renewal, renew_time=time(now))


def expires_at(sweep: TrialSweep, now: float, watched_since: float) -> float | None:
    """Return the time at which the lease expires if it is not renewed, in seconds since the epoch; None without spec.lease.

    watched_since: when this operator first read the sweep. While the API server is unavailable, the client cannot renew the lease
    and the operator's process ends. So the lease's time restarts at ``watched_since``, unless the lease had expired before.
    """
    held = lease(sweep, now)
    if held is None or sweep.spec.lease is None:
        return None
    expired = any(each.reason == "LeaseExpired" for each in sweep.status.conditions)
    return max(held.renew_time.timestamp(), 0.0 if expired else watched_since) + sweep.spec.lease.seconds
