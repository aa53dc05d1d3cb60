"""The command agent: runs spec.agent.command as the step's agent user, and passes the instruction in a file."""

from __future__ import annotations

from multistep.agents.command_exception import broken, is_first, not_started, out_of_memory, require_user, timed_out
from multistep.agents.find_programs import NO_PROGRAM, lookup
from multistep.api.trial.content_references import Content
from multistep.api.trial.phases import AGENT
from multistep.api.trial.runner_records import PhaseResult
from multistep.engine.journal.journal import StepException, StepRun
from multistep.engine.journal.operations import LOGS_AGENT, Script, Start, Upload
from multistep.engine.plan.plan import StepPlan
from multistep.engine.script.operation_scope import Scope, ending, failed, fault_type

INSTRUCTION_VARIABLE = "MULTISTEP_INSTRUCTION_FILE"
_LOOKUP_SECONDS = 30.0


def run(scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:
    """Run spec.agent.command in WORKDIR. Return the step's exception, e.g. NonZeroAgentExitCodeError; None for exit status 0."""
    file = Content("file", name="instruction.md", text=step.instruction or "")
    record = yield Upload(scope.id("instruction"), scope.runtime_dir, file)
    run.began(AGENT, record)
    if fault := failed(record):
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
    require_user(scope, run, result)
    run.timed(AGENT, record)
    run.lost = not_started(scope, result, lacks_program=lacks_program)
    if run.lost is not None:
        return None
    return timed_out(step, result) or broken(result) or out_of_memory(result) or _non_zero(result)


def _non_zero(result: PhaseResult) -> StepException | None:
    if result.exit_code == 0:
        return None
    return StepException(
        "NonZeroAgentExitCodeError",
        f"the agent's command {ending(result, output=False)}; its output is in agent/command.txt",
        AGENT,
    )
