"""Generate the table of docs/reference/metrics.md from the metrics: ``python -m hack.generate.metrics_page``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from multistep.telemetry.metric_types import Description
from multistep.telemetry.metrics import TABLE

from .reference import between_marks, markdown_table

PAGE: Final = "docs/reference/metrics.md"


def with_table(page: str) -> str:
    """Return the page with an updated table of metrics."""
    return between_marks(page, lambda _: table())


def table() -> str:
    """Return the table of the operator's own metrics."""
    return markdown_table(("metric", "type", "labels", "what"), [_row(each.described) for each in TABLE])


def _row(metric: Description) -> list[str]:
    labels = [*(f"`{each}`" for each in metric.labels), *(f"`{each}`?" for each in metric.choices)]
    return [f"`{metric.name}`", metric.type, ", ".join(labels), metric.text]


if __name__ == "__main__":
    file = Path(PAGE)
    file.write_text(with_table(file.read_text()))
