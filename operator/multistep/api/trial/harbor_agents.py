"""The agents that Harbor 0.26 has, which the agent host runs, and their capabilities.

tests/harbor compares the tables of this module with Harbor's own classes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

HARBOR_VERSION: Final = "0.26"
"""The version of Harbor that the agent host has."""

NAMES: Final = (
    "acp",
    "aider",
    "antigravity-cli",
    "antigravity-sdk",
    "claude-code",
    "cline-cli",
    "code-puppy",
    "codex",
    "computer-1",
    "copilot-cli",
    "cortex-code",
    "cursor-cli",
    "deerflow",
    "devin",
    "dspy-rlm",
    "eve",
    "fx",
    "fx-dev",
    "gemini-cli",
    "goose",
    "grok-build",
    "hermes",
    "junie",
    "kimi-cli",
    "kimi-code",
    "langgraph",
    "mcode",
    "mimo",
    "mini-swe-agent",
    "muse-code",
    "nemo-agent",
    "openclaw",
    "opencode",
    "opencode-v2",
    "openhands",
    "openhands-sdk",
    "pi",
    "qwen-coder",
    "rovodev-cli",
    "strands",
    "swe-agent",
    "terminus-2",
    "trae-agent",
    "vibe",
)
"""Names of Harbor's agents, without oracle and nop, which need no agent host, and without those in LEFT_OUT."""

LEFT_OUT: Final = {
    "fabric": "it cannot be installed with Harbor 0.26, because the public package index has no nemo-fabric-evidence; in an agent "
    "host's image that has it, use importPath harbor.agents.installed.fabric:FabricAgent"
}
"""Agents that Harbor registers and the agent host cannot run, each with the reason."""

RESUMING: Final = frozenset(
    {
        "aider",
        "claude-code",
        "codex",
        "copilot-cli",
        "cortex-code",
        "gemini-cli",
        "goose",
        "hermes",
        "junie",
        "kimi-cli",
        "kimi-code",
        "mcode",
        "mimo",
        "muse-code",
        "opencode",
        "opencode-v2",
        "pi",
        "qwen-coder",
    }
)
"""Names of the agents that can resume their trajectory in the next step."""


BRIDGED: Final = frozenset({"claude-code", "codex", "gemini-cli", "opencode", "opencode-v2"})
"""Names of the agents to which a simulated user can talk, through Harbor's ACP bridge."""


DIRECT: Final = frozenset({"acp", "cline-cli", "cortex-code", "cursor-cli", "devin", "eve", "junie", "rovodev-cli"})
"""Names of the agents that accept no base URL and therefore cannot use the model gateway."""


WEB_TOOLS: Final = frozenset(
    {
        "claude-code",
        "codex",
        "copilot-cli",
        "cortex-code",
        "deerflow",
        "gemini-cli",
        "grok-build",
        "mimo",
        "openclaw",
        "opencode",
        "opencode-v2",
    }
)
"""Names of the agents with tools that search the web, which their option disable_web_search turns off.

A limited network does not stop these tools if the provider runs them.
"""


SETUP_SECONDS: Final = {"hermes": 1200.0}
"""Timeouts in seconds of the agents' setups to which Harbor gives more than the usual 360 s."""


WITHOUT_MCP: Final = frozenset(
    {
        "aider",
        "code-puppy",
        "computer-1",
        "cortex-code",
        "deerflow",
        "muse-code",
        "nemo-agent",
        "rovodev-cli",
        "trae-agent",
    }
)
"""Names of the agents that use no MCP servers."""


MCP_HEADERS: Final = frozenset({"claude-code", "codex", "opencode-v2"})
"""Names of the agents that send the headers of MCP servers."""


WITHOUT_SKILLS: Final = WITHOUT_MCP | {
    "acp",
    "devin",
    "dspy-rlm",
    "langgraph",
    "mini-swe-agent",
    "openhands",
    "strands",
    "swe-agent",
}
"""Names of the agents that load no skills."""


NEED_MODEL: Final = frozenset(
    {
        "aider",
        "antigravity-cli",
        "cline-cli",
        "code-puppy",
        "codex",
        "computer-1",
        "cursor-cli",
        "dspy-rlm",
        "fx",
        "fx-dev",
        "gemini-cli",
        "goose",
        "hermes",
        "kimi-cli",
        "mcode",
        "mimo",
        "mini-swe-agent",
        "openclaw",
        "opencode",
        "opencode-v2",
        "pi",
        "swe-agent",
        "terminus-2",
        "trae-agent",
        "vibe",
    }
)
"""Names of the agents that fail without a model. The other agents have a default, or read the model from a variable or a file."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar known name, "" if none is similar."""
    similar = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {similar[0]!r}?" if similar else ""
