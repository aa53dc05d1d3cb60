"""Run the agent host's own tests (agent-host/tests), which need a Python with Harbor."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from hack import image
from multistep.api.trial import harbor_agents
from multistep.providers import BY_KEY_VARIABLE
from multistep.version import __version__
from tests.harbor.environment import Python, harbor_python

PROJECT = Path(__file__).parents[2] / "agent-host"


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Python:
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():  # show output of the installation
        return harbor_python()


def test_the_agent_hosts_tests_pass_with_the_locked_harbor(python: Python) -> None:
    done = python.pytest(PROJECT, image.ensure_runner())
    summary = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in summary and "skipped" not in summary


@pytest.mark.long  # this changes only with Harbor's version
def test_the_operator_knows_harbors_agents_and_what_they_can_do(python: Python) -> None:
    done = python.run(PROJECT / "multistep_host/capabilities.py", PROJECT / "requirements")
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    runs_without_a_host = {"nop", "oracle"}
    assert {*harbor_agents.NAMES, *harbor_agents.LEFT_OUT, *runs_without_a_host} == set(found)
    hosted = {name: found[name] for name in harbor_agents.NAMES}
    assert {name for name, has in hosted.items() if has["resume"]} == harbor_agents.RESUMING
    assert {name for name, has in hosted.items() if has["bridge"]} == harbor_agents.BRIDGED
    assert {name for name, has in hosted.items() if not has["baseURL"]} == harbor_agents.DIRECT
    assert {name for name, has in hosted.items() if has["webTools"]} == harbor_agents.WEB_TOOLS
    assert {name for name, has in hosted.items() if not has["mcp"]} == harbor_agents.WITHOUT_MCP
    assert {name for name, has in hosted.items() if has["mcpHeaders"]} == harbor_agents.MCP_HEADERS
    assert {name for name, has in hosted.items() if not has["skills"]} == harbor_agents.WITHOUT_SKILLS
    assert {name: seconds for name, has in hosted.items() if (seconds := has["setupSeconds"]) != 360} == harbor_agents.SETUP_SECONDS


def test_the_agent_host_knows_the_variables_of_the_providers_keys() -> None:
    keys = re.search(r"^_KEYS = frozenset\((.*)\)$", (PROJECT / "multistep_host/trial.py").read_text(), re.MULTILINE)
    assert keys is not None and ast.literal_eval(keys[1]) == set(BY_KEY_VARIABLE)


def test_the_agent_hosts_version_is_the_operators() -> None:
    text = (PROJECT / "multistep_host/__init__.py").read_text()
    assert f'__version__ = "{__version__}"' in text
