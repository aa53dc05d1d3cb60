"""Results of the runner's operations when they succeed."""

from __future__ import annotations

from typing import Any

PHASES = ("start", "healthcheck", "send")  # operations that run in the background, for which a client waits
DEFAULTS: dict[str, dict[str, Any]] = {
    "start": {
        "exitCode": 0,
        "signal": None,
        "timedOut": False,
        "error": None,
        "tail": "",
        "outputBytes": 0,
        "outputTruncated": False,
        "oomKills": 0,
        "memoryLimit": None,
        "durationSeconds": 0.1,
        "captures": {},
    },
    "healthcheck": {
        "healthy": True,
        "attempts": 1,
        "exitCode": 0,
        "timedOut": False,
        "tail": "",
        "error": None,
        "durationSeconds": 0.1,
    },
    "send": {"size": 0, "sha256": "ab" * 32, "version": "v", "error": None},
    "reset": {"error": None},
    "admit": {"token": "ab" * 32},
    "dismiss": {"found": True},
    "upload": {},
    "baseline": {"files": 1, "seconds": 0.1, "error": None},
    "inspect": {"findings": [], "processes": [], "processCount": 0, "incomplete": False, "seconds": 0.1, "error": None},
}
