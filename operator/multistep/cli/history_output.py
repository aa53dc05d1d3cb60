"""Prints the answers of `multistep history`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from multistep.cli.terminal import clean, print_bytes, print_json, print_out, print_text
from multistep.report.files import inert
from multistep.report.history_database import HistoryDatabase
from multistep.report.history_postgres import script
from multistep.report.history_questions import Filters, Row


def print_rows(rows: Sequence[Row], output: str) -> None:
    """Print rows that have the same columns, as a table, JSON or CSV."""
    if output == "json":
        print_json([{name: _plain(value) for name, value in row.items()} for row in rows])
    elif output == "csv":
        print_text(_csv(rows))
    elif not rows:
        print_text("no trials\n")
    else:
        print_out(_table(rows))


def print_postgres(database: HistoryDatabase, filters: Filters) -> None:
    """Print the script for psql."""
    for piece in script(database.rows(*filters.where(every=True))):
        print_bytes(piece.encode(errors="replace"))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        number = any(isinstance(row[name], int | float) for row in rows)
        table.add_column(Text(clean(name.replace("_", " "))), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(clean(_text(value))) for value in row.values()))
    return table


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list():
            return ", ".join(map(str, value))
    return str(value)


def _csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")  # RFC 4180
    writer.writerows([list(rows[0])] if rows else [])
    writer.writerows([[_cell(value) for value in row.values()] for row in rows])
    return out.getvalue()


def _cell(value: object) -> object:
    plain = _plain(value)
    return inert(plain) if isinstance(plain, str) else json.dumps(plain) if isinstance(plain, list | dict) else plain


def _plain(value: Any) -> Any:
    """Return a value of the database as JSON has it."""
    match value:
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case date() | datetime():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value if not isinstance(value, float) or abs(value) < float("inf") else None
    return str(value)
