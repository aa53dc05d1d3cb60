"""References to content to upload into the environment. The engine names the content, and sources provide it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Content:
    """The content of one upload, sent as a tar stream.

    kind: a directory of the task, or "file": one text file. step: of the directory; None: the task's root.
    name, text: of a "file" only.
    """

    kind: Literal["workdir", "tests", "solution", "environment", "file"]
    step: str | None = None
    name: str = ""
    text: str = ""
