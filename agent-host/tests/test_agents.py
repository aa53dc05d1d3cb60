"""Checks the internals of Harbor's registered agents on which the agent host relies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harbor.agents.base import BaseAgent
from harbor.agents.factory import AgentFactory

from multistep_host import litellm_stub
from multistep_host.capabilities import capabilities
from multistep_host.environment import GuestEnvironment
from multistep_host.outcome import Outcome
from multistep_host.phase_requests import SetupRequest
from multistep_host.preinstalled import NotPreinstalledError, set_up
from multistep_host.trial import create_agent, failed_creation
from multistep_host.variables import Variables

ALL = AgentFactory.registered_names()
# oracle needs the task's files, so the operator runs it without an agent host; fabric needs a package that no public index has.
NAMES = [name for name in ALL if name not in {"oracle", "fabric"}]
MODEL = "anthropic/claude-sonnet-4-5"
MODELS = {"antigravity-sdk": "gemini/gemini-2.5-pro"}
LANGGRAPH = '{"dependencies": ["."], "graphs": {"agent": "./graph.py:graph"}, "env": {}}'
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "CURSOR_API_KEY")


def variables_of(key: str) -> Variables:
    variables = Variables()
    variables.replace(dict.fromkeys(KEYS, key))
    return variables


def kwargs_of(name: str, directory: Path) -> dict[str, str]:
    """Return the options that the agent's constructor requires. Some are the path of a project, which is created in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for file, text in (
        ("package.json", "{}"),
        ("agent.ts", ""),
        ("instructions.md", ""),
        ("langgraph.json", LANGGRAPH),
        ("graph.py", ""),
    ):
        (directory / file).write_text(text)
    project = str(directory)
    return {
        "acp": {"registry_spec": "claude-code-acp"},
        "eve": {"path": project},
        "langgraph": {"project_path": project},
        "muse-code": {"base_url": "http://gateway/openai/v1"},
    }.get(name, {})


def make(name: str, logs: Path, variables: Variables) -> BaseAgent:
    agent = {"name": name, "model": MODELS.get(name, MODEL), "kwargs": kwargs_of(name, logs / "project")}
    admission = {"id": "1", "token": "00" * 32, "socket": "x"}
    return create_agent(
        SetupRequest.model_validate({"outcome": "/x", "admission": admission, "agent": agent, "trial": "t"}), variables, logs
    )


def keyed(name: str, model: str, variables: dict[str, str], directory: Path) -> Outcome | None:
    """Return the outcome of an agent's creation with these variables; None if the agent is created."""
    given = Variables()
    given.replace(variables)
    admission = {"id": "1", "token": "00" * 32, "socket": "x"}
    request = {"outcome": "/x", "admission": admission, "agent": {"name": name, "model": model}, "trial": "t"}
    try:
        create_agent(SetupRequest.model_validate(request), given, directory)
    except Exception as error:
        return failed_creation(error)
    return None


OPENAI = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://gateway/openai/v1", "OPENAI_API_BASE": "http://gateway/openai/v1"}


@pytest.mark.parametrize(
    ("name", "model", "key"),
    [
        ("aider", "openrouter/x/y", "OPENROUTER_API_KEY"),
        ("claude-code", "openrouter/x/y", "OPENROUTER_API_KEY or ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN"),
        ("mini-swe-agent", "anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY or MSWEA_API_KEY"),
    ],
)
def test_an_agent_with_the_key_of_another_provider_is_not_created(
    name: str, model: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    failed = keyed(name, model, OPENAI, tmp_path)
    assert failed is not None and failed["error"]["type"] == "MissingModelCredentialError"
    assert failed["error"]["message"].endswith(f"Set {key}")


@pytest.mark.parametrize("name", ["aider", "goose", "mini-swe-agent", "codex"])
@pytest.mark.parametrize("variables", [OPENAI, {}, {"KEY": "of the task"}])
def test_an_agent_with_the_key_of_its_model_or_without_any_is_created(
    name: str, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert keyed(name, "openai/gpt-5", variables, tmp_path) is None


@pytest.mark.parametrize("name", NAMES)
def test_each_agent_is_created_and_takes_a_steps_new_variables(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    variables = variables_of("first")
    agent = make(name, tmp_path, variables)
    agent.to_agent_info()
    before = agent.model_connection.api_key
    variables.replace(dict.fromkeys(KEYS, "second"))
    variables.refresh(agent)
    assert (before, agent.model_connection.api_key) in {("first", "second"), (None, None)}
    assert agent.extra_env["ANTHROPIC_API_KEY"] == "second"
    client = getattr(agent, "_llm", None)
    assert client is None or client._llm_kwargs["api_key"] == "second"


def test_the_capabilities_are_those_of_all_registered_agents() -> None:
    found = capabilities()
    assert sorted(found) == ALL
    assert len(found) == 47
    able = ("resume", "mcp", "mcpHeaders", "skills", "baseURL", "webTools", "bridge")
    assert found["claude-code"] == {**dict.fromkeys(able, True), "setupSeconds": 360}
    assert found["terminus-2"]["resume"] is False


async def test_a_program_that_is_there_is_not_installed(
    environment: GuestEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make("claude-code", tmp_path, Variables())
    monkeypatch.setattr(agent, "get_version_command", lambda: "echo '2.1.0 (Claude Code)'")
    monkeypatch.setattr(type(agent), "install", None)
    await set_up(agent, environment)
    assert agent.version() == "2.1.0"


async def test_an_agent_without_a_program_is_set_up_as_ever(environment: GuestEnvironment, tmp_path: Path) -> None:
    await set_up(make("nop", tmp_path, Variables()), environment)


async def test_a_program_that_should_be_there_and_is_not_is_an_error_with_the_command_and_the_path(
    environment: GuestEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make("claude-code", tmp_path, Variables())
    monkeypatch.setattr(agent, "get_version_command", lambda: "echo 'claude: not found' >&2; exit 127")
    with pytest.raises(
        NotPreinstalledError, match=r"program of claude-code .*exit 127` exited with status 127.*not found; PATH=.*/"
    ):
        await set_up(agent, environment)


STUB = """
import json, sys
from multistep_host import litellm_stub
litellm_stub.install()
from pathlib import Path
sys.path.insert(0, "tests")
import test_agents
made = {}
for name in sys.argv[2:]:
    agent = test_agents.make(name, Path(sys.argv[1]), test_agents.variables_of("key"))
    info = agent.to_agent_info()
    made[name] = [info.model_info and info.model_info.model_dump(), agent.model_connection.env]
assert not hasattr(sys.modules["litellm"], "__file__")
print(json.dumps(made))
"""


def test_agents_for_which_the_stub_suffices_are_the_same_as_with_litellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    names = [name for name in NAMES if litellm_stub.suffices({"name": name, "model": MODELS.get(name, MODEL)})]
    command = [sys.executable, "-c", STUB, str(tmp_path), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    expected = {}
    for name in names:
        agent = make(name, tmp_path, variables_of("key"))
        info = agent.to_agent_info()
        expected[name] = [info.model_info and info.model_info.model_dump(), agent.model_connection.env]
    assert json.loads(done.stdout) == expected
    assert len(names) == len(NAMES) - 4
