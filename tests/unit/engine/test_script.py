from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.agents import AGENTS
from multistep.api.content import Content
from multistep.api.layout import StepLayout
from multistep.api.records import Record
from multistep.engine.journal import Journal
from multistep.engine.operations import Directory, Healthcheck, Source, Start
from multistep.engine.replay import Replay, replay
from multistep.engine.rewards import REWARD_JSON, REWARD_TXT
from tests.support.played import COMPLETE, FAULT, IMAGE, NO_SPACE, ONE, THREE, Played, captured, plan, play, rewarded, scope

EVERYTHING = f"""
artifacts = ["/app/shared"]
{IMAGE}workdir = "/app"
[environment.env]
E = "environment"
[environment.healthcheck]
command = "up"
[solution.env]
S = "solution"
[agent]
user = "alice"
[verifier]
user = "judge"
[verifier.env]
V = "verifier"
[[verifier.collect]]
command = "hook-of-task"
[[steps]]
name = "a"
min_reward = 0.5
artifacts = [{{source = "/app/own", exclude = ["*.o"]}}]
[steps.agent]
timeout_sec = 60
[steps.verifier]
timeout_sec = 30
[[steps.verifier.collect]]
command = "hook-of-step"
user = "bob"
timeout_sec = 9
[steps.healthcheck]
command = "ready"
retries = 2
[[steps]]
name = "b"
"""
FULL = StepLayout("do it", workdir=True, setup=True, tests=True, test_script=True, solution=True, solve_script=True)
SHARED = StepLayout(tests=True, test_script=True)


def everything(results: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any) -> Played:
    made = plan(EVERYTHING, steps={"a": FULL}, root=SHARED, environment_files=True)
    return play(made, results, **changes)


# -- order


