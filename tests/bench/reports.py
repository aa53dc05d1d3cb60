"""Measure the reports on a sweep of 1,000 trials with the usage of their models: time of each format, and memory."""

from __future__ import annotations

import io
import json
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from multistep.cli.sweep.sweep_report import standings_table
from multistep.report.files import csv_text, json_text, parquet_bytes, report_json
from multistep.report.html_page import report_page
from multistep.report.rows import trial_row
from multistep.report.summary import ReportedSweep, Summary, summarize
from tests.unit.report.usage_samples import trials

T = TypeVar("T")


@dataclass(frozen=True)
class ReportCost:
    """Cost of all reports. trials: number of trials; seconds: by action, in order (reading, then each format); grown_bytes:
    growth of the process's peak memory; tokens: sum over all trials."""

    trials: int
    seconds: Mapping[str, float]
    grown_bytes: int
    tokens: int


def measure() -> ReportCost:
    """Generate each report once, and return the cost."""
    before, seconds = _peak_bytes(), dict[str, float]()
    listed = json.loads(json.dumps(list(trials())))  # as parsed from the API server's answer: no object is shared between trials
    summary = _timed(seconds, "read", lambda: summarize(map(trial_row, listed)))
    for form, make in _forms(summary).items():
        _timed(seconds, form, make)
    tokens = sum((each.input_tokens or 0) + (each.output_tokens or 0) for each in summary.rows)
    return ReportCost(len(summary.rows), seconds, _peak_bytes() - before, tokens)


def table(cost: ReportCost) -> Table:
    """Return a table with one row."""
    made = Table(*cost.seconds, "memory rose by MiB", title=f"reports on {cost.trials} trials with {cost.tokens:,} tokens, seconds")
    made.add_row(*(f"{each:.2f}" for each in cost.seconds.values()), f"{cost.grown_bytes / 2**20:.1f}")
    return made


def _forms(summary: Summary) -> Mapping[str, Callable[[], object]]:
    about = ReportedSweep("bench", "bench", datetime.now(UTC), planned=len(summary.rows))
    return {
        "table": lambda: Console(file=io.StringIO()).print(standings_table(summary)),
        "html": lambda: report_page(about, summary),
        "csv": lambda: csv_text(summary.rows),
        "json": lambda: json_text(report_json(about, summary)),
        "parquet": lambda: parquet_bytes(summary.rows),
    }


def _timed(seconds: dict[str, float], what: str, work: Callable[[], T]) -> T:
    start = time.monotonic()
    found = work()
    seconds[what] = time.monotonic() - start
    return found


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
