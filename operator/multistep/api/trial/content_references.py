"""References to content to upload into the environment. The engine creates references; multistep.sources reads the content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Content:
    """Reference to the content of one upload, which is sent as a tar stream.

    kind: the task directory to upload, or "file" for one text file; "verifier" is the build context of a verifier's image: all of
    tests/, including files that .harborignore excludes. step: the step to which the directory belongs; None: the task's root.
    name, text: name and text of the file, for kind "file" only.
    """

    kind: Literal["workdir", "tests", "solution", "environment", "verifier", "file"]
    step: str | None = None
    name: str = ""
    text: str = ""
