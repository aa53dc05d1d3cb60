"""Why a task cannot be had: the reasons of conditions, as docs/failures.md has them."""

from __future__ import annotations

from typing import Final

NOT_FOUND: Final = "TaskNotFound"
DENIED: Final = "TaskAccessDenied"
TOO_LARGE: Final = "TaskTooLarge"
DIGEST: Final = "TaskDigestMismatch"
NOT_ALLOWED: Final = "TaskSourceNotAllowed"
FETCHING: Final = "TaskFetching"