def test_the_order_of_operations_of_a_task_with_everything() -> None:
    played = everything()
    assert played.ids == [
        "/prepare",
        "/environment",
        "/healthcheck",
        "a/begin",
        "a/workdir",
        "a/setup",
        "a/healthcheck",
        "a/solution",
        "a/agent",
        "a/collect-hook-0",
        "a/collect-hook-1",
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


def test_what_each_operation_is_asked() -> None:
    played = everything()
    env = {"E": "environment"}
    directories = (
        Directory("/logs/agent", keep=True),
        Directory("/logs/verifier", keep=True),
        Directory("/logs/artifacts", keep=True),
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
    assert played.operation("a/begin").directories == (Directory("/logs/agent"),)
    assert played.operation("a/workdir").content == Content("workdir", "a")
    assert played.operation("a/setup") == Start("1/a/setup", ("bash", "/app/setup.sh"), user="alice", env=env)
    assert (played.operation("a/healthcheck").user, played.operation("a/healthcheck").retries) == ("alice", 2)
    hooks = [played.operation(f"a/collect-hook-{number}") for number in (0, 1)]
    assert [(each.argv[2], each.user, each.env, each.timeout) for each in hooks] == [
        ("hook-of-task", "", env, 60),
        ("hook-of-step", "bob", env, 9),
    ]
    assert played.operation("a/verify").directories == (Directory("/logs/verifier"), Directory("/tests"))
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
    assert played.operation("b/begin").directories == (Directory("/logs/agent"), Directory("/logs/verifier"), Directory("/tests"))
    assert played.operation("b/collect").step == 1


def test_the_root_as_workdir_makes_no_double_slash() -> None:
    assert everything(workdir="/").operation("a/setup").argv == ("bash", "/setup.sh")


def test_verdicts_are_the_verifiers_alone_when_it_is_isolated() -> None:
    directories = everything(isolated=True).operation("a/verify").directories
    assert directories == (Directory("/logs/verifier", mode=0o755, user="judge"), Directory("/tests", mode=0o755))


def test_times_and_collections_are_reported() -> None:
    journal = play(plan()).journal
    assert (journal.started_at, journal.completed_at) == (10.0, journal.steps[-1].completed_at)
    first = journal.steps[0]
    assert (first.started_at, first.completed_at) == (20.0, 90.0)
    assert first.timings == {"agent": (30.0, 41.0), "verifier": (50.0, 71.0), "artifacts": (80.0, 81.0)}
    assert first.durations == {"agent": 11.0, "verifier": 21.0, "artifacts": 1.0}
    assert first.collected and (list(first.collected.types), first.collected.count, first.collected.bytes) == (["directory"], 3, 99)


def test_tests_in_the_image_live_until_the_first_verification() -> None:
    """Tests in the image are deleted only before steps that follow a verification."""
    off = play(plan(spec={"verifier": {"disable": True}}))
    assert {off.operation(f"{name}/begin").directories for name in "abc"} == {(Directory("/logs/agent"),)}


# -- errors: table (e)

ALL = ["a", "b", "c"]
Row = tuple[Mapping[str, Any], Mapping[str, Any], str | None, str | None, list[str]]
ABORT, CONTINUE = {"onAgentError": "Abort"}, {"onAgentError": "Continue"}
NO_REWARD = rewarded()
STARTED_NOT = {"exitCode": None, "error": {"code": "NoSuchUser", "message": "no user alice"}}

ROWS: dict[str, Row] = {  # what happens: results, spec, the step's exception, the trial's exception, started steps
    "nothing goes wrong": ({}, {}, None, None, ALL),
    "setup.sh exits non-zero": ({"a/setup": {"exitCode": 3, "tail": "oh\n"}}, {}, "RuntimeError", None, ["a"]),
    "setup.sh is killed": ({"a/setup": {"exitCode": None, "signal": 9}}, {}, "RuntimeError", None, ["a"]),
    "setup.sh cannot be started": ({"a/setup": STARTED_NOT}, {}, "RuntimeError", None, ["a"]),
    "the step is never healthy": ({"a/healthcheck": {"healthy": False}}, {}, "HealthcheckError", None, ["a"]),
    "solve.sh exits non-zero": ({"a/agent": {"exitCode": 3}}, {}, None, None, ALL),
    "solve.sh is killed": ({"a/agent": {"exitCode": None, "signal": 9}}, {}, None, None, ALL),
    "the agent's time is over": ({"a/agent": {"timedOut": True, "exitCode": None}}, ABORT, "AgentTimeoutError", None, ["a"]),
    "the agent's time is over, Continue": (
        {"a/agent": {"timedOut": True, "exitCode": None}},
        CONTINUE,
        "AgentTimeoutError",
        None,
        ALL,
    ),
    "the agent cannot be started": ({"a/agent": STARTED_NOT}, ABORT, "RuntimeError", None, ["a"]),
    "the agent cannot be started, Continue": ({"a/agent": STARTED_NOT}, CONTINUE, "RuntimeError", None, ALL),
    "the solution cannot be uploaded": ({"a/solution": FAULT}, ABORT, "RuntimeError", None, ["a"]),
    "a collect hook fails": ({"a/collect-hook-0": {"exitCode": 1}}, {}, None, None, ALL),
    "a collect hook's time is over": ({"a/collect-hook-0": {"timedOut": True, "exitCode": None}}, {}, None, None, ALL),
    "no reward": ({"a/verifier": NO_REWARD}, {}, "RewardFileNotFoundError", None, ["a"]),
    "no reward, Continue": ({"a/verifier": NO_REWARD}, CONTINUE, "RewardFileNotFoundError", None, ["a"]),
    "a bad reward": ({"a/verifier": rewarded(txt="x")}, {}, "VerifierOutputParseError", None, ["a"]),
    "a huge reward file": (
        {"a/verifier": {"captures": {REWARD_TXT: {"base64": "MQ==", "size": 10**9, "truncated": True}}}},
        {},
        "VerifierOutputParseError",
        None,
        ["a"],
    ),
    "an empty reward": ({"a/verifier": rewarded(json="")}, {}, "RewardFileEmptyError", None, ["a"]),
    "a bare number": ({"a/verifier": rewarded(json="1")}, {}, "ValidationError", None, ["a"]),
    "the verifier exits non-zero": ({"a/verifier": {**ONE, "exitCode": 1}}, {}, None, None, ALL),
    "the verifier cannot be started": ({"a/verifier": {**STARTED_NOT, "captures": {}}}, {}, "RewardFileNotFoundError", None, ["a"]),
    "the verifier's time is over": ({"a/verifier": {**ONE, "timedOut": True}}, {}, "VerifierTimeoutError", None, ["a"]),
    "the verifier is killed for its memory": (
        {"a/verifier": {**ONE, "exitCode": None, "signal": 9, "oomKills": 1}},
        {},
        "OutOfMemoryError",
        None,
        ["a"],
    ),
    "the verifier is killed by its own tests": ({"a/verifier": {**ONE, "exitCode": None, "signal": 9}}, {}, None, None, ALL),
    "something else is killed for its memory while verifying": ({"a/verifier": {**ONE, "oomKills": 1}}, {}, None, None, ALL),
    "shared tests cannot be uploaded": ({"a/tests": FAULT}, {}, "AddTestsDirError", None, ["a"]),
    "the step's tests cannot be uploaded": ({"a/step-tests": FAULT}, {}, "AddTestsDirError", None, ["a"]),
    "agent and verifier fail": (
        {"a/agent": STARTED_NOT, "a/verifier": NO_REWARD},
        CONTINUE,
        "RuntimeError",
        None,
        ["a"],
    ),
    "a gate is missed": ({"a/verifier": rewarded(txt="0.4")}, {}, None, None, ["a"]),
    "agent's error and missed gate, Continue": (
        {"a/agent": STARTED_NOT, "a/verifier": rewarded(txt="0.4")},
        CONTINUE,
        "RuntimeError",
        None,
        ["a"],
    ),
    "creating /logs": ({"/prepare": FAULT}, {}, None, "RuntimeError", []),
    "uploading environment/": ({"/environment": FAULT}, {}, None, "RuntimeError", []),
    "the environment is never healthy": ({"/healthcheck": {"healthy": False}}, {}, None, "HealthcheckError", []),
    "emptying /logs/agent": ({"b/begin": FAULT}, {}, None, "RuntimeError", ["a", "b"]),
    "uploading workdir/": ({"a/workdir": FAULT}, {}, None, "RuntimeError", ["a"]),
    "emptying /tests": ({"a/verify": FAULT}, {}, None, "RuntimeError", ["a"]),
    "no space for the solution": ({"a/solution": NO_SPACE}, ABORT, "OutOfDiskError", None, ["a"]),
    "no space for tests": ({"a/tests": NO_SPACE}, {}, "OutOfDiskError", None, ["a"]),
    "no space for /logs before any step": ({"/prepare": NO_SPACE}, {}, None, "RuntimeError", []),
    "no space for a step's logs": ({"a/begin": NO_SPACE}, {}, "OutOfDiskError", None, ["a"]),
    "no space for workdir/": ({"a/workdir": NO_SPACE}, {}, "OutOfDiskError", None, ["a"]),
    "no space for a verdict": ({"a/verify": NO_SPACE}, {}, "OutOfDiskError", None, ["a"]),
    "a reward no mean can hold": (
        {"a/verifier": rewarded(json='{"reward": ' + "9" * 400 + "}")},
        {},
        None,
        "OverflowError",
        ALL,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_goes_wrong(name: str) -> None:
    results, spec, in_step, in_trial, started = ROWS[name]
    made = plan(EVERYTHING + '[[steps]]\nname = "c"\n', spec, steps={"a": FULL}, root=SHARED, environment_files=True)
    journal = play(made, results).journal
    assert journal.finished
    assert [step.name for step in journal.steps] == started
    assert (journal.exception and journal.exception.type) == in_trial
    assert journal.broken == (in_trial not in (None, "OverflowError"))
    assert journal.all_steps == (started == ALL)
    exceptions = {step.name: step.exception.type for step in journal.steps if step.exception}
    assert exceptions == ({"a": in_step} if in_step else {})
    assert (journal.rewards is None) == (in_trial is not None or (journal.steps[0].rewards is None))


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"a/setup": {"exitCode": 3, "tail": " oh no\n"}}, "setup.sh exited with status 3: oh no"),
        ({"a/setup": {"exitCode": 1, "tail": "x" * 600}}, "setup.sh exited with status 1: " + "x" * 500),
        (
            {"a/setup": {"exitCode": 1, "tail": "Traceback:\n  line 1\nno"}},
            "setup.sh exited with status 1:\nTraceback:\n  line 1\nno",
        ),
        ({"a/setup": {"exitCode": 1, "tail": "x" * 600 + "\ny\nz"}}, "setup.sh exited with status 1:\ny\nz"),  # only whole lines
        ({"a/setup": {"exitCode": 1, "tail": "cut\n" + "y" * 498 + "\nz"}}, "setup.sh exited with status 1:\n" + "y" * 498 + "\nz"),
        ({"a/setup": {"exitCode": None, "signal": 11}}, "setup.sh was killed by signal 11"),
        ({"a/setup": {"exitCode": 137, "oomKills": 2}}, "exited with status 137 (the container ran out of memory meanwhile)"),
        (
            {"a/agent": {"exitCode": None, "signal": 9, "oomKills": 1, "memoryLimit": 64 * 2**20}},
            "the agent was killed by signal 9 (the container ran out of memory meanwhile; its limit is 64Mi)",
        ),
        (
            {"a/verifier": {"exitCode": None, "signal": 9, "oomKills": 1, "memoryLimit": 100_000_000}},
            "test.sh was killed by signal 9 (the container ran out of memory meanwhile; its limit is 95.3674Mi)",
        ),
        ({"a/setup": STARTED_NOT}, "setup.sh could not be started: no user alice"),
        (
            {"a/healthcheck": {"healthy": False, "attempts": 2, "exitCode": 7, "tail": "no"}},
            "failed after 2 attempts; the last one exited with status 7: no",
        ),
        (
            {"a/healthcheck": {"healthy": False, "attempts": 2, "exitCode": None, "timedOut": True}},
            "failed after 2 attempts; the last one was stopped at its timeout",
        ),
        ({"a/agent": {"timedOut": True}}, "the agent was stopped after its timeout of 60 s"),
        ({"a/agent": STARTED_NOT}, "the agent could not be started: no user alice"),
        ({"a/verifier": {"timedOut": True}}, "the verifier was stopped after its timeout of 30 s"),
        ({"a/verifier": {**NO_REWARD, "exitCode": 2, "tail": "boom"}}, "wrote neither ...; test.sh exited with status 2: boom"),
        ({"a/step-tests": FAULT}, "uploading tests/: no space left"),
    ],
)
def test_an_exception_shows_what_happened(results: Mapping[str, Mapping[str, Any]], words: str) -> None:
    exception = everything(results).journal.steps[0].exception
    assert exception
    assert all(part in exception.message for part in words.split("..."))
    assert exception.phase in ("setup", "healthcheck", "agent", "verifier")


