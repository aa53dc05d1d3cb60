"""Count the crash points and fault variants that the crash tests ran, for the summary of a test run (tests/conftest.py)."""

from __future__ import annotations

from collections import Counter

crashes: Counter[str] = Counter()
"""Counters of the crash enumeration: scenarios, points, states, and runs by fault variant ("run VARIANT")."""


def crash_summary() -> str:
    """Return one line with the numbers of crash points and of runs; empty if no crash test ran."""
    runs = {name.removeprefix("run "): count for name, count in sorted(crashes.items()) if name.startswith("run ")}
    if not runs:
        return ""
    points = f"{crashes['points']:,} crash points in {crashes['scenarios']} scenarios ({crashes['states']:,} different states)"
    variants = ", ".join(f"{name} {count:,}" for name, count in runs.items())
    return (
        f"crash enumeration: {points} x {len(runs)} fault variants = {sum(runs.values()):,} runs ({variants}): "
        "all ended equal, each phase started once per attempt"
    )
