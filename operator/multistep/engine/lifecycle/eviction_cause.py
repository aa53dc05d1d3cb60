"""Reads from a kubelet's eviction message whether the pod's own resource usage caused the eviction.

A node under pressure first evicts the pod that exceeds its request most, and reports the usage. A pod that far exceeds its
request caused its eviction, so this is no infrastructure failure: a phase must not be able to force a retry. Services count, too,
because a phase can make them use more. Sidecars of the pod template do not.
"""

from __future__ import annotations

import re

from multistep.api.common.quantity import quantity
from multistep.engine.plan.plan_services import CONTAINER_PREFIX

OWN_EXCESS_BYTES = 2**30
"""A pod counts as the cause of the node's pressure if its usage exceeds its request by at least this amount. A smaller excess is
normal, because many pods request 0 bytes."""

_OF_LIMITS = (
    "usage exceeds the total limit of containers",
    "exceeded its local ephemeral storage limit",
    "exceeds the limit",
)
_LOW = re.compile(r"low on resource: (memory|ephemeral-storage)\b")
_USE = re.compile(rf"Container (?:main|{CONTAINER_PREFIX}\S+) was using ([0-9.]+\w*), request is ([0-9.]+\w*)")
_TYPES = {"memory": "OutOfMemoryError", "ephemeral-storage": "OutOfDiskError"}


def own_usage_exception(message: str, *, disrupted: bool) -> str | None:
    """Return the exception type to record if the pod's own usage caused its eviction; None if the node caused it.

    message: the kubelet's eviction message; disrupted: whether the pod has the condition DisruptionTarget.
    """
    if not disrupted and any(each in message for each in _OF_LIMITS):
        return "OutOfDiskError"
    low = _LOW.search(message)
    excess = sum(max(0.0, (quantity(use) or 0.0) - (quantity(request) or 0.0)) for use, request in _USE.findall(message))
    return _TYPES[low[1]] if low is not None and excess >= OWN_EXCESS_BYTES else None
