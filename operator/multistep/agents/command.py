"""The command agent, which runs spec.agent.command as the step's agent user and passes the instruction in a file."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from multistep.agents.command_exception import is_first, not_startable, not_started, out_of_memory, timed_out
from multistep.api.trial.content_references import Content
from multistep.api.trial.runner_records import PhaseResult
from multistep.api.trial.values import AGENT
from multistep.engine.journal.journal import StepException, StepRun
from multistep.engine.journal.operations import LOGS_AGENT, Script, Start, Upload
from multistep.engine.plan.plan import StepPlan
from multistep.engine.script.operation_scope import Scope, fault_of, fault_type, how_it_ended

NO_PROGRAM: Final = 127
"""Exit status of the command from ``lookup`` if a program does not exist."""
_SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_NO_INSTALLER: Final = r"(?:cd|set|cat|echo|printf|mkdir|sleep|test|ulimit|umask)"
_FIRST: Final = re.compile(
    rf"""(?:\s+|\#[^\n]*\n|{_NO_INSTALLER}[ \t](?:[^;&|<>\n`$()]|\$\w+|\$\{{\w+\}})*(?:&&|[;\n]|\|(?!\|))"""
    r"""|(?!PATH=)[A-Za-z_]\w*=[^\s;&|`$()'"]*\s)*(?:exec\s+)?"""
    r"(/[\w./+-]+|\w[\w.+-]*)(?=[\s;&|]|$)(?!\s*\()",
    re.ASCII,
)
"""Matches the first program of a script, after comments, assignments and commands that create no program.

A program that comes later may be created by the script itself.
"""
_INTERPRETER: Final = re.compile(r"#![ \t]*(?:/usr/bin/env[ \t]+(?:-S[ \t]+)?)?([\w./+-]+)", re.ASCII)
_LOOKUP: Final = 'for each do case $each in */*) [ -x "$each" ];; *) command -v "$each" >/dev/null;; esac || exit 127; done'


def lookup(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that exits with 127 if the program that spec.agent.command runs first does not exist.

    It must run as the same user and with the same variables. Return () if spec.agent.command does not start a shell, or if its
    first program is not certain. If an argument of the shell starts with "#!", it is a script that the shell runs
    (``client.submit.agent_choice.script_command``).
    """
    if len(command) < 3 or PurePosixPath(command[0]).name not in _SHELLS or not re.fullmatch(r"-[a-z]*c", command[1]):
        return ()
    script = next((argument for argument in command[3:] if argument.startswith("#!")), command[2])
    interpreter = _INTERPRETER.match(script)
    programs = [interpreter[1]] if interpreter else []
    if interpreter is None or PurePosixPath(interpreter[1]).name in _SHELLS:
        programs += [program[1]] if (program := _FIRST.match(script)) else []
    return (*command[:2], _LOOKUP, "lookup", *programs) if programs else ()


INSTRUCTION_VARIABLE = "MULTISTEP_INSTRUCTION_FILE"
_LOOKUP_SECONDS = 30.0


def run(scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:
    """Run spec.agent.command in the working directory. Return the step's exception, e.g. NonZeroAgentExitCodeError, or None."""
    file = Content("file", name="instruction.md", text=step.instruction or "")
    record = yield Upload(scope.id("instruction"), scope.runtime_dir, file)
    run.began(AGENT, record)
    if fault := fault_of(record):
        run.timed(AGENT, record)
        return StepException(fault_type(fault, "RuntimeError"), f"uploading the instruction: {fault.message}", AGENT)
    own = {INSTRUCTION_VARIABLE: f"{scope.runtime_dir}/instruction.md", **scope.plan.agent_env}
    env, lacks_program = {**scope.plan.environment_env, **own}, False
    if is_first(scope) and (command := lookup(scope.plan.agent_command)):
        looked_up = yield Start(scope.id("agent-lookup"), command, user=step.agent_user, env=env, timeout=_LOOKUP_SECONDS)
        lacks_program = PhaseResult.from_record(looked_up).exit_code == NO_PROGRAM
    record = yield Start(
        scope.id("agent"),
        scope.plan.agent_command,
        user=step.agent_user,
        env=env,
        timeout=step.agent_timeout,
        output=f"{LOGS_AGENT}/command.txt",
        exit_code_file=f"{LOGS_AGENT}/exit-code.txt",
    )
    result = PhaseResult.from_record(record)
    run.timed(AGENT, record)
    run.lost = not_started(scope, result, lacks_program=lacks_program)
    if run.lost is not None:
        return None
    return timed_out(step, result) or not_startable(result) or out_of_memory(result) or _non_zero(result)


def _non_zero(result: PhaseResult) -> StepException | None:
    if result.exit_code == 0:
        return None
    return StepException(
        "NonZeroAgentExitCodeError",
        f"the agent's command {how_it_ended(result, output=False)}; its output is in agent/command.txt",
        AGENT,
    )