def test_a_default_timeout_can_be_reported() -> None:
    """A runner may report a timeout that was never set."""
    made = plan(IMAGE + '[[steps]]\nname = "a"\n[steps.verifier]\ntimeout_sec = inf', CONTINUE)
    exceptions = [play(made, {name: {"timedOut": True}}).journal.steps[0].exception for name in ("a/agent", "a/verifier")]
    assert [each and each.message for each in exceptions] == [
        "the agent was stopped at its timeout",
        "the verifier was stopped at its timeout",
    ]


def test_after_setup_fails_nothing_runs_or_is_collected() -> None:
    assert everything({"a/setup": {"exitCode": 1}}).ids[3:] == ["a/begin", "a/workdir", "a/setup", "a/end"]
    assert everything({"a/healthcheck": {"healthy": False}}).ids[-2:] == ["a/healthcheck", "a/end"]


def test_an_agents_error_aborts_only_after_its_reward_and_artifacts() -> None:
    played = everything({"a/agent": {"timedOut": True}})
    assert played.ids[-6:] == ["a/verify", "a/tests", "a/step-tests", "a/verifier", "a/collect", "a/end"]
    step = played.journal.steps[0]
    assert (step.rewards, step.collected is not None) == ({"reward": 1.0}, True)
    assert played.journal.rewards == {"reward": 1.0}


