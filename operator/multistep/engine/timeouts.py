"""Time limits of phases, in seconds (Harbor 0.25, trial options)."""

from __future__ import annotations

import math


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
    seconds = min(limit, maximum or math.inf) * factor
    return None if math.isnan(seconds) or math.isinf(seconds) else seconds
