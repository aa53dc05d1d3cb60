"""Decides what follows if the API server rejects a pod: retry (quota, admission controller), or fail the trial (invalid pod)."""

from __future__ import annotations

from multistep.engine.lifecycle.decisions import Wait
from multistep.errors import ClusterError, InvalidSpec
from multistep.reconcile.admission.quotas import EXCEEDED

QUOTA_EXCEEDED = "QuotaExceeded"
REJECTED_RETRY_SECONDS = 10.0


def rejection_wait(error: ClusterError) -> Wait:
    """Return the wait after a rejection by a quota or admission controller.

    Raises InvalidSpec if the pod is invalid, and all other errors unchanged.
    """
    denied = "is forbidden" in str(error) or "denied the request" in str(error)  # webhooks reject with any HTTP status
    if error.status in (400, 422) and not denied:
        raise InvalidSpec(f"the API server rejected a pod of the trial: {error}") from error
    if error.status != 403 and not denied:
        raise error
    reason = QUOTA_EXCEEDED if EXCEEDED in str(error) else "PodForbidden"
    return Wait(reason, str(error), REJECTED_RETRY_SECONDS)
