"""References to content to upload into the environment. The engine creates references; multistep.sources reads the content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Content:
    """A reference to the content of one upload, which is sent as a tar stream."""

    kind: Literal["workdir", "tests", "solution", "environment", "verifier", "file"]
    """The directory of the task to upload, or "file" for one text file. "verifier" is the build context of a verifier's image,
    which is all of tests/, including files that .harborignore excludes."""
    step: str | None = None
    """Name of the step to which the directory belongs, None for the task's root."""
    name: str = ""
    """Name of the file, only for kind "file"."""
    text: str = ""
    """Text of the file, only for kind "file"."""
