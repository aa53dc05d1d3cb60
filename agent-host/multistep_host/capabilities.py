"""Print the capabilities of Harbor's registered agents as JSON: `python -m multistep_host.capabilities`."""

from __future__ import annotations

import json

from harbor.agents.factory import AgentFactory
from harbor.models.agent.name import AgentName
from harbor.models.bridge import BridgeKind


def capabilities() -> dict[str, dict[str, bool | float]]:
    """Return each registered agent's capabilities and the timeout of its setup, from Harbor's classes."""
    found = {}
    for name in AgentFactory.registered_names():
        agent = AgentFactory.get_agent_class(AgentName(name))
        has = agent.capabilities
        found[name] = {
            "resume": has.resume,
            "mcp": has.mcp_servers,
            "mcpHeaders": has.mcp_http_headers,
            "skills": has.skills,
            "baseURL": has.base_url,
            "webTools": has.native_web_tools,
            "bridge": BridgeKind.ACP in has.bridges,
            "setupSeconds": agent.DEFAULT_SETUP_TIMEOUT_SEC,
        }
    return found


if __name__ == "__main__":
    print(json.dumps(capabilities(), indent=1))
