"""Test what the agent host gets for an agent: its options, its keys and the URL of its model's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.task.task_toml import parse_task
from multistep.engine.plan.plan import TrialEnv
from multistep.store.harbor import secret_variables
from tests.support.played import IMAGE, THREE, plan, play
from tests.unit.agents.test_harbor_agents import CREDENTIALS


@pytest.mark.parametrize(
    ("agent", "mode", "disabled"),
    [
        (CREDENTIALS, "no-network", True),
        ({**CREDENTIALS, "providerTools": "Refuse"}, "public", True),
        (CREDENTIALS, 'allowlist"\nallowed_hosts = ["10.0.0.1', True),
        (CREDENTIALS, "public", None),
        ({**CREDENTIALS, "kwargs": {"disable_web_search": False}}, "no-network", False),
        ({**CREDENTIALS, "name": "aider"}, "no-network", None),  # aider has no web search
    ],
)
def test_an_agent_with_a_limited_network_does_not_search_the_web(
    agent: Mapping[str, Any], mode: str, disabled: bool | None
) -> None:
    """The model's provider would search on its own, unlimited network, and could find the task's solution."""
    end = '"]\n' if "hosts" in mode else '"\n'
    toml = THREE.replace(IMAGE, f'{IMAGE}network_mode = "{mode}{end}')
    made = plan(toml, {"agent": agent}, env=TrialEnv(credentials={"ANTHROPIC_API_KEY": "k"}), egress="Sidecar")
    asked = play(made).operation("/host/agent-setup").request["agent"]["kwargs"]
    assert asked.get("disable_web_search") == disabled


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("openai/qwen", {"OPENAI_BASE_URL", "OPENAI_API_BASE"}),
        ("google/gemma", {"GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"}),
        ("hosted_vllm/qwen", {"HOSTED_VLLM_BASE_URL", "HOSTED_VLLM_API_BASE"}),
    ],
)
def test_an_agent_without_a_key_gets_the_url_of_its_models_provider(model: str, names: set[str]) -> None:
    spec = {"name": "terminus-2", "model": model, "access": "Direct", "baseURL": "http://vllm:8000/v1"}
    made = plan(THREE, {"agent": spec}, env=TrialEnv())
    env = play(made).operation("a/host/agent").request["env"]
    assert {name for name, value in env.items() if value == "http://vllm:8000/v1"} == names


def test_the_newline_at_the_end_of_a_key_in_a_secret_is_no_part_of_the_key() -> None:
    env = TrialEnv(credentials={"ANTHROPIC_API_KEY": "sk-secret\n"}, agent={"TOKEN": "t\n"})
    made = plan(THREE, {"agent": {**CREDENTIALS, "access": "Direct"}}, env=env)
    assert play(made).operation("a/host/agent").request["env"]["ANTHROPIC_API_KEY"] == "sk-secret"
    assert secret_variables.secret_values(env, parse_task(THREE)) == {"sk-secret", "t"}
