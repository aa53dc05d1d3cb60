from __future__ import annotations

import itertools
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.agents import BUILT_IN as SCRIPTS
from multistep.agents import script_of
from multistep.agents.command import lookup
from multistep.api.task.layout import StepLayout
from multistep.api.trial.content_references import Content
from multistep.api.trial.values import BUILT_IN
from multistep.client.submit.agent_choice import script_command
from multistep.engine.journal.operations import Note, Start, Upload
from multistep.engine.plan.plan import TrialEnv
from multistep.engine.score import failure_class
from multistep.engine.script.replay import replay
from multistep.engine.status.trial_status import step_status
from tests.support.played import COMPLETE, FAULT, IMAGE, Played, plan, play, scope

TASK = f"""{IMAGE}
[environment.env]
E = "environment"
WHO = "environment"
[solution.env]
WHO = "solution"
[[steps]]
name = "a"
[steps.agent]
user = "alice"
timeout_sec = 60
"""
AGENT_ENV = TrialEnv(agent={"A": "agent", "WHO": "agent"})


def run(agent: str, results: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> Played:
    spec = {"agent": {"name": agent, **({"command": ["solve", "it"]} if agent == "command" else {})}, **options.pop("spec", {})}
    return play(plan(options.pop("toml", TASK), spec, env=AGENT_ENV, **options), results)


def outcome(played: Played) -> tuple[str, str] | None:
    exception = played.journal.steps[0].exception
    return (exception.type, exception.phase) if exception else None


def phase(played: Played) -> list[str]:
    """Return the ids of the played operations that belong to the agent phase."""
    return [each for each in played.ids if each in ("a/solution", "a/instruction", "a/agent")]


def test_there_is_a_script_for_every_agent_of_the_spec() -> None:
    assert set(SCRIPTS) == set(BUILT_IN)


def test_the_oracle_uploads_the_solution_and_runs_it() -> None:
    played = run("oracle")
    assert phase(played) == ["a/solution", "a/agent"]
    assert played.operation("a/solution") == Upload("1/a/solution", "/solution", Content("solution", "a"))
    assert played.operation("a/agent") == Start(
        "1/a/agent",
        ("/solution/solve.sh",),
        user="alice",
        env={"E": "environment", "DEBIAN_FRONTEND": "noninteractive", "A": "agent", "WHO": "solution"},
        timeout=60.0,
        make_executable="/solution/solve.sh",
        output="/logs/agent/oracle.txt",
        exit_code_file="/logs/agent/exit-code.txt",
    )


def test_the_oracle_falls_back_on_the_tasks_solution() -> None:
    played = run("oracle", steps={"a": StepLayout("do it")}, root=COMPLETE)
    assert played.operation("a/solution").content == Content("solution", None)


def test_the_oracle_of_a_single_step_task_has_the_roots_solution() -> None:
    assert run("oracle", toml=IMAGE).operation("task/solution").content == Content("solution", None)


@pytest.mark.parametrize(
    ("agent", "results", "wanted"),
    [
        ("oracle", {}, None),
        ("oracle", {"exitCode": 7}, None),
        ("oracle", {"exitCode": None, "signal": 9}, None),
        ("oracle", {"timedOut": True, "exitCode": None}, ("AgentTimeoutError", "agent")),
        ("oracle", {"exitCode": None, "error": {"code": "BadCwd", "message": "x"}}, ("RuntimeError", "agent")),
        ("oracle", {"exitCode": 127}, None),
        ("oracle", {"exitCode": None, "error": {"code": "NoSuchCommand", "message": "x"}}, ("RuntimeError", "agent")),
        ("oracle", {"exitCode": None, "signal": 9, "oomKills": 1}, ("OutOfMemoryError", "agent")),
        ("oracle", {"exitCode": 137, "oomKills": 1}, ("OutOfMemoryError", "agent")),
        ("oracle", {"exitCode": 1, "oomKills": 1}, None),
        ("command", {}, None),
        ("command", {"exitCode": 7}, ("NonZeroAgentExitCodeError", "agent")),
        ("command", {"exitCode": None, "signal": 9}, ("NonZeroAgentExitCodeError", "agent")),
        ("command", {"exitCode": None, "signal": 9, "oomKills": 2}, ("OutOfMemoryError", "agent")),
        ("command", {"exitCode": 137, "oomKills": 1}, ("OutOfMemoryError", "agent")),
        ("command", {"exitCode": 137}, ("NonZeroAgentExitCodeError", "agent")),
        ("command", {"exitCode": 1, "oomKills": 1}, ("NonZeroAgentExitCodeError", "agent")),
        ("command", {"timedOut": True, "exitCode": None}, ("AgentTimeoutError", "agent")),
        ("command", {"timedOut": True, "exitCode": None, "signal": 9, "oomKills": 1}, ("AgentTimeoutError", "agent")),
        ("command", {"exitCode": 127}, ("NonZeroAgentExitCodeError", "agent")),
        ("command", {"exitCode": 126}, ("NonZeroAgentExitCodeError", "agent")),
    ],
)
def test_how_an_agent_ends(agent: str, results: Mapping[str, Any], wanted: object) -> None:
    played = run(agent, {"a/agent": results})
    assert outcome(played) == wanted
    assert "a/verifier" in played.ids  # the verifier runs whether or not the agent succeeded


NO_USER = {"exitCode": None, "error": {"code": "NoSuchUser", "message": "no user alice"}}
NO_PROGRAM = {"exitCode": None, "error": {"code": "NoSuchCommand", "message": "command 'solve' does not exist"}}
TWO = TASK + '[[steps]]\nname = "b"\n[steps.agent]\nuser = "alice"\n'


@pytest.mark.parametrize(
    "result",
    [NO_PROGRAM, {"exitCode": None, "error": {"code": "Permission", "message": "x"}}],
)
def test_a_command_whose_program_does_not_exist_is_configured_wrongly(result: Mapping[str, Any]) -> None:
    played = run("command", {"a/agent": result})
    lost = played.journal.lost
    assert lost is not None and (lost.reason, lost.final) == ("AgentNotStarted", True)
    assert lost.message.startswith("spec.agent.command ")
    assert "a/verifier" not in played.ids and failure_class.class_of_failure(lost.reason, None) == "Configuration"


@pytest.mark.parametrize(
    ("looked_up", "ended", "lost"),
    [
        ({"exitCode": 127}, {"exitCode": 127}, True),
        ({"exitCode": 127}, {"exitCode": 126}, True),
        ({"exitCode": 127}, {"exitCode": 127, "durationSeconds": 60.0}, False),
        ({"exitCode": 127}, {"exitCode": 1}, False),
        ({}, {"exitCode": 127}, False),
        ({"exitCode": None, "timedOut": True}, {"exitCode": 127}, False),
    ],
)
def test_a_shells_status_for_a_missing_program_is_the_agents_own_unless_a_lookup_before_its_start_missed_the_program(
    looked_up: Mapping[str, Any], ended: Mapping[str, Any], lost: bool
) -> None:
    """Else an agent that dislikes its task could exit with 127, and its trial would be excluded."""
    spec = {"agent": {"name": "command", "command": ["bash", "-c", "solve it"]}}
    played = run("command", {"a/agent-lookup": looked_up, "a/agent": ended}, spec=spec)
    assert played.operation("a/agent-lookup").argv[-1] == "solve"
    assert (played.journal.lost and (played.journal.lost.reason, played.journal.lost.final)) == (
        ("AgentNotStarted", True) if lost else None
    )


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        (["solve", "it"], ()),
        (["bash", "solve.sh"], ()),
        (["python3", "-c", "solve"], ()),
        (["bash", "-c", "solve it"], ("solve",)),
        (["/bin/sh", "-ec", "cd /app && set -e; A=1 exec /opt/my-agent"], ("/opt/my-agent",)),
        (["bash", "-lc", "# comment\nsolve; next"], ("solve",)),
        (["bash", "-c", "pip install solve && solve"], ("pip",)),
        (["bash", "-c", 'mkdir -p /logs/x && cat "$MULTISTEP_INSTRUCTION_FILE" | solve --it'], ("solve",)),
        (["bash", "-c", "cd ${HOME}; echo starting; ulimit -n 100\nsolve | tee /log"], ("solve",)),
        (["bash", "-c", "echo x > /bin/solve; solve"], ("echo",)),
        (["bash", "-c", "test -x /bin/solve || solve"], ("test",)),
        *(
            (["bash", "-c", text], ())
            for text in ("./solve", "$PROGRAM x", "PATH=/opt solve", "f() { a; }; f", "f () { a; }", "(a)")
        ),
    ],
)
def test_the_program_that_a_shells_command_runs_first_is_looked_up(command: list[str], programs: tuple[str, ...]) -> None:
    assert lookup(tuple(command))[4:] == programs


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("#!/bin/bash\nset -e\nsolve it\n", ("/bin/bash", "solve")),
        ("#!/usr/bin/env python3\nimport a\n", ("python3",)),
        ("#!/bin/sh\n./solve\n", ("/bin/sh",)),
        ("solve it\n", ()),
    ],
)
def test_the_interpreter_and_the_first_program_of_a_local_script_are_looked_up(
    tmp_path: Path, text: str, programs: tuple[str, ...]
) -> None:
    (script := tmp_path / "agent").write_text(text)
    assert lookup(tuple(script_command(script)))[4:] == programs


