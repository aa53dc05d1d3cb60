"""Compares an agent whose program is in the image with one that Harbor installs: both must configure the environment alike."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from harbor.agents.base import BaseAgent
from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.agent.context import AgentContext
from harbor.models.agent.name import AgentName

from multistep_host import preinstalled
from multistep_host.phase_requests import SetupRequest
from multistep_host.trial import create_agent
from multistep_host.variables import Variables
from sandbox import Sandbox
from test_agents import MODEL, NAMES, kwargs_of

INSTALLED = [name for name in NAMES if issubclass(AgentFactory.get_agent_class(AgentName(name)), BaseInstalledAgent)]
# Files that the installation of a program writes outside of it. They are part of the program: who puts the program into an image,
# puts them there, too.
OF_THE_PROGRAM = {
    "copilot-cli": {"/home/.bashrc"},  # PATH
    "devin": {"/home/.config/devin/config.json"},  # the installer has run
    "nemo-agent": {"/home/.bashrc"},  # PATH
    "swe-agent": {"/etc/profile.d/testbed-conda.sh", "/root/.bashrc", "/usr/local/bin/sweagent"},
}
LOADS_SKILLS = sorted(name for name in INSTALLED if AgentFactory.get_agent_class(AgentName(name)).capabilities.skills)
USES_MCP = sorted(name for name in INSTALLED if AgentFactory.get_agent_class(AgentName(name)).capabilities.mcp_servers)
# openclaw copies its settings, with the MCP servers, from the host's directory of logs, which AgentLogs.share uploads.
USES_MCP.remove("openclaw")
OF_ANOTHER_PROVIDER = {
    **dict.fromkeys(("antigravity-cli", "antigravity-sdk", "gemini-cli"), "gemini/gemini-2.5-pro"),
    **dict.fromkeys(("codex", "fx", "fx-dev", "qwen-coder", "vibe"), "openai/gpt-5"),
}
PACKAGE = {"id": "a", "name": "a", "version": "1", "description": "d", "distribution": {"npx": {"package": "a@1"}}}
VARIABLES = {
    **dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "CURSOR_API_KEY", "DEVIN_API_KEY"), "key"),
    **dict.fromkeys(("XAI_API_KEY", "JUNIE_API_KEY", "SNOWFLAKE_ACCOUNT", "SNOWFLAKE_USER", "SNOWFLAKE_PAT"), "key"),
    "ROVODEV_USER_API_TOKEN": "key",
    "FX_BASE_URL": "http://models.test/v1",
    "ROVODEV_USER_EMAIL": "a@b.test",
}
SKILLS, SKILL = "/skills-of-task", "the text of a skill"
SERVER = "http://tools.test/mcp"
# The runner of antigravity-sdk is started by the Python that the installation chose.
CHOSEN_PYTHON = 'IFS= read -r agent_python < /installed-agent/run_agent.python && "$agent_python" '


class Run:
    """What a trial of one step wrote. set_up: number of commands and uploads before the step; error: type of the exception that
    ended it, None without one. step: commands of the step with their variables, and uploads."""

    def __init__(self, sandbox: Sandbox, set_up: int, error: str | None) -> None:
        self.files, self.asked, self.error = sandbox.files(), sandbox.asked, error
        self.step = [text.replace(CHOSEN_PYTHON, "").replace(str(sandbox.root), "") for text in sandbox.asked[set_up:]]

    def config(self, name: str) -> dict[str, str]:
        """Return the files that configure the agent, without those of its program."""
        return {path: text for path, text in self.files.items() if text and path not in OF_THE_PROGRAM.get(name, ())}

    def told(self, *signs: str) -> list[str]:
        """Return the commands, and the contents of files, that have one of the signs."""
        texts = [*self.asked, *(text for path, text in self.files.items() if not path.startswith(SKILLS))]
        return sorted(text.replace(CHOSEN_PYTHON, "") for text in texts if any(sign in text for sign in signs))


async def trial(name: str, directory: Path, *, prebuilt: bool) -> Run:
    """Set the agent up, for a task with a skill and an MCP server, and run a step."""
    sandbox = Sandbox(directory / "environment")
    skill = sandbox.place(SKILLS) / "greet/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text(f"---\nname: greet\ndescription: d\n---\n{SKILL}\n")
    agent = make(name, directory)
    set_up = preinstalled.set_up if prebuilt else type(agent).setup
    before, error = 0, None
    try:
        await set_up(agent, sandbox)
        before = len(sandbox.asked)
        await asyncio.wait_for(agent.run("do it", sandbox, AgentContext()), 60)
    except Exception as exception:
        error = f"{type(exception).__name__}: {exception}".replace(str(sandbox.root), "")
    return Run(sandbox, before, error)


def make(name: str, directory: Path) -> BaseAgent:
    capabilities = AgentFactory.get_agent_class(AgentName(name)).capabilities
    options = {"registry_entry": PACKAGE} if name == "acp" else kwargs_of(name, directory.parent / "project")
    server = {"name": "tools", "transport": "streamable-http", "url": SERVER}
    request: dict[str, Any] = {
        "outcome": "/x",
        "admission": {"id": "1", "token": "00" * 32, "socket": "x"},
        "agent": {"name": name, "model": OF_ANOTHER_PROVIDER.get(name, MODEL), "kwargs": options},
        "trial": "t",
        "mcpServers": [server] if capabilities.mcp_servers else [],
        "skillsDir": SKILLS if capabilities.skills else None,
    }
    logs = directory / "logs"
    logs.mkdir()
    variables = Variables()
    variables.replace(VARIABLES)
    return create_agent(SetupRequest.model_validate(request), variables, logs)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let names that are drawn at random be the same in both runs."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=1))


@pytest.mark.parametrize("name", INSTALLED)
async def test_a_prebuilt_agent_has_the_files_of_an_installed_one_and_is_started_alike(
    name: str, tmp_path: Path, fixed: None
) -> None:
    installed = await trial(name, directory(tmp_path, "installed"), prebuilt=False)
    prebuilt = await trial(name, directory(tmp_path, "prebuilt"), prebuilt=True)
    assert (installed.error, prebuilt.error) == (None, None)
    assert prebuilt.config(name) == installed.config(name)
    # With the same files, command lines and variables, a program sends the same requests to its model.
    assert prebuilt.step == installed.step != []
    for capable, signs in ((LOADS_SKILLS, (SKILL, SKILLS)), (USES_MCP, (SERVER,))):
        assert prebuilt.told(*signs) == installed.told(*signs)
        assert bool(prebuilt.told(*signs)) is (name in capable)


def directory(parent: Path, name: str) -> Path:
    """Return a new directory."""
    made = parent / name
    made.mkdir()
    return made
