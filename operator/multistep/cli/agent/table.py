"""The table of `multistep agent list`."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from multistep.api.trial import harbor_agents
from multistep.cli.agent.programs import PROGRAMS
from multistep.cli.terminal import table

LEGEND = """\
RESUME  the agent can continue its trajectory in the next step (--resume)
ACCESS  Gateway: it can use the model gateway; Direct: it takes no URL, so it needs access Direct
IMAGE   version of which `multistep agent build` builds an image by default; -: no image can be built"""


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


def agents_table() -> Group:
    """Return the agents as a table with a legend."""
    return Group(_table(), Text(f"\n{LEGEND}"))


def _table() -> Table:
    found = table("AGENT", "RESUME", "ACCESS", "IMAGE")
    for each in agents_document():
        found.add_row(each["name"], "yes" if each["resume"] else "-", each["access"], each["image"] or "-")
    return found
