"""Test that task features which Multistep does not support are rejected or reported as warnings, which name the feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.task_toml import parse_task
from multistep.api.trial.agent_spec import AgentSpec
from multistep.engine.plan.unsupported_parts import ignored_parts, unsupported_parts
from multistep.errors import InvalidTask
from tests.support.played import COMPLETE, IMAGE, plan

STEPS = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
WITH_TRAJECTORY = replace(COMPLETE, trajectory=True)
COMMAND = {"agent": {"name": "command", "command": ["x"]}}


def in_environment(text: str) -> str:
    return f"{IMAGE}{text}\n{STEPS}"


@pytest.mark.parametrize(
    ("toml", "layout", "path"),
    [
        (in_environment('os = "windows"'), {}, "environment.os"),
        (f'{IMAGE}[verifier.environment]\nos = "windows"\n{STEPS}', {}, "verifier.environment.os"),
        (f'{IMAGE}{STEPS}[steps.verifier.environment]\nos = "windows"', {}, "steps[1].verifier.environment.os"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(toml: str, layout: Mapping[str, Any], path: str) -> None:
    with pytest.raises(InvalidTask, match="support") as caught:
        plan(toml, **layout)
    assert caught.value.field == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('skills_dir = "/skills"', "skills_dir: is ignored: {} no skills, here of '/skills'"),
        (
            'mcp_servers = [{name = "files", url = "http://x"}, {name = "web", url = "http://y"}]',
            "mcp_servers: is ignored: {} no MCP servers, here 'files', 'web'",
        ),
    ],
)
@pytest.mark.parametrize(
    ("where", "who"),
    [("environment", "agents oracle, nop and command use"), ("verifier.environment", "an environment of a verifier has")],
)
def test_what_is_ignored_is_warned_of_by_name_and_the_task_runs(where: str, who: str, text: str, message: str) -> None:
    toml = in_environment(text) if where == "environment" else f"{IMAGE}[{where}]\n{text}\n{STEPS}"
    (found,) = ignored_parts(parse_task(toml), TaskLayout(), AgentSpec(name="command", command=["x"]))
    assert str(found) == f"{where}.{message.format(who)}" and found.by_agent == (where == "environment")
    assert plan(toml)


@pytest.mark.parametrize(
    ("toml", "files", "path"),
    [
        (IMAGE, {"root": WITH_TRAJECTORY}, "trajectory.json"),
        (in_environment(""), {"steps": {"a": WITH_TRAJECTORY}}, "steps/a/trajectory.json"),
    ],
)
def test_a_trajectory_is_refused_for_an_agent_that_should_load_it(toml: str, files: Mapping[str, Any], path: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        plan(toml, COMMAND, **files)
    assert caught.value.field == path
    assert plan(toml, **files)  # valid for the oracle, which does not load trajectory.json, as in Harbor
    (found,) = unsupported_parts(parse_task(toml), TaskLayout(**files))
    assert (found.path, found.refused) == (path, False)


def test_a_trajectory_that_harbor_does_not_read_is_no_matter() -> None:
    config = parse_task(in_environment(""))
    assert unsupported_parts(config, TaskLayout(steps={"a": StepLayout(), "b": WITH_TRAJECTORY}, root=WITH_TRAJECTORY)) == []
    assert unsupported_parts(config, TaskLayout()) == []


SERVER = 'mcp_servers = [{name = "files", url = "http://x"}]'
HEADED = 'mcp_servers = [{name = "files", url = "http://x", headers = {A = "b"}}]'
SKILLS = 'skills_dir = "/skills"'


@pytest.mark.parametrize(
    ("agent", "text", "path"),
    [
        ({"name": "aider"}, SERVER, "environment.mcp_servers"),
        ({"name": "goose"}, HEADED, "environment.mcp_servers"),
        ({"name": "mini-swe-agent"}, SKILLS, "environment.skills_dir"),
        ({"name": "goose"}, SERVER, None),
        ({"name": "claude-code"}, HEADED, None),
        ({"name": "claude-code"}, SKILLS, None),
        ({"name": "aider"}, 'skills_dir = ""', None),
        ({"importPath": "my.agents:Mine"}, f"{HEADED}\n{SKILLS}", None),
    ],
)
def test_servers_and_skills_that_harbors_agent_does_not_use_are_refused(
    agent: Mapping[str, Any], text: str, path: str | None
) -> None:
    """Without the servers or skills that the task is about, the agent would score 0, so the task is rejected."""
    spec = AgentSpec.model_validate({**agent, "model": "openai/m", "access": "Direct"})
    found = unsupported_parts(parse_task(in_environment(text)), TaskLayout(), spec)
    assert [(each.path, each.refused) for each in found] == ([(path, True)] if path else [])
