"""Computes the timeouts of phases, in seconds, as Harbor 0.25 does (trial options)."""

from __future__ import annotations

import math

LONGEST_SECONDS = 1e9  # 31 years: a longer timeout counts as no timeout, because it would overflow the runner's clock


def resolve_limit(
    base: float | None,
    *,
    override: float | None,
    maximum: float | None,
    multiplier: float | None,
    default_multiplier: float,
) -> float | None:
    """Return the effective timeout: ``override`` (0 or None: ``base``), at most ``maximum`` (0 or None: none), times the
    multiplier.

    The multiplier is ``multiplier``, the phase's own, or ``default_multiplier`` if the phase has none. Without base and override
    there is no timeout.
    """
    limit = override or base
    if limit is None:
        return None
    factor = default_multiplier if multiplier is None else multiplier
    return real_limit(min(limit, maximum or math.inf) * factor)


def real_limit(seconds: float) -> float | None:
    """Return the timeout; None (no timeout) for NaN, infinity and numbers >= LONGEST_SECONDS, which task.toml may have."""
    return seconds if math.isfinite(seconds) and seconds < LONGEST_SECONDS else None


def real_pause(seconds: float) -> float:
    """Return a pause between 0 and LONGEST_SECONDS; 0 for NaN."""
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), LONGEST_SECONDS)
