"""Test the order and the parameters of a trial's operations, such as uploads and phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.task.layout import StepLayout
from multistep.api.trial.content_references import Content
from multistep.engine.journal.operations import Healthcheck, ResetDirectory, Source, Start
from multistep.engine.score.rewards import REWARD_JSON, REWARD_TXT
from tests.support.played import FAULT, IMAGE, THREE, plan, play, rewarded
from tests.unit.engine.script_cases import ABORT, ALL, CONTINUE, GATED, NO_REWARD, SINGLE, STARTED_NOT, everything

# -- order of operations


def test_the_order_of_operations_of_a_task_with_everything() -> None:
    played = everything()
    assert played.ids == [
        "/prepare",
        "/environment",
        "/healthcheck",
        "/user-0",
        "/user-1",
        "/user-2",
        "a/begin",
        "a/workdir",
        "a/setup",
        "a/healthcheck",
        "a/baseline",
        "a/solution",
        "a/agent",
        "a/collect-hook-0",
        "a/collect-hook-1",
        "a/inspect",
        "a/verify",
        "a/tests",
        "a/step-tests",
        "a/verifier",
        "a/collect",
        "a/end",
        "b/begin",
        "b/solution",
        "b/agent",
        "b/collect-hook-0",
        "b/inspect",
        "b/verify",
        "b/tests",
        "b/step-tests",
        "b/verifier",
        "b/collect",
        "b/end",
    ]
    assert played.journal.finished
    assert played.journal.all_steps
    assert not played.journal.broken


def test_what_operations_before_the_agent_are_asked() -> None:
    played = everything()
    env = {"E": "environment"}
    directories = (
        ResetDirectory("/logs/agent", keep=True),
        ResetDirectory("/logs/verifier", keep=True),
        ResetDirectory("/logs/artifacts", keep=True),
    )
    assert played.operation("/prepare").directories == directories
    assert (played.operation("/environment").target, played.operation("/environment").content) == ("/app", Content("environment"))
    assert played.operation("/healthcheck") == Healthcheck(
        "1//healthcheck",
        ("bash", "-c", "up"),
        user="",
        env=env,
        interval=5,
        timeout=30,
        start_period=0,
        start_interval=5,
        retries=3,
    )
    assert played.operation("a/begin").directories == (ResetDirectory("/logs/agent"),)
    assert played.operation("a/workdir").content == Content("workdir", "a")
    assert played.operation("a/setup") == Start("1/a/setup", ("bash", "/app/setup.sh"), user="alice", env=env)
    assert (played.operation("a/healthcheck").user, played.operation("a/healthcheck").retries) == ("alice", 2)


def test_what_hooks_verifier_and_collection_are_asked() -> None:
    played = everything()
    env = {"E": "environment"}
    hooks = [played.operation(f"a/collect-hook-{number}") for number in (0, 1)]
    assert [(each.argv[2], each.user, each.env, each.timeout) for each in hooks] == [
        ("hook-of-task", "", env, 60),
        ("hook-of-step", "bob", env, 9),
    ]
    assert played.operation("a/verify").directories == (ResetDirectory("/logs/verifier"), ResetDirectory("/tests"))
    assert (played.operation("a/tests").target, played.operation("a/tests").content) == ("/tests", Content("tests"))
    assert played.operation("a/step-tests").content == Content("tests", "a")
    assert played.operation("a/verifier") == Start(
        "1/a/verifier",
        ("/tests/test.sh",),
        user="judge",
        env={**env, "V": "verifier"},
        timeout=30,
        make_executable="/tests/test.sh",
        remove=(REWARD_TXT, REWARD_JSON),
        output="/logs/verifier/test-stdout.txt",
        captures=(REWARD_JSON, REWARD_TXT),
        kill_at_end=True,
    )
    collect = played.operation("a/collect")
    assert collect.step == 0
    paths = ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/app/shared")
    assert collect.sources == (*map(Source, paths), Source("/app/own", ("*.o",)))
    assert played.operation("b/begin").directories == (
        ResetDirectory("/logs/agent"),
        ResetDirectory("/logs/verifier"),
        ResetDirectory("/tests"),
    )
    assert played.operation("b/collect").step == 1


def test_the_root_as_workdir_makes_no_double_slash() -> None:
    assert everything(workdir="/").operation("a/setup").argv == ("bash", "/setup.sh")


def test_verdicts_are_the_verifiers_alone_when_it_is_isolated() -> None:
    directories = everything(isolated=True).operation("a/verify").directories
    assert directories == (
        ResetDirectory("/logs/verifier", mode=0o755, user="judge"),
        ResetDirectory("/tests", mode=0o700, user="judge"),
    )


def test_verdicts_of_a_single_step_task_are_the_verifiers_alone_when_it_is_isolated() -> None:
    single = SINGLE + 'user = "judge"\n'
    directories = play(plan(single), isolated=True).operation("task/verify").directories
    assert directories == (
        ResetDirectory("/logs/verifier", mode=0o755, user="judge", keep=True),
        ResetDirectory("/tests", mode=0o755, user="judge", keep=True),
    )


def test_times_and_collections_are_reported() -> None:
    journal = play(plan()).journal
    assert (journal.started_at, journal.completed_at) == (10.0, journal.steps[-1].completed_at)
    first = journal.steps[0]
    assert (first.started_at, first.completed_at) == (20.0, 110.0)
    assert first.timings == {"agent": (40.0, 51.0), "verifier": (60.0, 91.0), "artifacts": (100.0, 101.0)}
    assert first.durations == {"agent": 11.0, "verifier": 31.0, "artifacts": 1.0}
    assert first.collected and (list(first.collected.types), first.collected.count, first.collected.bytes) == (["directory"], 3, 99)


def test_tests_in_the_image_live_until_the_first_verification() -> None:
    """The start of a step empties /tests only if the previous step was verified. Here, verification is disabled."""
    off = play(plan(spec={"verifier": {"disable": True}}))
    assert {off.operation(f"{name}/begin").directories for name in "abc"} == {(ResetDirectory("/logs/agent"),)}


# -- verification disabled


def test_without_verification_gates_are_ignored_and_nothing_is_rewarded() -> None:
    toml = THREE.replace('name = "a"\n', 'name = "a"\nmin_reward = 1.0\n')
    played = play(plan(toml, {"verifier": {"disable": True}}))
    assert played.ids[1:5] == ["a/begin", "a/solution", "a/agent", "a/collect"]
    assert [step.name for step in played.journal.steps] == ALL
    assert [step.gate_passed for step in played.journal.steps] == [None] * 3
    assert played.journal.rewards is None


@pytest.mark.parametrize("spec", [ABORT, CONTINUE])
def test_without_verification_an_agents_error_stops_the_trial(spec: Mapping[str, Any]) -> None:
    journal = play(plan(spec={"verifier": {"disable": True}, **spec}), {"a/agent": STARTED_NOT}).journal
    assert [step.name for step in journal.steps] == ["a"]


def test_a_missing_instruction_is_a_step_error_and_no_agent_runs() -> None:
    played = play(plan(spec={"verifier": {"disable": True}}, steps={"a": StepLayout()}))
    assert played.ids == ["/prepare", "a/begin", "a/collect", "a/end"]
    exception = played.journal.steps[0].exception
    assert exception and exception.type == "FileNotFoundError"


@pytest.mark.parametrize(
    ("strategy", "rewards", "trial", "started", "passed"),
    [
        ("mean", ["1", "0.5", "0"], {"reward": 0.5}, ALL, [None, True, None]),
        ("final", ["1", "0.5", "0"], {"reward": 0.0}, ALL, [None, True, None]),
        ("mean", ["1", "0.4", "0"], {"reward": 0.7}, ["a", "b"], [None, False]),
        ("final", ["1", "0.4", "0"], {"reward": 0.4}, ["a", "b"], [None, False]),  # b's failed gate makes b the last step
        ("mean", ["1", "x", "0"], {"reward": 1.0}, ["a", "b"], [None, None]),
        ("final", ["1", "x", "0"], None, ["a", "b"], [None, None]),
    ],
)
def test_rewards_of_steps_and_trial(
    strategy: str, rewards: list[str], trial: object, started: list[str], passed: list[bool | None]
) -> None:
    results = {f"{name}/verifier": rewarded(txt=txt) for name, txt in zip("abc", rewards, strict=True)}
    journal = play(plan(f'multi_step_reward_strategy = "{strategy}"\n{GATED}'), results).journal
    assert journal.rewards == trial
    assert [step.name for step in journal.steps] == started
    assert [step.gate_passed for step in journal.steps] == passed


def test_a_gate_missed_on_the_last_step_leaves_no_exception() -> None:
    journal = play(plan(IMAGE + '[[steps]]\nname = "a"\nmin_reward = 2'), {}).journal
    assert (journal.exception, journal.steps[0].exception, journal.all_steps) == (None, None, True)
    assert journal.steps[0].gate_failure == "reward is 1, below min_reward 2"


@pytest.mark.parametrize("agent", [{"name": "oracle"}, {"name": "nop"}, {"name": "command", "command": ["x"]}])
@pytest.mark.parametrize("limit", ["0", "-1"])
def test_an_agent_with_a_timeout_of_zero_is_not_started(agent: Mapping[str, Any], limit: str) -> None:
    toml = IMAGE + f'[[steps]]\nname = "a"\n[steps.agent]\ntimeout_sec = {limit}\n[[steps]]\nname = "b"\n'
    played = play(plan(toml, {"agent": agent, "onAgentError": "Continue"}))
    first = played.journal.steps[0]
    assert first.exception is not None
    assert first.exception.type == "AgentTimeoutError"
    assert not {"a/solution", "a/instruction"} & set(played.ids)
    assert not isinstance(played.operation("a/agent"), Start)
    assert "agent" in first.timings
    assert first.rewards == {"reward": 1.0}
    assert len(played.journal.steps) == 2


def test_the_order_of_operations_of_a_single_step_task() -> None:
    played = play(plan(SINGLE))
    assert played.ids == [
        "/prepare",
        "task/begin",
        "task/baseline",
        "task/solution",
        "task/agent",
        "task/inspect",
        "task/verify",
        "task/tests",
        "task/verifier",
        "task/collect",
        "task/end",
    ]
    # files that the agent wrote to these directories are retained, except reward files, which are deleted when the verifier starts
    assert played.operation("task/verify").directories == (
        ResetDirectory("/logs/verifier", keep=True),
        ResetDirectory("/tests", mode=0o755, keep=True),
    )
    assert played.operation("task/verifier").remove == (REWARD_TXT, REWARD_JSON)
    assert played.operation("task/verifier").timeout == 7.0
    assert (played.journal.rewards, played.journal.exception) == ({"reward": 1.0}, None)


@pytest.mark.parametrize(
    ("agent", "results", "exception", "verified", "rewards"),
    [
        ("oracle", {"task/agent": {"timedOut": True}}, "AgentTimeoutError", True, {"reward": 1.0}),
        ("command", {"task/agent": {"exitCode": 1}}, "NonZeroAgentExitCodeError", True, {"reward": 1.0}),
        ("oracle", {"task/agent": {"exitCode": 1}}, None, True, {"reward": 1.0}),
        ("oracle", {"task/agent": {"exitCode": 137, "oomKills": 1}}, "OutOfMemoryError", True, {"reward": 1.0}),
        ("oracle", {"task/agent": STARTED_NOT}, "RuntimeError", True, {"reward": 1.0}),
        ("oracle", {"task/solution": FAULT}, "RuntimeError", True, {"reward": 1.0}),
        ("oracle", {"task/verifier": NO_REWARD}, "RewardFileNotFoundError", True, None),
        ("oracle", {"task/verifier": {"timedOut": True}}, "VerifierTimeoutError", True, None),
    ],
)
def test_a_single_steps_error_is_the_trials(
    agent: str, results: Mapping[str, Mapping[str, Any]], exception: str | None, verified: bool, rewards: object
) -> None:
    spec = {"agent": {"name": agent, **({"command": ["x"]} if agent == "command" else {})}}
    played = play(plan(SINGLE, spec), results)
    assert (played.journal.exception and played.journal.exception.type) == exception
    assert ("task/verifier" in played.ids) == verified
    assert "task/collect" in played.ids  # artifacts are collected after an exception, too
    assert played.journal.rewards == rewards
    assert not played.journal.broken
