"""Generate the operator's table of agents' options from Harbor's classes: ``python -m hack.generate.agent_options``.

``make generate`` does not generate this table, because it needs a Python with Harbor (installed if missing) and changes only with
Harbor's version. tests/harbor compares the table with Harbor's classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from multistep.api.trial.agent_spec import TABLE
from multistep.api.trial.harbor_agents import NAMES
from tests.harbor.environment import Python, harbor_python

_PROJECT: Final = Path(__file__).parents[2] / "agent-host"


def table(python: Python) -> str:
    """Return the table of Harbor's agents' options as JSON, with a line for each option. ``python`` is an interpreter with
    Harbor."""
    done = python.run(_PROJECT / "multistep_host/agent_options.py", _PROJECT / "requirements")
    if done.returncode:
        raise RuntimeError(f"agent_options.py failed: {done.stderr[-4000:]}")
    found: Mapping[str, Mapping[str, Any]] = json.loads(done.stdout)
    known = ((name, options) for name, options in sorted(found.items()) if name in NAMES)
    agents = (f"{json.dumps(name)}: {{\n{_lines(options)}\n}}" for name, options in known)
    return "{\n" + ",\n".join(agents) + "\n}\n"


def _lines(options: Mapping[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(options[name])}" for name in sorted(options))


if __name__ == "__main__":
    TABLE.write_text(table(harbor_python()))
