"""Computes the timeouts of phases in seconds, as Harbor 0.26 does from the options of a trial."""

from __future__ import annotations

import math

LONGEST_SECONDS = 1e9  # 31 years; a longer timeout counts as no timeout, because it would overflow the runner's clock


def resolve_limit(
    base: float | None,
    *,
    override: float | None,
    maximum: float | None,
    multiplier: float | None,
    default_multiplier: float,
) -> float | None:
    """Return the effective timeout of a phase, None for no timeout.

    The timeout is ``override``, or ``base`` if ``override`` is 0 or None. It is limited to ``maximum``, unless that is 0 or None,
    and then multiplied by ``multiplier``, or by ``default_multiplier`` if the phase has no multiplier of its own.
    """
    limit = override or base
    if limit is None:
        return None
    factor = default_multiplier if multiplier is None else multiplier
    return real_limit(min(limit, maximum or math.inf) * factor)


def real_limit(seconds: float) -> float | None:
    """Return a timeout from task.toml, None (no timeout) for NaN, infinity and numbers of at least LONGEST_SECONDS."""
    return seconds if math.isfinite(seconds) and seconds < LONGEST_SECONDS else None


def real_pause(seconds: float) -> float:
    """Return a pause from task.toml, limited to the range from 0 to LONGEST_SECONDS. NaN becomes 0."""
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), LONGEST_SECONDS)
