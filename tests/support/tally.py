"""Count what the crash tests tried, for the summary at the end of a run (tests/conftest.py)."""

from __future__ import annotations

from collections import Counter

crashes: Counter[str] = Counter()
"""Of the crash enumeration: scenarios, points, and runs by variant ("run VARIANT")."""


def crash_summary() -> str:
    """Return one line about what the crash tests tried; empty if none ran."""
    runs = {name.removeprefix("run "): count for name, count in sorted(crashes.items()) if name.startswith("run ")}
    if not runs:
        return ""
    points = f"{crashes['points']:,} crash points in {crashes['scenarios']} scenarios ({crashes['states']:,} different states)"
    variants = ", ".join(f"{name} {count:,}" for name, count in runs.items())
    return (
        f"crash enumeration: {points} x {len(runs)} fault variants = {sum(runs.values()):,} runs ({variants}): "
        "all ended equal, each phase started once per attempt"
    )
