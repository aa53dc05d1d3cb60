"""Test errors in a step: the exceptions that they cause, and the steps and operations that run after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.engine.score.rewards import REWARD_TXT
from tests.support.played import FAULT, IMAGE, NO_SPACE, ONE, plan, play, rewarded
from tests.unit.engine.script_cases import ABORT, ALL, CONTINUE, EVERYTHING, FULL, NO_REWARD, SHARED, STARTED_NOT, everything

Row = tuple[Mapping[str, Any], Mapping[str, Any], str | None, str | None, list[str]]

ROWS: dict[str, Row] = {  # by situation: results of operations, spec, step a's exception, the trial's exception, started steps
    "nothing goes wrong": ({}, {}, None, None, ALL),
    "setup.sh exits non-zero": ({"a/setup": {"exitCode": 3, "tail": "oh\n"}}, {}, "RuntimeError", None, ["a"]),
    "setup.sh is killed": ({"a/setup": {"exitCode": None, "signal": 9}}, {}, "RuntimeError", None, ["a"]),
    "setup.sh cannot be started": ({"a/setup": STARTED_NOT}, {}, "RuntimeError", None, ["a"]),
    "the step is never healthy": ({"a/healthcheck": {"healthy": False}}, {}, "HealthcheckError", None, ["a"]),
    "solve.sh exits non-zero": ({"a/agent": {"exitCode": 3}}, {}, None, None, ALL),
    "solve.sh is killed": ({"a/agent": {"exitCode": None, "signal": 9}}, {}, None, None, ALL),
    "the agent's timeout": ({"a/agent": {"timedOut": True, "exitCode": None}}, ABORT, "AgentTimeoutError", None, ["a"]),
    "the agent's timeout, Continue": (
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
    "a collect hook's timeout": ({"a/collect-hook-0": {"timedOut": True, "exitCode": None}}, {}, None, None, ALL),
    "no reward": ({"a/verifier": NO_REWARD}, {}, "RewardFileNotFoundError", None, ["a"]),
    "a reward without a start of test.sh": ({"a/verifier": {**ONE, **STARTED_NOT}}, {}, "RewardFileNotFoundError", None, ["a"]),
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
    "the verifier's timeout": ({"a/verifier": {**ONE, "timedOut": True}}, {}, "VerifierTimeoutError", None, ["a"]),
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


def test_a_reward_counts_if_processes_of_the_verifier_hang_in_the_kernel() -> None:
    left = {"error": {"code": "Left", "message": "processes are left: 1"}}
    assert everything({"a/verifier": {**ONE, **left}}).journal.steps[0].rewards == {"reward": 1.0}


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
        # a message that is cut starts with a whole line
        ({"a/setup": {"exitCode": 1, "tail": "x" * 600 + "\ny\nz"}}, "setup.sh exited with status 1:\ny\nz"),
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
        ({"a/setup": STARTED_NOT}, "setup.sh could not be started: no directory /app"),
        (
            {"a/healthcheck": {"healthy": False, "attempts": 2, "exitCode": 7, "tail": "no"}},
            "failed after 2 attempts; the last one exited with status 7: no",
        ),
        (
            {"a/healthcheck": {"healthy": False, "attempts": 2, "exitCode": None, "timedOut": True}},
            "failed after 2 attempts; the last one was stopped at its timeout",
        ),
        ({"a/agent": {"timedOut": True}}, "the agent was stopped after its timeout of 60 s"),
        ({"a/agent": STARTED_NOT}, "the agent could not be started: no directory /app"),
        ({"a/verifier": {"timedOut": True}}, "the verifier was stopped after its timeout of 30 s"),
        ({"a/verifier": {**NO_REWARD, "exitCode": 2, "tail": "boom"}}, "wrote neither ...; test.sh exited with status 2: boom"),
        ({"a/verifier": {**ONE, **STARTED_NOT}}, "wrote neither ...; test.sh could not be started: no directory /app"),
        ({"a/step-tests": FAULT}, "uploading tests/: no space left"),
    ],
)
def test_an_exception_shows_what_happened(results: Mapping[str, Mapping[str, Any]], words: str) -> None:
    exception = everything(results).journal.steps[0].exception
    assert exception
    assert all(part in exception.message for part in words.split("..."))
    assert exception.phase in ("setup", "healthcheck", "agent", "verifier")


def test_a_default_timeout_can_be_reported() -> None:
    """A runner may report that a phase timed out although the phase has no timeout. Then the message names no seconds."""
    made = plan(IMAGE + '[[steps]]\nname = "a"\n[steps.verifier]\ntimeout_sec = inf', CONTINUE)
    exceptions = [play(made, {name: {"timedOut": True}}).journal.steps[0].exception for name in ("a/agent", "a/verifier")]
    assert [each and each.message for each in exceptions] == [
        "the agent was stopped at its timeout",
        "the verifier was stopped at its timeout",
    ]


def test_after_setup_fails_nothing_runs_or_is_collected() -> None:
    assert everything({"a/setup": {"exitCode": 1}}).ids[-4:] == ["a/begin", "a/workdir", "a/setup", "a/end"]
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
