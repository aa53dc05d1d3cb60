"""Generate the table of docs/reference/compose.md from the compose reader: ``python -m hack.generate.compose_page``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hack.image import ensure_compose_reader

from .reference import between_marks, markdown_table

PAGE: Final = "docs/reference/compose.md"


def with_table(page: str) -> str:
    """Return the page with an updated table of the keys of the compose specification."""
    return between_marks(page, lambda _: table())


def table() -> str:
    """Return the table of all keys, which shows how the compose reader treats each key, and why."""
    printed = subprocess.run([ensure_compose_reader(), "keys"], capture_output=True, check=True).stdout
    return markdown_table(("key", "outcome", "note"), [_row(each) for each in json.loads(printed)])


def _row(key: Mapping[str, str]) -> list[str]:
    return [f"`{key['path']}`", key["outcome"], key["text"]]


if __name__ == "__main__":
    file = Path(PAGE)
    file.write_text(with_table(file.read_text()))