def test_the_lookup_fails_if_a_program_does_not_exist(tmp_path: Path) -> None:
    (there := tmp_path / "there").touch(0o755)
    for program, code in (("cat", 0), (str(there), 0), ("no-such-program", 127), (str(tmp_path / "no"), 127)):
        assert subprocess.run(lookup(("sh", "-c", f"cd / && {program} x")), check=False).returncode == code


@pytest.mark.parametrize("result", [NO_USER, NO_PROGRAM, {"exitCode": 127}])
def test_what_an_agent_may_have_removed_in_an_earlier_step_is_its_own_failure(result: Mapping[str, Any]) -> None:
    journal = run("command", {"b/agent": result}, toml=TWO).journal
    assert journal.lost is None and not journal.broken
    assert journal.steps[1].exception is not None and journal.steps[1].exception.phase == "agent"


@pytest.mark.parametrize("layout", [StepLayout("do it"), StepLayout("do it", solution=True)])
def test_an_oracle_without_a_solution_is_a_step_error_and_verified_all_the_same(layout: StepLayout) -> None:
    played = run("oracle", steps={"a": layout}, spec={"verifier": {"disable": False}})
    assert outcome(played) == ("FileNotFoundError", "agent")
    assert phase(played) == ["a/agent"]
    assert isinstance(played.operation("a/agent"), Note)
    assert "a/verifier" in played.ids
    assert "agent" in played.journal.steps[0].durations


