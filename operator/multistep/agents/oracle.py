"""The oracle agent, which runs the task's own solution, as in Harbor 0.26."""

from __future__ import annotations

from multistep.agents.command_exception import not_startable, out_of_memory, timed_out
from multistep.api.trial.content_references import Content
from multistep.api.trial.runner_records import PhaseResult
from multistep.api.trial.values import AGENT
from multistep.engine.journal.journal import StepException, StepRun
from multistep.engine.journal.operations import LOGS_AGENT, SOLUTION, Note, Script, Start, Upload
from multistep.engine.plan.plan import StepPlan
from multistep.engine.plan.resolve_templates import Unresolved
from multistep.engine.script.operation_scope import Scope, fault_of, fault_type


def run(scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:
    """Upload the solution to /solution and run its solve.sh, whose exit status is ignored.

    It is the step's solution, or the task's if the step has none.
    """
    if not step.solve_script:
        return (yield from _fail(scope, run, "FileNotFoundError", "the step has no solution/solve.sh"))
    if isinstance(scope.plan.solution_env, Unresolved):
        return (yield from _fail(scope, run, "ValueError", f"solution.env: {scope.plan.solution_env}"))
    record = yield Upload(scope.id("solution"), SOLUTION, Content("solution", step.solution_directory))
    run.began(AGENT, record)
    if fault := fault_of(record):
        run.timed(AGENT, record)
        return StepException(fault_type(fault, "RuntimeError"), f"uploading solution/: {fault.message}", AGENT)
    env = {"DEBIAN_FRONTEND": "noninteractive", **scope.plan.agent_env, **scope.plan.solution_env}
    record = yield Start(
        scope.id("agent"),
        (f"{SOLUTION}/solve.sh",),
        user=step.agent_user,
        env={**scope.plan.environment_env, **env},
        timeout=step.agent_timeout,
        make_executable=f"{SOLUTION}/solve.sh",
        output=f"{LOGS_AGENT}/oracle.txt",
        exit_code_file=f"{LOGS_AGENT}/exit-code.txt",
    )
    result = PhaseResult.from_record(record)
    run.timed(AGENT, record)
    return timed_out(step, result) or not_startable(result) or out_of_memory(result)


def _fail(scope: Scope, run: StepRun, kind: str, message: str) -> Script[StepException | None]:
    run.timed(AGENT, (yield Note(scope.id("agent"))))
    return StepException(kind, message, AGENT)
