"""Time limits of phases, in seconds (Harbor 0.25, trial options)."""

from __future__ import annotations

import math

LONGEST_SECONDS = 1e9  # 31 years: beyond it a limit is none, and the runner's clock would overflow


def resolve_limit(
    base: float | None,
    *,
    override: float | None,
    maximum: float | None,
    multiplier: float | None,
    default_multiplier: float,
) -> float | None:
    """The limit in force: (override if not zero, else base), capped by maximum (0 or None: no cap), times multiplier.

    The phase's own multiplier replaces the general one; they do not combine. No base and no override: no limit.
    """
    limit = override or base
    if limit is None:
        return None
    factor = default_multiplier if multiplier is None else multiplier
    return real_limit(min(limit, maximum or math.inf) * factor)


def real_limit(seconds: float) -> float | None:
    """A limit that can be waited for: NaN and infinity, which task.toml may hold, are no limit."""
    return seconds if math.isfinite(seconds) and seconds < LONGEST_SECONDS else None


def real_pause(seconds: float) -> float:
    """A pause that can be made."""
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), LONGEST_SECONDS)
