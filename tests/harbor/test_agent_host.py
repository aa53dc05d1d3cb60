"""Run the agent host's own tests (agent-host/tests), which need a Python with Harbor."""

from __future__ import annotations

from pathlib import Path

import pytest

from multistep import __version__
from tests.harbor.environment import harbor_python

PROJECT = Path(__file__).parents[2] / "agent-host"


def test_the_agent_hosts_tests_pass_with_the_locked_harbor(request: pytest.FixtureRequest) -> None:
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():  # show slow installation
        python = harbor_python()
    done = python.pytest(PROJECT)
    summary = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in summary and "skipped" not in summary


def test_the_agent_hosts_version_is_the_operators() -> None:
    text = (PROJECT / "multistep_host/__init__.py").read_text()
    assert f'__version__ = "{__version__}"' in text
