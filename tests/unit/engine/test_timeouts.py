from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from multistep.engine.plan.phase_timeouts import resolve_limit

NOTHING: Mapping[str, Any] = {"override": None, "maximum": None, "multiplier": None, "default_multiplier": 1.0}


@pytest.mark.parametrize(
    ("base", "options", "wanted"),
    [
        (None, {}, None),
        (60.0, {}, 60.0),
        (0.0, {}, 0.0),  # with a timeout of 0 the phase is never started
        (-5.0, {}, -5.0),
        (math.inf, {}, None),
        (math.nan, {}, None),
        (60.0, {"override": 10.0}, 10.0),
        (60.0, {"override": 0.0}, 60.0),
        (None, {"override": 10.0}, 10.0),
        (None, {"override": 0.0}, None),
        (60.0, {"maximum": 20.0}, 20.0),
        (10.0, {"maximum": 20.0}, 10.0),
        (60.0, {"maximum": 0.0}, 60.0),
        (None, {"maximum": 20.0}, None),  # no timeout, so the maximum does not apply
        (60.0, {"override": 90.0, "maximum": 80.0}, 80.0),
        (60.0, {"default_multiplier": 2.0}, 120.0),
        (60.0, {"multiplier": 0.5}, 30.0),
        (60.0, {"multiplier": 3.0, "default_multiplier": 2.0}, 180.0),  # the phase's own multiplier replaces the default one
        (60.0, {"multiplier": 0.0, "default_multiplier": 2.0}, 0.0),
        (60.0, {"maximum": 20.0, "multiplier": 3.0}, 60.0),  # the maximum applies before the multiplier
        (None, {"multiplier": 3.0}, None),
    ],
)
def test_a_limit_is_override_else_base_capped_then_multiplied(
    base: float | None, options: Mapping[str, float], wanted: float | None
) -> None:
    assert resolve_limit(base, **{**NOTHING, **options}) == wanted
