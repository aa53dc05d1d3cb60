"""Names what is to be uploaded into the environment, without holding it: the engine asks for it, sources deliver it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Content:
    """What one upload carries, as a tar stream.

    kind: a directory of the task, or "file": one text file. step: whose directory; None = the task's root.
    name, text: of a "file" only.
    """

    kind: Literal["workdir", "tests", "solution", "environment", "file"]
    step: str | None = None
    name: str = ""
    text: str = ""
