"""resourceVersions, which only grow unless the API server's store was restored from an older copy."""

from __future__ import annotations


def is_older(version: str, than: str) -> bool:
    """Whether a version precedes another. Versions that are no numbers cannot be compared: False."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
