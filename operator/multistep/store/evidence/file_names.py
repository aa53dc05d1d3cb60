"""Names of the files of the evidence, at the top of a trial's results. The list of files does not contain them."""

from __future__ import annotations

from typing import Final

STATEMENT: Final = "evidence.json"
ENVELOPE: Final = "evidence.dsse.json"
FILES: Final = "evidence.files.jsonl"
OWN: Final = frozenset({STATEMENT, ENVELOPE, FILES})
