"""Condition reasons for tasks that cannot be read or fetched (docs/reference/failures.md)."""

from __future__ import annotations

from typing import Final

NOT_FOUND: Final = "TaskNotFound"
DENIED: Final = "TaskAccessDenied"
TOO_LARGE: Final = "TaskTooLarge"
DIGEST: Final = "TaskDigestMismatch"
NOT_ALLOWED: Final = "TaskSourceNotAllowed"
FETCHING: Final = "TaskFetching"
