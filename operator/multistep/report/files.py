"""Machine-readable reports with the same field names: JSON with the whole report, CSV and Parquet with a row per trial."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC
from typing import Any, Final

from multistep.api.trial.values import PHASES
from multistep.report.branches import Branches
from multistep.report.rows import StepRow, TrialRow
from multistep.report.statistics import CONFIDENCE
from multistep.report.summary import ReportedSweep, Summary

_AT_ONCE: Final = 1000  # rows per batch, which bounds memory
_COLUMNS: Final = tuple(field.name for field in fields(TrialRow))
_OF_ALL: Final = tuple(name for name in _COLUMNS if name not in ("branch", "step", "step_number", "source"))
_FORMULA: Final = (*"=+-@\t\r\n", *"\uff1d\uff0b\uff0d\uff20")  # prefixes of formulas; the last four are full-width
_TOKENS: Final = (
    "input_tokens", "output_tokens", "incomplete_requests", "judge_requests", "judge_input_tokens", "judge_output_tokens",
    "user_requests", "user_input_tokens", "user_output_tokens",
)  # fmt: skip
_STEP: Final = tuple(field.name for field in fields(StepRow))


def report_json(about: ReportedSweep, summary: Summary) -> dict[str, Any]:
    """Return the whole report as a JSON document."""
    columns = _columns(summary.rows)
    return {
        "sweep": about.sweep,
        "namespace": about.namespace,
        "phase": about.phase,
        "read": about.read.astimezone(UTC).isoformat(timespec="seconds"),
        "planned": about.planned,
        "cost_usd": about.cost_usd,
        "budget_usd": about.budget_usd,
        "retried": about.retried,
        "confidence": CONFIDENCE,
        "scoring": about.scoring.model_dump(mode="json", by_alias=True),
        "warnings": list(summary.warnings),
        "broken_tasks": [asdict(task) for task in summary.broken],
        "agents": [asdict(agent) for agent in summary.standings],
        "differences": [{**asdict(comparison), "is_real": comparison.is_real} for comparison in summary.pairs],
        "tasks": [asdict(task) for task in summary.tasks],
        **_branches(summary.branches),
        **({"agreement": asdict(summary.agreement)} if summary.agreement else {}),
        "durations": [asdict(duration) for duration in summary.durations],
        "failures": [
            {"failure_class": failure.failure_class, "reason": failure.reason, "trials": [row.trial for row in failure.trials]}
            for failure in summary.failures
        ],
        "trials": [_cells(row, columns) for row in summary.rows],
    }


def _branches(branches: Branches) -> dict[str, Any]:
    if not branches.steps:
        return {}
    return {
        "branches": {"steps": [asdict(step) for step in branches.steps], "agents": [asdict(agent) for agent in branches.agents]}
    }


def _columns(rows: Sequence[TrialRow]) -> Sequence[str]:
    """Return the names of the columns, without the columns of branches if no row is a branch."""
    return _COLUMNS if any(row.branch for row in rows) else _OF_ALL


def json_text(content: Mapping[str, Any]) -> str:
    """Return the document as JSON text."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _cells(row: TrialRow, columns: Sequence[str]) -> dict[str, Any]:
    """Return the row as a dict, ten times as fast as dataclasses.asdict, because a report can have a million steps."""
    steps = [{name: getattr(step, name) for name in _STEP} for step in row.steps]
    return {**{name: getattr(row, name) for name in columns}, "steps": steps}


def csv_text(rows: Sequence[TrialRow]) -> str:
    """Return the rows as CSV. Steps and rewards are JSON in one column each, unknown values are empty, and a spreadsheet runs no
    text as a formula."""
    out, columns = io.StringIO(), _columns(rows)
    writer = csv.DictWriter(out, columns, lineterminator="\r\n")  # RFC 4180
    writer.writeheader()
    for row in rows:
        cells = _cells(row, columns)
        cells |= {name: json.dumps(cells[name], ensure_ascii=False) for name in ("steps", "rewards") if cells[name] is not None}
        writer.writerow({name: inert(value) if isinstance(value, str) else value for name, value in cells.items()})
    return out.getvalue()


def inert(text: str) -> str:
    """Return the text, with an apostrophe before it if a spreadsheet would run it as a formula (OWASP, CSV injection): task names
    are untrusted."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def parquet_bytes(rows: Sequence[TrialRow]) -> bytes:
    """Return the rows as Parquet: steps as a list of structs, rewards as a map, unknown values null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _columns(rows)
    text, number, whole = pa.string(), pa.float64(), pa.int32()
    rewards = pa.map_(text, number)
    step = {
        "name": text,
        "rewards": rewards,
        "score": number,
        "passed": pa.bool_(),
        "exception": text,
        "message": text,
        "seconds": pa.struct(dict.fromkeys(PHASES, number)),
    }
    tokens = dict.fromkeys(_TOKENS, pa.int64())
    numbers = dict.fromkeys(("counts", "seconds", "cost_usd", "judge_cost_usd", "user_cost_usd"), number)
    others = {"rewards": rewards, "passed": pa.bool_()}
    wholes = dict.fromkeys(("attempt", "failed_attempts", "step_number", "number", "retry_of"), whole)
    kinds = {**wholes, **numbers, **tokens, **others}
    schema = pa.schema({**{name: kinds.get(name, text) for name in columns}, "steps": pa.list_(pa.struct(step))})
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(out, schema) as writer:
        for start in range(0, len(rows), _AT_ONCE):
            some = [_cells(row, columns) for row in rows[start : start + _AT_ONCE]]
            writer.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))
    return bytes(out.getvalue())
