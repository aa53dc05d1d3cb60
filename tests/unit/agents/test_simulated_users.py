"""Test trials with a simulated user: what the agent host gets, whose requests count as whose, and what their failures mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from multistep.engine.journal.operations import CloseModelAccess
from multistep.engine.plan.plan import TrialEnv, TrialPlan
from multistep.errors import InvalidSpec
from tests.support.played import IMAGE, THREE, Played, outcome, plan, play

KEY = [{"name": "ANTHROPIC_API_KEY", "value": "k"}]
AGENT = {"name": "claude-code", "model": "anthropic/claude-sonnet-4-5", "credentials": KEY}
USER = {"name": "terminus-2", "model": "openai/gpt-5", "credentials": [{"name": "OPENAI_API_KEY", "value": "u"}]}
ENV = TrialEnv(credentials={"ANTHROPIC_API_KEY": "k"}, user={"OPENAI_API_KEY": "u"})


def talking(user: Mapping[str, Any] = USER, agent: Mapping[str, Any] = AGENT, toml: str = IMAGE) -> TrialPlan:
    return plan(toml, {"agent": agent, "models": {"user": user}}, env=ENV)


def reported(tokens: int, **more: Any) -> dict[str, Any]:
    return {"usage": {"inputTokens": tokens, "cachedTokens": 0, "outputTokens": 1, "costUSD": 0.5, "requests": 2}, **more}


def name(found: TrialPlan) -> str:
    return found.steps[0].name


def played(users: Mapping[str, Any], result: Mapping[str, Any] | None = None) -> Played:
    found = talking()
    results = {f"{name(found)}/host/user-usage": users, f"{name(found)}/host/model-usage": reported(10)}
    return play(found, {**results, f"{name(found)}/host/agent": result or outcome()})


def test_the_agent_host_gets_the_user_and_no_key_and_its_requests_are_counted_apart() -> None:
    found = played(reported(7))
    step = found.journal.steps[0]
    setup, call = found.operation("/host/agent-setup"), found.operation(f"{step.name}/host/agent")
    assert setup.request["user"]["agent"] == {
        **{"name": "terminus-2", "importPath": None, "model": "openai/gpt-5", "version": None},
        **{"kwargs": {}, "preinstalled": False},
    }
    assert (setup.user_access, call.user_access, call.model_access) == (step.name, step.name, step.name)
    assert '"u"' not in str(setup.request) + str(call.request)
    closed = [(each.step, each.role) for each in found.operations if isinstance(each, CloseModelAccess)]
    assert closed == [("/setup", "agent"), (step.name, "agent"), (step.name, "user")]
    assert step.usage is not None and step.user_usage is not None
    assert (step.usage.input_tokens, step.user_usage.input_tokens, step.exception) == (10, 7, None)


def test_the_setup_has_three_times_the_time_and_a_user_of_the_agents_program_is_not_installed_twice() -> None:
    same = {**USER, "name": "claude-code"}
    setup = play(talking(same)).operation("/host/agent-setup")
    assert setup.request["timeoutSeconds"] == 3 * 360
    assert setup.request["user"]["agent"]["preinstalled"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("Provider", "ProviderFailed"), ("Configuration", "ModelAccessDenied"), ("LostBudget", "BudgetUsedByLostAttempts")],
)
def test_a_failure_of_the_users_provider_is_never_the_agents(kind: str, reason: str) -> None:
    failure = {"failure": {"kind": kind, "message": "it failed"}}
    step = played(reported(7, **failure), outcome(error=("NonZeroAgentExitCodeError", "1"))).journal.steps[0]
    assert step.lost is not None and (step.lost.reason, step.exception) == (reason, None)
    assert ("spec.models.user" in step.lost.message) is (kind == "Configuration")


def test_a_provider_that_left_the_user_without_an_answer_counts_if_the_user_failed() -> None:
    fault = {"fault": {"kind": "Provider", "message": "cut off", "atTimeout": False}}
    lost = played(reported(7, **fault), outcome(error=("NonZeroAgentExitCodeError", "1"))).journal.steps[0].lost
    assert lost is not None and lost.reason == "ProviderFailed"
    assert played(reported(7, **fault)).journal.steps[0].lost is None


def test_a_spent_budget_of_the_user_is_a_result_as_one_of_the_agent() -> None:
    spent = {"failure": {"kind": "Budget", "message": "the user's budget has no room"}}
    step = played(reported(7, **spent)).journal.steps[0]
    assert step.exception is not None and (step.exception.type, step.lost) == ("BudgetExceededError", None)


def test_a_failed_setup_blocks_the_users_token() -> None:
    found = play(talking(), {"/host/agent-setup": outcome(error=("RuntimeError", "no network"))})
    assert [each.role for each in found.operations if isinstance(each, CloseModelAccess)] == ["agent", "user"]
    assert found.journal.lost is not None and found.journal.lost.reason == "AgentSetupFailed"


def test_a_task_with_steps_has_no_simulated_user() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.models\.user: a simulated user is for tasks without \[\[steps\]\]"):
        talking(toml=THREE)


@pytest.mark.parametrize(
    ("user", "agent", "message"),
    [
        (USER, {"name": "oracle"}, "a simulated user cannot talk to the agent oracle, only to claude-code, codex"),
        (USER, {**AGENT, "access": "Direct"}, "agent.access must be Gateway"),
        ({**USER, "name": "claude-code", "version": "1"}, AGENT, "both use one installation"),
        ({**USER, "name": "nop"}, AGENT, "nop cannot play a user"),
        ({**USER, "importPath": "a:B"}, AGENT, "exactly one of name and importPath"),
        ({**USER, "kwargs": {"nonsense": 1}}, AGENT, "has no option 'nonsense'"),
        ({**USER, "promptTemplate": "{{ instruction }}"}, AGENT, "must have {{ bridge_instructions }}"),
        (
            {**USER, "persona": "x", "promptTemplate": "{{ instruction }} {{- bridge_instructions }}"},
            AGENT,
            "persona would have no effect",
        ),
        ({**USER, "credentials": []}, AGENT, "credentials"),
    ],
)
def test_a_user_that_cannot_work_is_refused(user: Mapping[str, Any], agent: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        talking(user, agent)