@pytest.mark.parametrize(
    "results",
    [{"a/verifier": NO_REWARD}, {"a/verifier": {"timedOut": True}}, {"a/tests": FAULT}],
)
def test_artifacts_are_collected_after_a_failed_verification(results: Mapping[str, Mapping[str, Any]]) -> None:
    assert everything(results).ids[-2:] == ["a/collect", "a/end"]


def test_a_variable_of_the_verifier_that_is_not_set_is_the_steps_error() -> None:
    played = play(plan(IMAGE + '[verifier.env]\nV = "${X}"\n[[steps]]\nname = "a"'))
    assert played.ids[-3:] == ["a/step-tests", "a/collect", "a/end"]
    exception = played.journal.steps[0].exception
    assert exception and (exception.type, exception.phase) == ("ValueError", "verifier")
    assert "verifier.env: V: variable 'X' is not set" in exception.message


def test_a_broken_trial_keeps_what_earlier_steps_had() -> None:
    journal = play(plan(), {"c/begin": FAULT}).journal
    assert [step.rewards for step in journal.steps] == [{"reward": 1.0}, {"reward": 1.0}, None]
    assert [step.exception for step in journal.steps] == [None, None, None]
    assert (journal.rewards, journal.broken, journal.steps[2].completed_at) == (None, True, None)
    assert journal.exception and journal.exception.message == "emptying /logs/agent: no space left"


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


