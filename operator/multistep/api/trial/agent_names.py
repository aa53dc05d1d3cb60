"""The names of the operator's own agents, and the displayed name of any agent. Has few imports, to keep shell completion fast."""

from __future__ import annotations

from typing import Final

PLAIN: Final = ("oracle", "nop")
"""Names of the operator's own agents that run no program of the user's."""
BUILT_IN: Final = (*PLAIN, "command")
"""Names of the operator's own agents."""


def agent_label(name: str | None, import_path: str | None) -> str:
    """Return the agent's name for labels, metrics, tables and reports: spec.agent.name, else the class name in the import path."""
    return name or (import_path or "").rpartition(":")[2]
