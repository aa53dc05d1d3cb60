"""A sweep's lease: the sweep's client renews it while the client is alive. If the client dies, the sweep ends."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from multistep.api.common.base_model import Model


class SweepLease(Model):
    """Ends the sweep when its client stops renewing the lease. A new value of the annotation multistep.dev/renewal renews it."""

    seconds: Annotated[int, Field(ge=5, le=86_400)]
    """Seconds without a renewal after which active trials are stopped and the sweep is Failed, LeaseExpired."""


class SweepLeaseStatus(Model):
    """The last renewal that the operator saw."""

    renewal: str
    """Value of the annotation multistep.dev/renewal, or its SHA-256 if it is longer than 64 characters; empty before the first
    renewal."""
    renew_time: datetime
    """Time at which the operator first saw this value, by the operator's clock: the client's clock does not matter."""
