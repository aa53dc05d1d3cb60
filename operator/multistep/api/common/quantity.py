"""Kubernetes quantities, such as 500m or 2Gi."""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([a-zA-Z]*))")
_SUFFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SUFFIXES |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}


def quantity(text: str) -> float | None:
    """Return the quantity as a number; None if the text is not a quantity."""
    found = _QUANTITY.fullmatch(text)
    if found is None or (suffix := found[3] or "") not in _SUFFIXES:
        return None
    return float(found[1] + (found[2] or "")) * _SUFFIXES[suffix]
