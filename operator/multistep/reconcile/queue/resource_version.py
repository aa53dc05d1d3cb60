"""Compares resourceVersions, which only grow unless the API server's store was restored from an older copy."""

from __future__ import annotations


def is_older(version: str, than: str) -> bool:
    """Return whether a version precedes another; False for versions that are not numbers."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
