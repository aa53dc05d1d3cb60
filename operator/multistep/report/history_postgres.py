"""The history as a script for psql, which creates the table multistep_trials and adds or replaces rows by the trials' UIDs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from multistep.report.history_row import TYPES

_KINDS: Final = {
    "VARCHAR": "text",
    "DOUBLE": "double precision",
    "BIGINT": "bigint",
    "INTEGER": "integer",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
}
_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\ufffd"})


def script(rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Yield the script in pieces. rows: values in the order of TYPES. The script may be run any number of times."""
    columns = ", ".join(f'"{name}"' for name in TYPES)
    kinds = ", ".join(f'"{name}" {_KINDS.get(kind, "jsonb")}' for name, kind in TYPES.items())
    changes = ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in TYPES if name != "uid")
    yield "SET client_encoding = 'UTF8';\nBEGIN;\n"
    yield f"CREATE TABLE IF NOT EXISTS multistep_trials ({kinds}, PRIMARY KEY (uid));\n"
    yield "CREATE TEMPORARY TABLE multistep_new (LIKE multistep_trials) ON COMMIT DROP;\n"
    yield f"COPY multistep_new ({columns}) FROM STDIN;\n"
    for row in rows:
        yield "\t".join(map(_cell, row)) + "\n"
    yield "\\.\n"
    yield f"INSERT INTO multistep_trials SELECT * FROM multistep_new ON CONFLICT (uid) DO UPDATE SET {changes};\nCOMMIT;\n"


def _cell(value: Any) -> str:
    if value is None:
        return "\\N"
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    return str(value).translate(_ESCAPED)
