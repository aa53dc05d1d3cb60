"""`make demo AGENT=...`: the options of its agents, and the example task that a scripted model can solve."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack import agent_demo, paths
from hack.stages import Failure
from localkube import targets
from localkube.config import load_config
from multistep.api.trial import harbor_agents
from multistep.cli.image.agent_programs import PROGRAMS
from multistep.client.options import ModelOptions
from multistep.client.submit.agent_choice import agent_entry
from tests.support.model_script import Item, Turn, next_turn

STEPS = sorted((paths.ROOT / agent_demo.TASK / "steps").iterdir())
CURRENT, KIND = targets.Current(load_config({}), {}), targets.Kind(Path("/nonexistent"))


def script(step: Path) -> list[Turn]:
    """Return the scripted model's turns in a step, up to the one with which it ends the step."""
    items, turns = [Item("user", (step / "instruction.md").read_text())], list[Turn]()
    while not turns or turns[-1].kind == "run":
        turns.append(next_turn(items))
        items += [Item("call"), Item("tool", "")]
    return turns


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_scripted_model_runs_the_commands_of_the_solution(step: Path) -> None:
    *commands, last = script(step)
    solution = (step / "solution" / "solve.sh").read_text().splitlines()
    assert [each.value for each in commands] == [each for each in solution if not each.startswith(("#!", "set "))]
    assert last == Turn("say", "done")


def test_the_example_has_three_gated_steps() -> None:
    assert len(STEPS) == 3
    assert (paths.ROOT / agent_demo.TASK / "task.toml").read_text().count("min_reward = 1.0") == 3


@pytest.mark.parametrize("agent", agent_demo.MODELS)
def test_an_agent_of_the_demo_has_a_program_and_uses_the_gateway(agent: str) -> None:
    assert agent in PROGRAMS and agent not in harbor_agents.DIRECT
    model = agent_demo.MODELS[agent]
    entry = agent_entry(agent, ModelOptions(model=model.name, keys=["s:k"]))
    assert [each["name"] for each in entry["credentials"]] == [model.key_variable]


def test_the_options_name_the_scripted_models_url_only_if_there_is_one() -> None:
    found = agent_demo.options("claude-code@anthropic/m", "image:1", "secret", "")
    assert found == [
        *("--agent", "claude-code@anthropic/m", "--agent-image", "image:1"),
        *("--key-from-secret", "secret:key"),
    ]
    assert agent_demo.options("claude-code@anthropic/m", "image:1", "secret", "http://x:1")[-2:] == ["--base-url", "http://x:1"]


@pytest.mark.parametrize(
    ("target", "agent", "reason"),
    [
        (KIND, "aider", "AGENT=aider: the demo has claude-code, codex"),
        (KIND, "claude-code", "ANTHROPIC_API_KEY is not set, and only pods of localkube's cluster"),
        (CURRENT, "claude-code", "has no access to the image"),
    ],
)
def test_a_demo_that_cannot_work_is_refused_before_anything_is_built(
    target: targets.Target, agent: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(Failure, match=reason):
        agent_demo.check(target, agent)