def test_a_variable_of_the_solution_that_is_not_set_is_a_step_error() -> None:
    played = run("oracle", toml=TASK.replace('"solution"', '"${UNSET}"'))
    assert outcome(played) == ("ValueError", "agent")
    assert isinstance(played.operation("a/agent"), Note)


@pytest.mark.parametrize(("agent", "upload"), [("oracle", "solution"), ("command", "instruction")])
def test_what_an_agent_needs_and_cannot_be_uploaded_is_a_step_error(agent: str, upload: str) -> None:
    played = run(agent, {f"a/{upload}": FAULT})
    assert outcome(played) == ("RuntimeError", "agent")
    assert phase(played) == [f"a/{upload}"]


def test_the_command_finds_its_instruction_in_a_file() -> None:
    played = run("command", spec={"extraInstructions": ["more"]})
    assert phase(played) == ["a/instruction", "a/agent"]
    content = Content("file", name="instruction.md", text="do it\n\nmore")
    assert played.operation("a/instruction") == Upload("1/a/instruction", "/run/multistep", content)
    assert played.operation("a/agent") == Start(
        "1/a/agent",
        ("solve", "it"),
        user="alice",
        env={
            "E": "environment",
            "WHO": "agent",
            "A": "agent",
            "MULTISTEP_INSTRUCTION_FILE": "/run/multistep/instruction.md",
        },
        timeout=60.0,
        output="/logs/agent/command.txt",
        exit_code_file="/logs/agent/exit-code.txt",
    )


def test_nop_has_a_phase_in_which_nothing_runs() -> None:
    played = run("nop")
    assert phase(played) == ["a/agent"]
    assert isinstance(played.operation("a/agent"), Note)
    assert outcome(played) is None
    assert played.journal.steps[0].durations["agent"] == 1.0


def test_nothing_of_the_verifier_is_known_to_agent_setup_or_healthcheck() -> None:
    toml = TASK + '[steps.verifier.env]\nSECRET = "x"\n[steps.healthcheck]\ncommand = "y"\n'
    for agent in BUILT_IN:
        played = run(agent, toml=toml, steps={"a": StepLayout("do it", workdir=True, setup=True, solution=True, solve_script=True)})
        knowing = [each.id for each in played.operations if "SECRET" in getattr(each, "env", {})]
        assert knowing == ["1/a/verifier"]


@pytest.mark.parametrize("agent", ["oracle", "command"])
def test_the_phase_of_an_agent_that_has_not_ended_has_a_start_and_no_duration(agent: str) -> None:
    """Regression: the upload before the agent's program counted as the whole phase while no session could follow."""
    spec = {"agent": {"name": agent, **({"command": ["solve"]} if agent == "command" else {})}}
    made = plan(TASK, spec)
    records = play(made).records
    first = dict(itertools.takewhile(lambda each: each[0] != "1/a/agent", records.items()))
    shown = step_status(replay(scope(made), script_of(made), first).journal.steps[-1])
    uploaded = next(each for each in first.values() if each.op == "upload" and each.id.startswith("1/a/"))
    assert shown.seconds is not None and shown.seconds.agent is None
    assert shown.phase_start_time is not None and shown.phase_start_time.timestamp() == uploaded.started_at
    ended = step_status(replay(scope(made), script_of(made), records).journal.steps[-1])
    seconds = (records["1/a/agent"].ended_at or 0.0) - uploaded.started_at
    assert ended.seconds is not None and ended.seconds.agent == seconds
    assert ended.phase_start_time is None
