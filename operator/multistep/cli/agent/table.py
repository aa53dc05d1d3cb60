"""The table of `multistep agent list`."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from multistep.api import harbor_agents
from multistep.cli.agent.programs import PROGRAMS
from multistep.cli.terminal import table


def agents_document() -> list[dict[str, Any]]:
    """Return the agents as a list of JSON objects."""
    return [
        {
            "name": name,
            "resume": name in harbor_agents.RESUMING,
            "access": "Direct" if name in harbor_agents.DIRECT else "Gateway",
            "image": PROGRAMS[name].version if name in PROGRAMS else None,
        }
        for name in harbor_agents.NAMES
    ]


def agents_table() -> Table:
    """Return the agents as a table."""
    found = table("AGENT", "RESUME", "ACCESS", "IMAGE")
    for each in agents_document():
        found.add_row(each["name"], "yes" if each["resume"] else "-", each["access"], each["image"] or "-")
    return found
