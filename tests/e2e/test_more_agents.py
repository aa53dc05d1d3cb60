"""Test the programs of more agents as test_real_agents does. `make test-agents` runs these tests; their images take minutes to
build."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.given import Given
from tests.e2e.test_real_agents import OPENAI, TRAJECTORIES, completed, gates, image_of
from tests.support import servers

GEMINI = ("--model", "gemini/gemini-2.5-pro", "--key-from-secret", "GEMINI_API_KEY=keys:key")
# The image of an agent program in Python, which `multistep agent build` does not build. Harbor's classes source uv's file
# ~/.local/bin/env before they start the program.
PYTHON = """\
FROM python:3.11-slim-bookworm
RUN apt-get update -q && apt-get install -qy --no-install-recommends ca-certificates git && mkdir /app
RUN pip install -q uv && cert=$(pip config --global get global.cert || true) && export ${{cert:+SSL_CERT_FILE=$cert}} \\
 && uv tool install -q {package} {options} \\
 && echo 'export PATH=/root/.local/bin:$PATH' > /root/.local/bin/env
WORKDIR /app
"""
SUBMIT = "run: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # how mini-swe-agent ends a step

pytestmark = pytest.mark.agents


@pytest.mark.parametrize(
    ("agent", "path", "options"),
    [("gemini-cli", "", GEMINI), ("qwen-coder", "/v1", OPENAI), ("opencode", "/v1", OPENAI)],
)
async def test_an_agent_whose_image_is_built_completes_a_task_of_gates(
    agent: str, path: str, options: tuple[str, ...], given: Given, model: servers.Server, tmp_path: Path
) -> None:
    image = ("--agent-image", await image_of(agent))
    found = await completed(given, model, gates(tmp_path / "gates"), agent, "--base-url", f"{model.url}{path}", *options, *image)
    assert found == TRAJECTORIES


@pytest.mark.parametrize(
    ("agent", "package", "options", "turn"),
    [
        ("aider", "aider-chat==0.86.2", "", "write: {0}={0} ok"),
        ("mini-swe-agent", "mini-swe-agent==2.2.8", "--with mcp", f"run: printf '{{0}} ok' > /app/{{0}}\n{SUBMIT}"),
    ],
)
async def test_an_agent_of_the_tasks_image_completes_a_task_of_gates(
    agent: str, package: str, options: str, turn: str, given: Given, model: servers.Server, tmp_path: Path
) -> None:
    task = gates(tmp_path / "gates", PYTHON.format(package=package, options=options), turn)
    await completed(given, model, task, agent, "--base-url", f"{model.url}/v1", *OPENAI, "--preinstalled")
