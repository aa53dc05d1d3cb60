"""What a kubelet's eviction message tells of the pod's own part in it.

A node that runs low evicts the pod that uses most beyond its request first, and says how much that is. A pod that asked
for little and took much is not the victim of an outside cause: else a phase could buy itself another attempt.
"""

from __future__ import annotations

import re

OWN_EXCESS_BYTES = 2**30
"""Whoever uses this much more than was requested has run the node low; less may be anybody's (a request is often 0)."""

_OF_LIMITS = (
    "usage exceeds the total limit of containers",
    "exceeded its local ephemeral storage limit",
    "exceeds the limit",
)
_LOW = re.compile(r"low on resource: (memory|ephemeral-storage)\b")
_USE = re.compile(r"Container main was using ([0-9.]+\w*), request is ([0-9.]+\w*)")
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")
_SUFFIXES = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SUFFIXES |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_TYPES = {"memory": "OutOfMemoryError", "ephemeral-storage": "OutOfDiskError"}


def own_doing(message: str, *, disrupted: bool) -> str | None:
    """The exception that a phase has by its own use, or None if the pod went for its node's sake. disrupted: the node says so."""
    if not disrupted and any(each in message for each in _OF_LIMITS):
        return "OutOfDiskError"
    low, use = _LOW.search(message), _USE.search(message)
    if low is None or use is None or quantity(use[1]) - quantity(use[2]) < OWN_EXCESS_BYTES:
        return None
    return _TYPES[low[1]]


def quantity(text: str) -> float:
    """A quantity as Kubernetes writes it, in bytes; 0 for what is none."""
    found = _QUANTITY.fullmatch(text)
    return float(found[1]) * _SUFFIXES.get(found[2], 0.0) if found else 0.0
