"""A user that an image lacks is the task's failure, the same for every agent, and found before the agent runs."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.engine.score import failure_class
from tests.support.played import IMAGE, Played, plan, play

LACKS = {"exitCode": None, "error": {"code": "NoSuchUser", "message": "/etc/passwd has no user"}}
TWO = f'{IMAGE}[agent]\nuser = "alice"\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
AGENTS: dict[str, dict[str, Any]] = {
    "oracle": {"name": "oracle"},
    "nop": {"name": "nop"},
    "command": {"name": "command", "command": ["x"]},
    "hosted": {"name": "claude-code", "model": "anthropic/m", "access": "Direct"},
    "custom": {"importPath": "my.agents:Mine", "model": "openai/m"},
}


def checked(played: Played) -> list[str]:
    """Return the users that were looked up in the agent's container."""
    return [each.user for each in played.operations if "/user-" in each.id]  # type: ignore[union-attr]


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
@pytest.mark.parametrize(
    ("field", "toml", "number"),
    [
        ("agent.user of step a", "", 0),
        ("agent.user of step b", '[steps.agent]\nuser = "bob"\n', 1),
        ("verifier.user of step b", '[steps.verifier]\nuser = "judge"\n', 1),
        ("verifier.collect.user of step b", '[[steps.verifier.collect]]\ncommand = "x"\nuser = "hook"\n', 1),
    ],
)
def test_a_user_that_the_image_lacks_in_any_step_is_the_tasks_failure_before_any_agent_runs(
    agent: dict[str, Any], field: str, toml: str, number: int
) -> None:
    played = play(plan(TWO + toml, {"agent": agent}), {f"/user-{number}": LACKS})
    lost = played.journal.lost
    assert lost is not None and (lost.reason, lost.final) == ("NoSuchUser", True)
    assert lost.message == f"{field}: /etc/passwd has no user"
    assert failure_class.class_of_failure(lost.reason, None) == "Task"
    assert played.journal.steps == [] and not [each for each in played.ids if "agent" in each]


def test_each_name_is_looked_up_once_and_a_uid_needs_no_entry() -> None:
    toml = TWO + '[steps.agent]\nuser = 1000\n[steps.verifier]\nuser = "1000:1000"\n'
    assert checked(play(plan(toml))) == ["alice"]
    assert checked(play(plan(toml, {"agent": {"name": "nop", "user": "bob"}}))) == ["bob"]
    assert checked(play(plan(IMAGE))) == []


def test_an_image_without_the_program_that_is_run_may_have_the_user() -> None:
    lacks_program = {"exitCode": None, "error": {"code": "NoSuchCommand", "message": "no true"}}
    assert play(plan(TWO), {"/user-0": lacks_program}).journal.lost is None


def test_a_user_that_an_agent_removed_is_the_agents_failure() -> None:
    """Else an agent could get a trial excluded that it does not like."""
    played = play(plan(TWO), {"b/agent": LACKS})
    assert played.journal.lost is None
    assert (error := played.journal.steps[1].exception) is not None and (error.type, error.phase) == ("RuntimeError", "agent")


SEPARATE = TWO + '[steps.verifier]\nuser = "judge"\n[steps.verifier.environment]\n'


@pytest.mark.parametrize(
    ("image", "looked_up", "missing"),
    [('docker_image = "judge"\n', ["alice"], "b/verifier/user-0"), ("", ["alice", "judge"], "/user-1")],
)
def test_the_user_of_a_separate_verifier_is_looked_up_in_its_image(image: str, looked_up: list[str], missing: str) -> None:
    made = plan(SEPARATE + image)
    assert [each for each in checked(play(made)) if not (image and each == "judge")] == looked_up
    lost = play(made, {missing: LACKS}).journal.lost
    assert lost is not None and (lost.reason, lost.final) == ("NoSuchUser", True)
    assert lost.message.startswith("verifier.user of step b: ")
