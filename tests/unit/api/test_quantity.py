"""Quantities are parsed as Kubernetes parses them."""

from __future__ import annotations

import pytest

from multistep.api.common.base_model import quantity


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *[("0", 0.0), ("2", 2.0), ("500m", 0.5), ("-1", -1.0), (".5", 0.5), ("1.", 1.0), ("1k", 1e3), ("2G", 2e9)],
        *[("1E", 1e18), ("1e3", 1e3), ("1E-2", 0.01), ("1.5Gi", 1.5 * 2**30), ("36Ki", 36864.0), ("1Ei", 2.0**60)],
        *[("", None), ("x", None), ("many", None), ("1Xi", None), ("1 Gi", None), ("1.2.3", None), ("1e", None), ("1e3k", None)],
    ],
)
def test_a_quantity_is_a_number_and_other_text_is_none(text: str, wanted: float | None) -> None:
    assert quantity(text) == wanted