# -- gates, early stop, the trial's reward

GATED = THREE.replace('name = "b"\n', 'name = "b"\nmin_reward = 0.5\n')


@pytest.mark.parametrize(
    ("strategy", "rewards", "trial", "started", "passed"),
    [
        ("mean", ["1", "0.5", "0"], {"reward": 0.5}, ALL, [None, True, None]),
        ("final", ["1", "0.5", "0"], {"reward": 0.0}, ALL, [None, True, None]),
        ("mean", ["1", "0.4", "0"], {"reward": 0.7}, ["a", "b"], [None, False]),
        ("final", ["1", "0.4", "0"], {"reward": 0.4}, ["a", "b"], [None, False]),  # the step at which the trial stopped
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


# -- single-step tasks

SINGLE = IMAGE + "[verifier]\ntimeout_sec = 7\n"


def test_the_order_of_operations_of_a_single_step_task() -> None:
    played = play(plan(SINGLE))
    assert played.ids == [
        "/prepare",
        "task/begin",
        "task/solution",
        "task/agent",
        "task/verify",
        "task/tests",
        "task/verifier",
        "task/collect",
        "task/end",
    ]
    # planted files are not deleted, except reward files, which are deleted when the verifier starts
    assert played.operation("task/verify").directories == (
        Directory("/logs/verifier", keep=True),
        Directory("/tests", mode=0o755, keep=True),
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
        ("oracle", {"task/agent": STARTED_NOT}, "RuntimeError", False, None),
        ("oracle", {"task/solution": FAULT}, "RuntimeError", False, None),
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


# -- replay


def test_replay_waits_for_what_runs_and_reports_since_when() -> None:
    made, played = plan(), play(plan())
    cut = played.ids.index("a/verifier")
    records = {each.id: played.records[each.id] for each in played.operations[: cut + 1]}
    id = played.operations[cut].id
    records[id] = Record(id, "start", "running", 33.0)
    progress = replay(scope(made), AGENTS["oracle"], records)
    assert (progress.next, progress.running) == (played.operations[cut], records[id])
    assert progress.journal.steps[0].timings["verifier"] == (50.0, None)
    assert not progress.journal.finished


def test_a_running_collect_hook_does_not_make_the_agent_run_again() -> None:
    made = plan(EVERYTHING, steps={"a": FULL}, root=SHARED)
    played = play(made)
    cut = played.ids.index("a/collect-hook-0")
    records = {each.id: played.records[each.id] for each in played.operations[:cut]}
    id = played.operations[cut].id
    progress = replay(scope(made), AGENTS["oracle"], {**records, id: Record(id, "start", "running", 99.0)})
    assert "agent" in progress.journal.steps[0].durations


def test_a_running_healthcheck_of_the_environment_belongs_to_no_step() -> None:
    made = plan(EVERYTHING)
    played = play(made)
    records = {each.id: played.records[each.id] for each in played.operations[:1]}
    running = Record("1//healthcheck", "healthcheck", "running", 11.0)
    progress = replay(scope(made), AGENTS["oracle"], {**records, running.id: running})
    assert (progress.running, progress.journal.steps) == (running, [])


def test_a_trial_can_be_suspended_before_it_is_prepared_and_before_each_step_and_nowhere_else() -> None:
    made = plan(EVERYTHING)
    played = play(made)
    between = []
    for cut, operation in enumerate(played.operations):
        records = {each.id: played.records[each.id] for each in played.operations[:cut]}
        if replay(scope(made), AGENTS["oracle"], records).between_steps:
            between.append(played.ids[cut])
        running = Record(operation.id, "start", "running", 11.0)
        assert not replay(scope(made), AGENTS["oracle"], {**records, running.id: running}).between_steps
    assert between == [each for each in played.ids if each.endswith(("/begin", "prepare"))]
    assert not replay(scope(made), AGENTS["oracle"], played.records).between_steps


TOMLS = st.sampled_from([EVERYTHING, THREE, SINGLE, GATED])
SPECS = st.fixed_dictionaries(
    {
        "agent": st.sampled_from([{"name": "oracle"}, {"name": "nop"}, {"name": "command", "command": ["x"]}]),
        "onAgentError": st.sampled_from(["Abort", "Continue"]),
        "verifier": st.fixed_dictionaries({"disable": st.booleans()}),
    }
)
OUTCOMES = st.dictionaries(
    st.sampled_from(
        [
            *(
                f"{step}/{op}"
                for step in ("a", "b", "c", "task")
                for op in ("agent", "verifier", "setup", "solution", "begin", "tests")
            ),
            "a/healthcheck",
            "/healthcheck",
            "/prepare",
        ]
    ),
    st.sampled_from(
        [
            FAULT,
            {"exitCode": 1},
            {"timedOut": True},
            {"healthy": False},
            rewarded(),
            rewarded(txt="0.1"),
            rewarded(json="{}"),
            rewarded(json="{"),
            {"captures": {REWARD_JSON: captured('{"a": 1}')}},
        ]
    ),
    max_size=4,
)


@given(TOMLS, SPECS, OUTCOMES)
def test_replay_is_deterministic_and_stable_for_every_prefix(
    toml: str, spec: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]
) -> None:
    made = plan(toml, spec, steps={"a": FULL} if "[[steps]]" in toml else None, root=COMPLETE)
    played = play(made, outcomes)
    here, agent = scope(made), AGENTS[made.agent_name]
    for done, operation in enumerate(played.operations):
        records = {each.id: played.records[each.id] for each in played.operations[:done]}
        first, second = replay(here, agent, records), replay(here, agent, records)
        assert first == second
        assert (first.next, first.running) == (operation, None)
        names = [step.name for step in first.journal.steps]
        assert names == [step.name for step in played.journal.steps][: len(names)]
        assert not first.journal.finished
    assert replay(here, agent, played.records).journal == played.journal


@given(TOMLS, SPECS, OUTCOMES)
def test_a_replay_that_continues_reports_what_a_new_one_would(
    toml: str, spec: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]
) -> None:
    made = plan(toml, spec, steps={"a": FULL} if "[[steps]]" in toml else None, root=COMPLETE)
    played = play(made, outcomes)
    here, agent = scope(made), AGENTS[made.agent_name]
    going, records = Replay(here, agent), dict[str, Record]()
    for operation in played.operations:
        assert going.advance(records) == replay(here, agent, records)
        done = played.records[operation.id]
        running = {**records, operation.id: dataclasses.replace(done, state="running", ended_at=None)}
        for _ in range(2):
            assert going.advance(running) == replay(here, agent, running)
        records[operation.id] = done
    assert going.advance(records) == replay(here, agent, records) == going.advance(records)


@given(TOMLS, SPECS, OUTCOMES)
def test_every_id_is_asked_for_once_and_every_trial_ends(
    toml: str, spec: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]
) -> None:
    played = play(plan(toml, spec, root=COMPLETE), outcomes)
    assert len(set(played.ids)) == len(played.ids)
    assert played.journal.finished
    if played.journal.broken:
        assert played.journal.rewards is None and played.journal.exception is not None
    else:
        assert all(step.completed_at is not None for step in played.journal.steps)


def test_records_of_another_attempt_count_for_nothing() -> None:
    made, played = plan(), play(plan())
    progress = replay(scope(made, attempt=2), AGENTS["oracle"], played.records)
    assert progress.next and progress.next.id == "2//prepare"
    assert progress.journal == Journal()
