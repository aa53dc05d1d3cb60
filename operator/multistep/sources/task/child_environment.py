"""The environment variables of the child processes that fetch and read tasks."""

from __future__ import annotations

import os


def child_environment(*passed: str) -> dict[str, str]:
    """Return the variables of a child process. passed: names of the operator's variables that the child receives, too."""
    given = {name: os.environ[name] for name in ("PATH", "LANG", *passed) if name in os.environ}
    return given | {"MALLOC_ARENA_MAX": "2", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
